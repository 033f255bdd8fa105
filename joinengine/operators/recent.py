"""The state of operators that judge tuples in the order of event time: the last tuples of each key.

A tuple is *due* when the watermark has passed it: then all tuples that precede it have arrived, in
whatever order. The state holds the tuples that are not due yet, and, of each key, the past tuples
that later ones need. Runs are sorted by word and move like those of a join.

Law: under a layout that keeps keys whole, every tuple is due in exactly one batch, together with
all tuples of its key that precede it and are still needed.
Cost: the tuples of a key are read again in each batch in which any of them is due, in the order of
time, a bounded number at a time.
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

from joinengine.exchange.blocks import PIECE_PART
from joinengine.exchange.keying import Keying
from joinengine.kernels.comparing import latest_time
from joinengine.kernels.hashing import Words, first_word, key_hash
from joinengine.kernels.probing import Ints, rows_between
from joinengine.model.keys import Side
from joinengine.operators.base import OneInput, OperatorTask, Order
from joinengine.operators.desk import MERGE_ROWS, Desk
from joinengine.operators.hot import texts_in
from joinengine.operators.spines import spines_of
from joinengine.state.operator_state import OperatorState
from joinengine.state.run import OpenRun
from joinengine.state.run_file import Page
from joinengine.state.upkeep import Shelf

#: The fact of a task: tuples in [CLOSED, watermark) are due.
CLOSED = "closed"
#: How many tuples of keys with due tuples are gathered at a time, unless one key has more.
GATHERED_ROWS = 1 << 17
#: How many tuples of one key are gathered at a time.
PARTED_ROWS = 1 << 19


class InTimeOrder(OneInput):
    """The common answers to the driver of operators that judge tuples in time order."""

    __slots__ = ()

    @override
    def is_due(self, state: OperatorState, batch: int, *, quiet: bool) -> bool:
        """Whether tuples may have become due since the last batch."""
        clock, runs = state.clock, state.shelves.state.values()
        if clock.watermark == math.inf and runs:
            return True  # the sources have ended: tuples kept for later ones are dropped
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
    """An operator's work on due tuples, and its choice of tuples that later ones need."""

    @abstractmethod
    def judge(self, tuples: Timed, closed: float) -> None:
        """Emit the results of tuples from `closed` on; `tuples` has their predecessors, too."""

    @abstractmethod
    def needed(self, tuples: Timed, watermark: float) -> NDArray[np.bool_]:
        """(n,) tuples -> (n,) whether each is from `watermark` on, or needed by tuples that are."""


@dataclass(frozen=True, slots=True)
class RecentShelf(Shelf):
    """Tuples with the columns of `carried`; the latest of the columns `timed` is their time."""

    name: str
    carried: pa.Schema
    timed: tuple[str, ...]
    judge: Judge

    @property
    @override
    def label(self) -> str:
        return self.name

    @property
    @override
    def span_us(self) -> int | None:
        """None: a tuple is needed until enough others of its key have followed, at any time."""
        return None

    @override
    def schema(self, side: Side) -> pa.Schema:
        return self.carried

    @override
    def times(self, side: Side, columns: pa.RecordBatch) -> Ints:
        return latest_time(columns, self.timed)

    @override
    def last_needed(self, side: Side, times: Ints) -> Ints:
        """(n,) the greatest time: tuples do not expire by time, but by others of their key."""
        return np.full(len(times), np.iinfo(np.int64).max)

    @override
    def reduced(
        self, side: Side, page: Page, spines: Ints, watermark: float
    ) -> tuple[pa.RecordBatch, NDArray[np.bool_]] | None:
        """Drops tuples that are not needed; valid even if `page` lacks some tuples of a key."""
        tuples = Timed(page.columns, page.words, self.times(side, page.columns))
        kept = self.judge.needed(tuples, watermark)
        return None if kept.all() else (page.columns, kept)


class Recent:
    """The work of one task: it stores what arrives, has due tuples judged, and forgets."""

    def __init__(self, task: OperatorTask, desk: Desk, shelf: RecentShelf, keying: Keying) -> None:
        self._desk = desk
        self._shelf = shelf
        self._keying = keying
        self._closed = task.facts[CLOSED]
        self._watermark = task.header.watermark
        self._piece_bytes = max(task.memory_bytes // PIECE_PART, 1)
        #: bytes of tuples that are judged at a time: DuckDB makes several copies of them
        self._most_bytes = max(task.memory_bytes // 16, 1)
        self._reader = desk.reader(task.blocks[Side.LEFT])
        version = task.stored.versions[0]
        self._keeper = desk.keeper(shelf, version=version, merge_rows=MERGE_ROWS)
        self._spines = spines_of(task, self._keeper, shelf, desk)

    def work_at(self, instance: int) -> None:
        """Store arrived tuples, judge due ones, and forget those that no later tuple needs."""
        with self._desk.at(instance) as report:
            with self._desk.timed("open"):
                spine = self._spines.at(instance, Side.LEFT)
            stored = [np.empty(0, np.uint64)]
            with self._desk.timed("sort"):
                for tuples, last in self._reader.pieces(instance, self._piece_bytes):
                    words, _, columns = tuples
                    spine.append(
                        self._keeper.seal(instance, Side.LEFT, words, columns, own_file=not last)
                    )
                    stored.append(words)
            words = np.sort(np.concatenate(stored))
            report.received[Side.LEFT] = report.stored[Side.LEFT] = len(words)
            with self._desk.timed("probe"):
                for hashes in self._keys_due(spine):
                    self._judge_keys(spine, hashes)
            with self._desk.timed("merge"):
                kept = self._forget(spine)
            with self._desk.timed("count"):
                # Look for the values of keys in all tuples, including those just forgotten.
                texts = texts_in(self._keying, [spine])
                self._desk.count_keys(instance, [words], [kept], texts)

    def _keys_due(self, spine: Sequence[OpenRun]) -> Iterator[Words]:
        """The key hashes with due tuples, some at a time."""
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
        parts = np.zeros(len(hashes))
        for run in spine:
            counts = np.searchsorted(run.words, upper - np.uint64(1), side="right")
            counts -= np.searchsorted(run.words, lower)
            width = run.run.size_bytes / run.run.rows
            parts += counts * max(1 / GATHERED_ROWS, width / self._most_bytes)
        numbers = np.cumsum(parts).astype(np.int64)
        yield from np.split(hashes, np.flatnonzero(np.diff(numbers)) + 1)

    def _judge_keys(self, spine: Sequence[OpenRun], hashes: Words) -> None:
        """Judge the due tuples of some keys; if they are many, one stretch of time at a time."""
        lower, upper = _words_of(hashes)
        rows = [rows_between(run.words, lower, upper, run.gone) for run in spine]
        times = [
            self._shelf.times(Side.LEFT, run.columns)[own]
            for run, own in zip(spine, rows, strict=True)
        ]
        before, start = None, -math.inf
        for end in [*self._ends(spine, times), self._watermark]:
            chosen = [
                own[(of_run >= start) & (of_run < end)]
                for own, of_run in zip(rows, times, strict=True)
            ]
            tuples = self._taken(spine, chosen, before)
            if not len(tuples.words):
                continue
            if end > self._closed:
                self._shelf.judge.judge(tuples, max(start, self._closed))
            if end < self._watermark:
                before = _only(tuples, self._shelf.judge.needed(tuples, end))
            start = end

    def _ends(self, spine: Sequence[OpenRun], times: Sequence[Ints]) -> list[int]:
        """The times that cut the tuples below the watermark into parts that fit; empty: all fit."""
        all_times = np.concatenate(times)
        all_times = all_times[self._is_over(all_times)]
        rows = sum(run.run.rows for run in spine)
        size = sum(run.run.size_bytes for run in spine) * len(all_times) // max(rows, 1)
        parts = max(len(all_times) // PARTED_ROWS, size // self._most_bytes)
        if parts < 2:
            return []
        all_times = np.sort(all_times)
        ends: list[int] = np.unique(
            all_times[np.arange(1, parts) * len(all_times) // parts]
        ).tolist()
        return ends

    def _taken(
        self, spine: Sequence[OpenRun], rows_by_run: Sequence[Ints], before: Timed | None
    ) -> Timed:
        """The tuples `before`, and then rows of runs."""
        chosen = list(zip(spine, rows_by_run, strict=True))
        parts = [run.columns.take(pa.array(rows)) for run, rows in chosen]
        words = [run.words[rows] for run, rows in chosen]
        if before is not None:
            parts, words = [before.columns, *parts], [before.words, *words]
        columns = pa.concat_batches(parts)
        return Timed(columns, np.concatenate(words), self._shelf.times(Side.LEFT, columns))

    def _forget(self, spine: Sequence[OpenRun]) -> Sequence[OpenRun]:
        """Merge runs without the tuples that are not needed; at the end of the query, drop all."""
        if self._watermark == np.inf:
            for run in spine:
                self._keeper.forget(run.run)
            self._keeper.expired(sum(run.run.live for run in spine))
            return []
        return self._keeper.merge(spine)

    def _is_over(self, times: Ints) -> NDArray[np.bool_]:
        return times < self._watermark


def _only(tuples: Timed, kept: NDArray[np.bool_]) -> Timed:
    """The tuples for which `kept` is true."""
    return Timed(tuples.columns.filter(pa.array(kept)), tuples.words[kept], tuples.times[kept])


def _words_of(hashes: Words) -> tuple[Words, Words]:
    """(n,) key hashes -> (n,) first words, and (n,) the word after the last (0 means 2^64)."""
    return first_word(hashes), first_word(hashes + np.uint64(1))
