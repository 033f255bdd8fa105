"""Sides of which ever more can be read, and a clock that passes while somebody rests."""

from __future__ import annotations

from dataclasses import dataclass, field

from joinengine.model.errors import DamagedState
from joinengine.world.memory import MemoryWorld
from tests.feeding import Inert

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

    def discover(self, *, wait=False):
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
    """A world whose time passes only while somebody rests."""

    now: float = 1_000.0

    def now_s(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
