"""Sides of which ever more can be read, loops over them, and a clock that passes in their rests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from joinengine.driver.loop import Loop, Trigger
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.errors import DamagedState
from joinengine.model.keys import PAIR
from joinengine.model.windows import within
from joinengine.world.memory import MemoryWorld
from tests.feeding import Inert
from tests.harness import rows

ENDS = Trigger(finite=True)
WINDOW = within("lt", "rt", lower="-40 us", upper="40 us", delay="0 us")

#: Per side (key, value, time).
SIDES = tuple([(n % (5 - side), 100 * side + n, 10 * n) for n in range(12)] for side in (1, 2))


@dataclass
class Growing(Inert):
    """A side of which `there` tuples can be read so far; each look cuts by the next of `cuts`.

    `logged`: so many others have logged, which shows if they are asked for.
    """

    there: int = 12
    cuts: list = field(default_factory=list)
    looks: int = 0
    logged: int = 0
    grow: object = lambda feed: None

    def discover(self, *, wait=None):
        self.looks += 1
        self.grow(self)

    def end(self):
        return self.there

    def advance(self, position):
        return min(position + (self.cuts.pop() if self.cuts else 5), self.there)

    def row_groups(self, start, end):
        assert start == end > self.there
        self.there = self.logged
        if end > self.there:
            raise DamagedState("the log is too short")

    def progress(self, position):
        raise AssertionError("the jobs say when a side ends")


@dataclass
class Clock(MemoryWorld):
    """A world whose time passes only while somebody rests; the clock was set by `set_s`."""

    now: float = 1_000.0
    set_s: float = 0.0

    def now_s(self):
        return self.now + self.set_s

    def timer_s(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@dataclass
class Reading(InlineJobs):
    """Reads the tuples of SIDES between two positions; the last one brings the end of its side."""

    fails: object = lambda start: None

    def route(self, frame, plan, start, end):
        self.fails(start)
        tuples = []
        for side in PAIR:
            first, last = (one.get(int(side), 0) for one in (start, end))
            tuples.append((int(side), rows(side, SIDES[side][first:last])))
            tuples += [(int(side), math.inf)] * (last == len(SIDES[side]))
        return super().route([tuples], plan, start, end)


def loop_of(query, trigger=ENDS, feeds=None, stop=lambda: False, rest_s=0.5):
    """A loop; `rests`: how long it has rested, each time."""
    rests = []

    def rest(seconds):
        query.world.sleep(seconds)
        rests.append(seconds)
        return stop()

    feeds = feeds or {0: Growing(), 1: Growing()}
    found = Loop(query.runner, feeds, trigger, query.world, rest, rest_s)
    found.rests = rests
    return found
