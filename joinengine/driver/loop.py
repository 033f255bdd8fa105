"""The loop: it says when a batch is due and how far it goes, until the query ends.

Why our own: the manifest of a batch makes it happen once, so nobody need write down before how far
it will go. A batch begins where the last manifest ends, goes as far as its feeds say at that
moment, and has not happened until its manifest is there; another attempt may go elsewhere
(docs/decisions/0024). So between two batches there is nothing but a look at the folders.

A *tick* is a batch that is due although nothing is new, because state may leave
(joinengine.driver.clock).

Law: every batch begins at the position of the manifest before it, whoever has committed that. Under
a trigger that ends, no batch goes beyond what was there when the loop began, unless another driver
has gone further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Condition

from joinengine.driver.batch import BatchRunner
from joinengine.exchange.feeds import Feed
from joinengine.state.manifest import Position
from joinengine.world.world import World

#: A loop that has nothing to do looks for new files so often, in seconds, unless the user says how
#: often: in folders, and in object stores, where a look costs money.
LOCAL_REST_S, REMOTE_REST_S = 0.01, 1.0


@dataclass(frozen=True, slots=True)
class Trigger:
    """When batches start.

    `every_s`: at multiples of so many seconds; 0: as soon as something is new. `once`: one batch.
    `finite`: as many as it takes to read what is there when the loop begins.
    """

    every_s: float = 0.0
    once: bool = False
    finite: bool = False


class Loop:
    """The batches of one run of a query.

    `feeds`: source -> its feed, all of which the runner's jobs read. `rest(seconds)`: lets time
    pass; True: the loop is to end. `rest_s`: how long it rests before it looks again.
    """

    def __init__(
        self,
        runner: BatchRunner,
        feeds: Mapping[int, Feed],
        trigger: Trigger,
        world: World,
        rest: Callable[[float], bool],
        rest_s: float = LOCAL_REST_S,
    ) -> None:
        self._runner = runner
        self._feeds = feeds
        self._trigger = trigger
        self._world = world
        self._rest = rest
        self._rest_s = rest_s
        self._most: Position | None = None
        #: when a batch is due although nothing is new; None: never
        self._due_s: float | None = None
        #: how long the last look took
        self._look_s = 0.0
        self._waiting = Condition()
        #: how often somebody has asked to be told when nothing is left to do, how often the running
        #: look knows of, and how often was answered
        self._asked = self._answered = 0
        #: whether a batch runs, and whether nothing more will
        self.is_busy = self.has_ended = False

    def run(self) -> None:
        """Run batches until the trigger ends, `rest` says so, or one fails."""
        try:
            if self._trigger.finite:
                for feed in self._feeds.values():
                    feed.discover(wait=True)
                self._most = {source: feed.end() for source, feed in self._feeds.items()}
            self._note_tick(self._runner.manifest.clock_s)
            while not self._rest(0.0):
                next_s, asked = self._next_s(), self._asked
                end = self._next()
                if end is not None:
                    self.is_busy = True
                    self._runner.run(end)
                    self._tidy()
                    self.is_busy = False
                    self._note_tick(self._world.now_s())
                else:
                    self._answer(asked)
                    if self._trigger.finite:
                        return
                    next_s = max(next_s, self._rested_s())
                if self._trigger.once:
                    return
                left_s = next_s - self._world.now_s()
                if left_s > 0 and self._rest(left_s):
                    return
        finally:
            for feed in self._feeds.values():
                feed.close()
            with self._waiting:
                self.is_busy, self.has_ended = False, True
                self._waiting.notify_all()

    def process_all(self) -> None:
        """Wait until what is there now is processed, or the loop has ended."""
        with self._waiting:
            self._asked += 1
            mine = self._asked
            self._waiting.wait_for(lambda: self.has_ended or self._answered >= mine)

    def _next(self) -> Position | None:
        """Where the batch ends that is due; None: none is."""
        self._runner.check_alone()
        start = self._runner.position
        if self._most is None:
            self._look(start)
        end = {source: self._end(source, start.get(source, 0)) for source in self._feeds}
        if any(at > start.get(source, 0) for source, at in end.items()):
            return end
        is_due = self._due_s is not None and self._due_s <= self._world.now_s()
        return end if is_due else None

    def _look(self, start: Position) -> None:
        """Look for new files, in the feeds that the next batch would read to their end.

        Where nothing tells what is new, all names are read for that; so one of many files is looked
        at for half of the time.
        """
        began_s = self._world.timer_s()
        for source, feed in self._feeds.items():
            if feed.advance(start.get(source, 0)) >= feed.end():
                feed.discover()
        self._look_s = self._world.timer_s() - began_s

    def _tidy(self) -> None:
        """Let feeds fold their logs.

        Not before a batch of this driver's own: until then an older driver, perhaps of a version
        that knows no folds, may commit what it has read of a log.
        """
        if self._runner.manifest.generation == self._runner.generation:
            for feed in self._feeds.values():
                feed.tidy()

    def _note_tick(self, now_s: float) -> None:
        """Note when a tick is due after a batch that was over at `now_s`."""
        due_s = self._runner.tick_due(now_s)
        # What is due at once stays so, even if the clock is set back meanwhile.
        self._due_s = -math.inf if due_s is not None and due_s <= now_s else due_s

    def _end(self, source: int, start: int) -> int:
        """Where a batch that begins at `start` ends in a source.

        Raises DamagedState if the source's log does not reach so far.
        """
        feed = self._feeds[source]
        if start > feed.end():
            feed.row_groups(start, start)  # which another driver may have logged
        end = feed.advance(start)
        return max(end if self._most is None else min(end, self._most[source]), start)

    def _answer(self, asked: int) -> None:
        """Tell those who had asked before the last look that nothing is left to do."""
        with self._waiting:
            self._answered = asked
            self._waiting.notify_all()

    def _rested_s(self) -> float:
        """When to look again, in seconds since the epoch: after a rest, or for the next tick."""
        now_s = self._world.now_s()
        rested_s = now_s + max(self._rest_s, self._look_s)
        return rested_s if self._due_s is None else min(rested_s, max(self._due_s, now_s))

    def _next_s(self) -> float:
        """When the batch after one that may start now may start, in seconds since the epoch."""
        every_s = self._trigger.every_s
        return (self._world.now_s() // every_s + 1) * every_s if every_s else 0.0
