"""The loop: it decides when a batch is due and how far it reads, until the query ends.

Why our own: the manifest of a batch makes it happen exactly once, so no log has to say in advance
how far the batch will read. A batch begins where the last manifest ends, and reads as far as its
feeds go at that moment. It has not happened until its manifest exists, and another attempt may read
further (docs/decisions/0024). So between two batches the loop only looks at the folders.

A *tick* is a batch that is due although nothing is new, because state may expire
(`joinengine.driver.clock`).

Streaming DataFrames are a source of the loop: a streaming query of Spark's reads them, and hands
over each of its micro-batches, with a number. The thread that hands over runs the next batch, which
also reads what is new in the feeds. Its call returns once a manifest holds that number, so Spark
commits nothing that is not done. One batch runs at a time, and a waiting micro-batch runs first.
While Spark has something to hand over, the feeds wait; otherwise Spark's side could seem idle.

A query may have to read some sources *first* (`QuerySpec.first`): nothing else is read, and nothing
is handed over, until a batch begins where these sources ended when the loop began. Instead of that
end, the loop may await a later place (`Feed.awaited`), or an event time in the manifest
(`Operator.until_us`).

Law: every batch begins at the position of the previous manifest, whichever driver committed it.
Under a finite trigger, no batch reads beyond what was there when the loop began, unless another
driver has gone further.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Condition, Thread, current_thread
from typing import Any, Protocol

from joinengine.driver.batch import BatchRunner
from joinengine.driver.clock import is_lagging
from joinengine.sources.feeds import LOCAL_REST_S, Feed
from joinengine.sources.places import Place
from joinengine.state.manifest import Handed, Position
from joinengine.world.world import World


@dataclass(frozen=True, slots=True)
class Trigger:
    """When batches start.

    `every_s`: at multiples of so many seconds; 0: as soon as something is new. `once`: one batch.
    `finite`: as many batches as it takes to read what is there when the loop begins.
    """

    every_s: float = 0.0
    once: bool = False
    finite: bool = False


class HandsOver(Protocol):
    """The part that hands micro-batches over to the loop, as the loop sees it."""

    @abstractmethod
    def has_more(self) -> bool:
        """Whether it has data to hand over soon, or may have found some."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Whether it hands nothing over any more. Raises the error that ended it, if any."""


class Over(Exception):
    """A micro-batch was handed over after the loop had ended."""


class Loop:
    """The batches of one run of a query.

    `feeds`: source -> its feed; the runner's jobs read them all. `rest(seconds)`: waits, and
    returns True if the loop is to end. `rest_s`: seconds of rest before the next look. `frames`:
    hands over the micro-batches of streaming DataFrames; None: there are none.
    """

    def __init__(
        self,
        runner: BatchRunner,
        feeds: Mapping[int, Feed],
        trigger: Trigger,
        world: World,
        rest: Callable[[float], bool],
        rest_s: float = LOCAL_REST_S,
        frames: HandsOver | None = None,
    ) -> None:
        self._runner = runner
        self._feeds = feeds
        self._trigger = trigger
        self._world = world
        self._rest = rest
        self._rest_s = rest_s
        self._frames = frames
        self._most: Position | None = None
        #: source that is read first -> the place that it must reach, fixed when the loop begins
        self._loaded = dict[int, Place]()
        #: when a batch is due although nothing is new, by the timer of the world; None: never
        self._due_s: float | None = None
        #: how long the last look took
        self._look_s = 0.0
        self._waiting = Condition()
        #: how many calls of `process_all` there were, and how many of them may return
        self._asked = self._answered = 0
        #: whether batches may begin, whether one runs, and whether nothing more will
        self._has_begun = self.is_busy = self.has_ended = False
        #: the thread whose turn it is; whether a micro-batch waits for a turn; whether one had one
        self._holder: Thread | None = None
        self._is_offered = self._has_taken = False

    def run(self) -> None:
        """Run batches until the trigger ends, `rest` says so, or one fails."""
        try:
            self._begin()
            while not self._rest(0.0):
                next_s, asked = self._next_s(), self._asked
                # Ask before the look: the last micro-batch may have left something to do.
                frames_over = self._frames is None or self._frames.has_ended()
                has_run = self._may_run(frames_over) and self._run_next(asked)
                if frames_over and self._is_over(has_run):
                    return
                if not has_run:
                    next_s = max(0.0 if has_run is None else next_s, self._rested_s())
                left_s = next_s - self._world.now_s()
                if self._trigger.every_s:  # if the clock was set back, `next_s` is too far ahead
                    left_s = min(left_s, self._trigger.every_s)
                if left_s > 0 and self._rest(left_s):
                    return
        finally:
            with self._waiting:
                self.has_ended = True
                self._waiting.notify_all()
                self._waiting.wait_for(lambda: self._holder is None)
            with ExitStack() as closing:  # closes each, even if another fails
                closing.callback(self._runner.delivery.sink.close)
                for feed in self._feeds.values():
                    closing.callback(feed.close)

    def take(self, frame: Any, handed: Handed) -> None:
        """Run the next batch with a micro-batch in it, on the calling thread.

        On return, a manifest holds the micro-batch. Raises Over if the loop has ended.
        """
        with self._turn(is_offered=True):
            self.is_busy = self._has_taken = True
            self._runner.take(frame, handed, self._ends_of_feeds)
            self._tidy()
            self._note_tick(self._world.now_s())

    @property
    def is_here(self) -> bool:
        """Whether the calling thread runs a batch."""
        return self._holder is current_thread()

    def _may_run(self, frames_over: bool) -> bool:
        """Whether a batch without a micro-batch may run: not if `once` and a micro-batch is due."""
        return not self._trigger.once or (frames_over and not self._has_taken)

    def _is_over(self, has_run: bool | None) -> bool:
        """Whether no batch follows, given that no micro-batch does; `has_run`: as in `run`."""
        if self._trigger.finite:
            return has_run is False
        return self._trigger.once or self._frames is not None  # Spark's query was stopped

    def _begin(self) -> None:
        """Fix how far a finite trigger reads, and which places sources must reach first."""
        if self._trigger.finite:
            for feed in self._feeds.values():
                feed.discover(wait=self._rest)
            self._most = {source: feed.end() for source, feed in self._feeds.items()}
        for source in self._runner.query.first:
            self._feeds[source].discover(wait=self._rest)
            self._loaded[source] = self._feeds[source].awaited()
        self._note_tick(min(self._runner.manifest.clock_s, self._world.now_s()))
        with self._waiting:
            self._has_begun = True
            self._waiting.notify_all()

    def _run_next(self, asked: int) -> bool | None:
        """Run the batch that is due. False: none is due; None: it has to wait for a micro-batch."""
        with self._turn():
            end = self._next()
            if end is None:
                self._answer(asked)
                return False
            if self._frames is not None and not self._loads and self._frames.has_more():
                return None
            handed = None if self._frames is None else self._runner.manifest.handed
            self.is_busy = True
            self._runner.run(end, handed)
            self._tidy()
            self._note_tick(self._world.now_s())
            return True

    @contextmanager
    def _turn(self, *, is_offered: bool = False) -> Iterator[None]:
        """Run the block alone, when its turn comes. `is_offered`: it runs a micro-batch.

        Raises Over if the loop has ended.
        """
        with self._waiting:
            self._is_offered = self._is_offered or is_offered
            self._waiting.wait_for(lambda: self.has_ended or self._is_free(is_offered=is_offered))
            if self.has_ended:
                raise Over("the query has ended")
            self._holder = current_thread()
        try:
            yield
        finally:
            with self._waiting:
                self._holder, self.is_busy = None, False
                self._is_offered = self._is_offered and not is_offered
                self._waiting.notify_all()

    def _is_free(self, *, is_offered: bool) -> bool:
        if not self._has_begun or self._holder is not None:
            return False
        return not self._loads if is_offered else self._loads or not self._is_offered

    @property
    def _loads(self) -> bool:
        """Whether sources that are read first have not yet been read to their places."""
        start = self._runner.position if self._loaded else {}
        return is_lagging(self._runner.query, self._runner.manifest) or any(
            self._feeds[source].is_beyond(end, self._start(source, start))
            for source, end in self._loaded.items()
        )

    @property
    def missing(self) -> list[int]:
        """The sources that are read first and have not yet grown to their awaited places."""
        return [
            source
            for source, end in self._loaded.items()
            if self._feeds[source].is_beyond(end, self._feeds[source].end())
        ]

    def process_all(self) -> None:
        """Wait until all present data is processed, or the loop has ended."""
        with self._waiting:
            self._asked += 1
            mine = self._asked
            self._waiting.wait_for(lambda: self.has_ended or self._answered >= mine)

    def _next(self) -> Position | None:
        """Where the due batch ends; None: no batch is due."""
        self._runner.check_alone()
        end, start = self._ends_of_feeds(), self._runner.position
        if any(feed.is_beyond(end[n], self._start(n, start)) for n, feed in self._feeds.items()):
            return end
        is_due = self._due_s is not None and self._due_s <= self._world.timer_s()
        return end if is_due else None

    def _ends_of_feeds(self) -> Position:
        """How far the next batch reads in each source."""
        start = self._runner.position
        if self._most is None:
            self._look(start)
        read = self._loaded if self._loads else self._feeds
        return {
            source: self._end(source, begin) if source in read else begin
            for source, begin in (
                (feed_begin, self._start(feed_begin, start)) for feed_begin in self._feeds
            )
        }

    def _start(self, source: int, start: Position) -> Place:
        """Where a batch begins in a source."""
        return start[source] if source in start else self._feeds[source].begin()

    def _look(self, start: Position) -> None:
        """Look for new files, in the feeds that the next batch would read to their end.

        `_look_s` becomes the seconds that this took: a feed without notices reads all names. The
        loop rests at least as long, so it spends at most half of its idle time on looks.
        """
        began_s = self._world.timer_s()
        for source, feed in self._feeds.items():
            if not feed.is_beyond(feed.end(), feed.advance(self._start(source, start))):
                feed.discover()
        self._look_s = self._world.timer_s() - began_s

    def _tidy(self) -> None:
        """Let feeds fold their logs.

        Only after this driver has committed a batch: until then an older driver may commit what it
        has read of a log, and its version may not know folds.
        """
        if self._runner.manifest.generation == self._runner.generation:
            for feed in self._feeds.values():
                feed.tidy()

    def _note_tick(self, now_s: float) -> None:
        """Note when a tick is due after a batch that ended at `now_s`."""
        due_s = self._runner.tick_due(now_s)
        if due_s is not None:  # by the timer, so that it does not matter if the clock is set
            left_s = -math.inf if due_s <= now_s else due_s - self._world.now_s()
            due_s = self._world.timer_s() + left_s
        self._due_s = due_s

    def _end(self, source: int, start: Place) -> Place:
        """Where a batch that begins at `start` ends in a source.

        Raises DamagedState if the source's log does not reach `start`.
        """
        feed = self._feeds[source]
        feed.check_reaches(start)
        end = feed.advance(start)
        if self._most is not None:
            end = feed.earlier(end, self._most[source])
        place: Place = feed.later(end, start)
        return place

    def _answer(self, asked: int) -> None:
        """Let the first `asked` calls of `process_all` return: nothing is left to do."""
        with self._waiting:
            self._answered = asked
            self._waiting.notify_all()

    def _rested_s(self) -> float:
        """When to look again, in seconds since the epoch: after a rest, or for the next tick."""
        now_s = self._world.now_s()
        rest_s = max(self._rest_s, self._look_s)
        due_s = math.inf if self._due_s is None else self._due_s - self._world.timer_s()
        return now_s + min(rest_s, max(due_s, 0.0))

    def _next_s(self) -> float:
        """The earliest start of the batch after one that starts now, in seconds since the epoch."""
        every_s = self._trigger.every_s
        return (self._world.now_s() // every_s + 1) * every_s if every_s else 0.0
