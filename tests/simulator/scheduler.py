"""Actors that take turns: threads of which one runs at a time, as a seeded scheduler says.

Why threads: the engine's driver is a straight program, and is to be stopped at any of its steps
without being written for it. A step is whatever it asks of its world; there an actor may be held
for as long as others take, or be killed.

Law: everything that happens follows from the seed.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections import deque

#: How many steps an actor takes before another one may have its turn.
TURNS = (1, 1, 2, 3, 5, 8, 20, 60, 200)
#: Virtual seconds that a step takes.
STEP_S = 1e-3


class Killed(BaseException):
    """The process has been killed: whatever it does on its way out happens to nobody."""


class Stuck(AssertionError):
    """Actors go on without end."""


class Actor:
    """A process: a program with a name, and a clock that may be wrong by `skew_s`."""

    def __init__(self, scheduler, name, program):
        self.scheduler, self.name, self._program = scheduler, name, program
        self.turn = threading.Semaphore(0)
        self.steps_left = 0
        self.wakes_s = 0.0
        self.skew_s = 0.0
        self.doomed = self.ended = False
        self.error = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self):
        self._thread.start()

    def join(self):
        """Wait until the thread of an actor that has ended is gone."""
        self._thread.join()

    def _run(self):
        self.turn.acquire()
        try:
            if not self.doomed:
                self._program(self)
        except Killed:
            pass
        except BaseException as error:  # whoever looks at the actor judges it
            self.error = error
        self.ended = True
        self.scheduler.note(self, f"ends: {describe(self.error)}")
        self.scheduler.back.release()

    def step(self, what):
        """Take note of a step that comes next, and perhaps let others go first."""
        self._check()
        self.scheduler.note(self, what)
        self.steps_left -= 1
        if self.steps_left <= 0 or self.wakes_s > self.scheduler.now_s:
            self.scheduler.back.release()
            self.turn.acquire()
            self._check()

    def sleep(self, seconds):
        """Let virtual time pass."""
        self._check()
        self.wakes_s = self.scheduler.now_s + seconds
        self.step(f"sleeps {seconds:.3g} s")

    def die(self):
        """End at once, if this actor is the one that runs."""
        self.doomed = True
        raise Killed

    def _check(self):
        if self.doomed:
            raise Killed


class Scheduler:
    """Chooses who takes the next steps. `trace` keeps the last steps, `digest` is of all."""

    def __init__(self, seed, most_steps=200_000):
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.back = threading.Semaphore(0)
        self.actors = []
        self.trace = deque(maxlen=400)
        self.digest = 0
        self.steps = 0
        self._most_steps = most_steps
        self._numbers = 0

    def number(self):
        """A number that no call has returned before."""
        self._numbers += 1
        return self._numbers

    def spawn(self, name, program):
        """A new actor; its turn comes later."""
        actor = Actor(self, name, program)
        self.actors.append(actor)
        actor.start()
        return actor

    def note(self, actor, what):
        self.steps += 1
        self.now_s += STEP_S
        line = f"{self.now_s:9.3f} {actor.name}: {what}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        self.trace.append(line)

    def run(self, between):
        """Let actors take turns until all have ended; `between()` is called between turns."""
        try:
            while True:
                between()
                alive = [actor for actor in self.actors if not actor.ended]
                if not alive:
                    return
                if self.steps > self._most_steps:
                    raise Stuck(f"no end after {self.steps} steps")
                ready = [actor for actor in alive if actor.wakes_s <= self.now_s or actor.doomed]
                if not ready:
                    self.now_s = min(actor.wakes_s for actor in alive)
                    continue
                self._give_turn(self.rng.choice(ready))
        finally:
            self._end_all()

    def _give_turn(self, actor):
        actor.steps_left = self.rng.choice(TURNS)
        actor.turn.release()
        self.back.acquire()
        if actor.ended:
            actor.join()
            self.actors.remove(actor)

    def _end_all(self):
        """Leave no thread behind."""
        for actor in list(self.actors):
            actor.doomed = True
            while not actor.ended:
                self._give_turn(actor)


def describe(error):
    """An error on one line."""
    return "well" if error is None else f"{type(error).__name__}: {error}"[:300]
