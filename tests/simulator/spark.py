"""Spark's streaming query over the DataFrames of a driver, and its logs.

Its logs are of one query; several drivers may have such a query on them, as Spark does not know of
one another. Each logs how far a micro-batch goes, hands it over, and logs that it is done once the
loop has taken it; between these steps anything else may happen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from joinengine.driver.loop import HandsOver
from joinengine.state.manifest import Handed

QUERY = "spark"


class SparkFailed(Exception):
    """Spark's own log says that another driver is at work."""


@dataclass
class Logs:
    """Micro-batch -> before which tuple of each side it ends, and who wrote that; what is done."""

    offsets: dict = field(default_factory=lambda: {-1: ((0, 0), "")})
    commits: set = field(default_factory=lambda: {-1})

    def until(self, batch):
        """An older copy, in which `batch` is the last one."""
        older = {number: told for number, told in self.offsets.items() if number <= batch}
        return Logs(older, {number for number in self.commits if number <= batch})

    def end(self, batch):
        """Before which tuple of each side a micro-batch ends."""
        return self.offsets[batch][0]

    def start(self, batch):
        """Where it begins."""
        return self.end(batch - 1)


class SparkQuery(HandsOver):
    """The streaming query of one driver over the sides `handed`, of `sizes` tuples.

    `ends`: when it has handed over all of them.
    """

    def __init__(self, logs, actor, rng, handed, sizes, *, ends):
        self.logs, self._ends = logs, ends
        self._actor, self._rng = actor, rng
        self._handed, self._sizes = handed, sizes
        self._begun = self._is_taken = False
        #: the micro-batch that is under way
        self._batch = None

    def has_more(self):
        return not self._begun or (self._batch is not None and not self._is_taken)

    def has_ended(self):
        return self._ends and self.is_done

    @property
    def is_done(self):
        """Whether all is handed over and logged as done."""
        return self._begun and self._batch is None and self._left() == []

    def go_on(self, take):
        """Its next step; `take(micro-batch, handed)`: that of the loop."""
        if not self._begun:
            self._begin()
        elif self._batch is None:
            if self._left():
                self._cut()
        elif not self._is_taken:
            _, crc = self.logs.offsets[self._batch]
            take(self._batch, Handed(QUERY, self._batch, crc))
            self._is_taken = True
        else:
            self._done()

    def _left(self):
        """The sides that have tuples left."""
        end = self.logs.end(max(self.logs.offsets))
        return [side for side in self._handed if end[side] < self._sizes[side]]

    def _begin(self):
        """It begins with the last micro-batch again, if that is not done."""
        self._actor.step("Spark's logs")
        last = max(self.logs.offsets)
        self._batch = None if last in self.logs.commits else last
        self._begun = True

    def _cut(self):
        """Write into the log how far a micro-batch goes."""
        batch = max(self.logs.commits) + 1
        end, left = list(self.logs.start(batch)), self._left()
        for side in left:
            end[side] = min(end[side] + self._rng.choice([1, 3, 8, 20]), self._sizes[side])
        self._actor.step(f"Spark's log: {batch} goes to {end}")
        if batch in self.logs.offsets:
            raise SparkFailed(f"micro-batch {batch} was begun by another")
        self.logs.offsets[batch] = tuple(end), self._actor.name
        self._batch, self._is_taken = batch, False

    def _done(self):
        self._actor.step(f"Spark's log: {self._batch} is done")
        if self._batch in self.logs.commits:
            raise SparkFailed(f"micro-batch {self._batch} is done already")
        self.logs.commits.add(self._batch)
        self._batch = None
