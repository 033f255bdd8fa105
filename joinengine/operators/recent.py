"""State of operators that judge tuples in the order of event time: the last tuples of each key.

A tuple is *due* when the watermark has passed it: then all tuples that precede it have arrived, in
whatever order. State is the tuples that are not due yet, and of the others as many of each key as
later tuples need. Runs are sorted by key hash and move like those of a join.

Law: under a layout that keeps keys whole, every tuple is due in exactly one batch, and all tuples
of its key that precede it and are still needed are there.
Cost: per due tuple the tuples of its key; runs are rewritten, those of an instance in memory at a
time, when they have doubled.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from joinengine.exchange.blocks import Tuples
from joinengine.exchange.keying import Keying
from joinengine.kernels.comparing import latest_time
from joinengine.kernels.hashing import Words, first_word, key_hash
from joinengine.kernels.probing import Ints, rows_between
from joinengine.model.keys import Side
from joinengine.operators.base import OneInput, OperatorTask, Order
from joinengine.operators.desk import Desk
from joinengine.operators.hot import texts_in
from joinengine.operators.spines import spines_of
from joinengine.state.operator_state import OperatorState
from joinengine.state.run import OpenRun
from joinengine.state.upkeep import Shelf

#: The fact of a task: tuples in [CLOSED, watermark) are due.
CLOSED = "closed"
#: How many tuples of keys with due tuples are gathered at a time, if no key has more.
GATHERED_ROWS = 1 << 17


class InTimeOrder(OneInput):
    """The common answers of operators that judge tuples in the order of event time."""

    __slots__ = ()

    @override
    def is_due(self, state: OperatorState, batch: int, *, quiet: bool) -> bool:
        """Whether tuples may have become due since the last batch."""
        clock, runs = state.clock, state.shelves.state.values()
        if clock.watermark == math.inf and runs:
            return True  # the sources have ended: what is kept for rows to come is dropped
        return clock.watermark > clock.closed and any(
            run.max_time is not None and run.max_time >= clock.closed for run in runs
        )

    def tasks(self, order: Order) -> Sequence[OperatorTask]:
        """The tasks of a batch; none if no tuple arrives, no state moves and no tuple is due."""
        state = order.state
        pending = state.layouts.pending is not None
        if not (order.brings or pending or self.is_due(state, order.batch, quiet=True)):
            return []
        return order.tasks(state.layouts.router.instances, facts={CLOSED: state.clock.closed})


class Timed(NamedTuple):
    """Tuples, with their words and times."""

    columns: pa.RecordBatch
    words: Words
    times: Ints


class Judge(Protocol):
    """What an operator does with due tuples, and which tuples it needs for later ones."""

    @abstractmethod
    def judge(self, tuples: Timed, closed: float) -> None:
        """Show the results of tuples from `closed` on; those of their keys before them are here."""

    @abstractmethod
    def needed(self, tuples: Timed, watermark: float) -> NDArray[np.bool_]:
        """(n,) tuples -> whether each is to be judged, or needed by tuples from `watermark` on."""


@dataclass(frozen=True, slots=True)
class RecentShelf(Shelf):
    """Tuples with the columns of `carried`; the latest of the columns `timed` is their time."""

    name: str
    carried: pa.Schema
    timed: tuple[str, ...]

    @property
    @override
    def label(self) -> str:
        return self.name

    @property
    @override
    def span_us(self) -> int | None:
        """A tuple is needed while too few have followed it."""
        return None

    @override
    def schema(self, side: Side) -> pa.Schema:
        return self.carried

    @override
    def times(self, side: Side, columns: pa.RecordBatch) -> Ints:
        return latest_time(columns, self.timed)

    @override
    def last_needed(self, side: Side, times: Ints) -> Ints:
        """Merges drop nothing."""
        return np.full(len(times), np.iinfo(np.int64).max)


class Recent:
    """The work of one task: it stores what arrives, has due tuples judged, and forgets."""

    def __init__(
        self, task: OperatorTask, desk: Desk, shelf: RecentShelf, keying: Keying, judge: Judge
    ) -> None:
        self._desk = desk
        self._shelf = shelf
        self._keying = keying
        self._judge = judge
        self._closed = task.facts[CLOSED]
        self._watermark = task.header.watermark
        self._reader = desk.reader(task.blocks[Side.LEFT])
        self._keeper = desk.keeper(shelf, version=task.stored.versions[0])
        self._spines = spines_of(task, self._keeper, shelf, desk)

    def work_at(self, instance: int) -> None:
        """Store arrived tuples, judge due ones, forget those that no later tuple needs."""
        with self._desk.at(instance) as report:
            with self._desk.timed("open"):
                spine = self._spines.at(instance, Side.LEFT)
            with self._desk.timed("sort"):
                fresh = self._arrived(instance)
            stored = np.empty(0, np.uint64)
            if fresh is not None:
                report.received[Side.LEFT] = report.stored[Side.LEFT] = fresh.run.rows
                spine.append(fresh)
                stored = fresh.words
            with self._desk.timed("probe"):
                for hashes in self._keys_due(spine):
                    self._judge.judge(self._gathered(spine, hashes), self._closed)
            with self._desk.timed("merge"):
                kept = self._forget(instance, spine)
            with self._desk.timed("count"):
                # The values of keys are those of all that was here, also if all of it leaves.
                texts = texts_in(self._keying, [spine])
                self._desk.count_keys(instance, [stored], [kept], texts)

    def _arrived(self, instance: int) -> OpenRun | None:
        slices = self._reader.slices(instance)
        if not slices:
            return None
        words, _, columns = Tuples.sorted(slices)
        return self._keeper.seal(instance, Side.LEFT, words, columns)

    def _keys_due(self, spine: Sequence[OpenRun]) -> Iterator[Words]:
        """The key hashes with tuples that are due, some at a time."""
        due = [np.empty(0, np.uint64)]
        for run in spine:
            assert run.run.min_time is not None
            assert run.run.max_time is not None
            if run.run.max_time < self._closed or run.run.min_time >= self._watermark:
                continue
            rows = run.live_rows()
            times = self._shelf.times(Side.LEFT, run.columns)[rows]
            due.append(key_hash(run.words[rows[(times >= self._closed) & self._is_over(times)]]))
        hashes = np.unique(np.concatenate(due))
        if not len(hashes):
            return
        lower, upper = _words_of(hashes)
        counts = np.zeros(len(hashes), np.int64)
        for run in spine:
            counts += np.searchsorted(run.words, upper - np.uint64(1), side="right")
            counts -= np.searchsorted(run.words, lower)
        parts = np.cumsum(counts) // GATHERED_ROWS
        yield from np.split(hashes, np.flatnonzero(np.diff(parts)) + 1)

    def _gathered(self, spine: Sequence[OpenRun], hashes: Words) -> Timed:
        """The tuples of some keys that the watermark has passed."""
        lower, upper = _words_of(hashes)
        rows = [rows_between(run.words, lower, upper, run.gone) for run in spine]
        tuples = self._taken(spine, rows)
        over = self._is_over(tuples.times)
        return Timed(tuples.columns.filter(pa.array(over)), tuples.words[over], tuples.times[over])

    def _taken(self, spine: Sequence[OpenRun], rows_by_run: Sequence[Ints]) -> Timed:
        chosen = list(zip(spine, rows_by_run, strict=True))
        columns = pa.concat_batches([run.columns.take(pa.array(rows)) for run, rows in chosen])
        words = np.concatenate([run.words[rows] for run, rows in chosen])
        return Timed(columns, words, self._shelf.times(Side.LEFT, columns))

    def _forget(self, instance: int, spine: Sequence[OpenRun]) -> Sequence[OpenRun]:
        """Rewrite the runs if they have doubled, without the tuples that are not needed."""
        if self._watermark == np.inf:
            for run in spine:
                self._keeper.forget(run.run)
            self._keeper.expired(sum(run.run.live for run in spine))
            return []
        live = [run.run.live for run in spine]
        if len(spine) < 2 or sum(live) < 2 * max(live):
            return spine
        tuples = self._taken(spine, [run.live_rows() for run in spine])
        kept = np.flatnonzero(self._judge.needed(tuples, self._watermark))
        self._keeper.expired(len(tuples.words) - len(kept))
        for run in spine:
            self._keeper.forget(run.run)
        if not len(kept):
            return []
        order = kept[np.argsort(tuples.words[kept], kind="stable")]
        columns = tuples.columns.take(pa.array(order))
        return [self._keeper.seal(instance, Side.LEFT, tuples.words[order], columns)]

    def _is_over(self, times: Ints) -> NDArray[np.bool_]:
        return times < self._watermark


def _words_of(hashes: Words) -> tuple[Words, Words]:
    """(n,) key hashes -> the first word of each, and that after its last one (0: 2^64)."""
    return first_word(hashes), first_word(hashes + np.uint64(1))
