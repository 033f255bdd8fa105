"""Watchers: keep tuples until it is known whether they match (outer, semi and anti joins).

Why: if a key is split, a tuple meets its partners at several instances, and none of these knows
whether another one has found a partner. So each tuple of a watched side also goes to a *watcher*,
which keeps it until no partner can come any more. An instance that finds a pair leaves a *mark*,
the number of the watched tuple. The watchers read the marks of a batch in the next batch.

How: only the number of a tuple decides its watcher. So watchers are loaded evenly, whatever the
keys are, and changes of the layout do not affect them. A tuple has one *entry*; under sliding
windows, it has an entry for each window that holds it, and each entry has its own number.

Law: an entry is judged once, after every mark that can concern it. An entry is judged in batch b if
no partner at or above the watermark w_b can match it. All tuples of batch b are at or above w_b, so
the last mark was made in batch b - 1 at the latest, and has been read.
Cost: one more copy of a watched tuple; per batch and instance, one mark for each watched tuple that
met a partner, or several if a task cannot hold all marks at once. Judging looks only at the due
entries, which are at the head of each run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.exchange.task_results import Results
from joinengine.kernels.comparing import EARLIEST, latest_time, no_time
from joinengine.kernels.hashing import Words, fixed_width
from joinengine.kernels.probing import Ints, expand_ranges, rows_among, rows_between
from joinengine.kernels.watch_numbers import in_order, watcher_of, word_of_time
from joinengine.model.keys import Side
from joinengine.model.query import WINDOW_START, JoinType
from joinengine.model.windows import Sliding
from joinengine.operators.base import OperatorTask
from joinengine.operators.desk import Desk
from joinengine.operators.join.join_spec import JoinSpec
from joinengine.operators.join.watch_shelf import CLOSES, WatchShelf, closing_of
from joinengine.state.keeper import Keeper
from joinengine.state.operator_state import PENDING
from joinengine.state.run import OpenRun, Run

#: The most entries that are kept or judged together.
ENTRIES = 1 << 18
#: The most marks that a task holds, and the bytes of one: all fit into an eighth of its memory.
MARKS, MARK_BYTES = 1 << 20, 64
_NEVER = np.iinfo(np.int64).max
#: Shelves of watchers beside PENDING: the marks of the last batch, and the marks read before.
UNREAD, SEEN = "unread", "seen"
#: Facts of a join task: the number of watchers, and the time below which entries that close are
#: judged.
WATCHERS, CLOSING = "watchers", "closing"


def closing_times(
    spec: JoinSpec, side: Side, times: Ints | None, windows: Ints | None, batch: int
) -> Ints | int:
    """(n,) the last time at which a partner of each entry may come.

    `times`: those of the tuples; `windows`: the numbers of the windows. In a join with a table,
    entries close with their batch: the result is the number of a batch, not a time.
    """
    window = spec.window
    if spec.table is not None:
        return batch
    if isinstance(window, Sliding):
        assert windows is not None
        return windows * window.slide_us + (window.size_us - 1)
    if window is None or times is None:
        return _NEVER
    return window.last_partners(side, times)


class Marker:
    """Gathers the marks of one join task, and seals them with `keeper` for the watchers.

    `most`: the number of marks that it holds.
    """

    def __init__(
        self, spec: JoinSpec, watchers: int, batch: int, keeper: Keeper, most: int
    ) -> None:
        self._spec = spec
        self._watchers = watchers
        self._batch = batch
        self._keeper = keeper
        self._most = most
        self._marks: dict[Side, list[tuple[Words, Ints]]] = {side: [] for side in spec.watched}
        self._waiting = 0

    def add(self, side: Side, ids: Words, times: Ints | None, windows: Ints | None) -> None:
        """Mark n tuples of `side` as matched, in these windows; marks may be repeated."""
        closes = closing_times(self._spec, side, times, windows, self._batch)
        if windows is not None:
            window = self._spec.window
            assert isinstance(window, Sliding)
            assert times is not None
            ids = ids + (windows - window.shared(times, times)[0]).astype(np.uint64)
        numbers, first = np.unique(ids, return_index=True)
        kept = closes[first] if isinstance(closes, np.ndarray) else np.full(len(first), closes)
        self._marks[side].append((numbers, kept))
        self._waiting += len(numbers)
        if self._waiting > self._most:
            self._marks = {side: _united(marks) for side, marks in self._marks.items()}
            self._waiting = sum(
                len(numbers) for marks in self._marks.values() for numbers, _ in marks
            )
            if self._waiting > self._most // 2:
                self.seal()

    def seal(self) -> None:
        """Seal the marks, one run for each watcher and side; runs of a batch may repeat marks."""
        for side, marks in self._marks.items():
            if not marks:
                continue
            ((numbers, closes),) = _united(marks)
            watchers = watcher_of(numbers, self._spec.windows_each, self._watchers)
            order = np.argsort(watchers, kind="stable")
            bounds = np.searchsorted(watchers[order], np.arange(self._watchers + 1))
            for watcher in np.flatnonzero(np.diff(bounds)).tolist():
                rows = order[bounds[watcher] : bounds[watcher + 1]]
                self._keeper.seal(watcher, side, numbers[rows], _mark_columns(closes[rows]))
        self._marks, self._waiting = {side: [] for side in self._spec.watched}, 0


class Watchers:
    """The watchers that one join task hosts."""

    def __init__(self, desk: Desk, spec: JoinSpec, task: OperatorTask, merge_rows: int) -> None:
        self._spec = spec
        self._runs = task.shelves
        self._closing = task.facts[CLOSING]
        self._batch = desk.header.batch
        self._most_bytes = task.memory_bytes // 8
        self._most_marks = max(min(MARKS, self._most_bytes // MARK_BYTES), 1)
        held = WatchShelf(spec, PENDING, tuples=True)
        self._schemas = {side: held.schema(side) for side in spec.watched}
        #: of the side that is judged: entries, and marks read before
        self._entries_now, self._marks_now = list[OpenRun](), list[OpenRun]()
        self._is_semi = spec.how is JoinType.LEFT_SEMI
        needed = {PENDING: self._unmarked, SEEN: self._waiting} if self._is_semi else {}
        self._pending, self._unread, self._seen = (
            desk.keeper(
                WatchShelf(spec, f"{shelf}-{spec.index}", shelf == PENDING, needed.get(shelf)),
                on=shelf,
                watermark=self._closing,
                merge_rows=merge_rows,
            )
            for shelf in (PENDING, UNREAD, SEEN)
        )
        watchers = int(task.facts[WATCHERS])
        self.marker = Marker(spec, watchers, self._batch, self._unread, self._most_marks)

    def judge(self, watcher: int, results: Results) -> None:
        """Read the marks of the last batch, and judge the entries that are due."""
        for side in self._spec.watched:
            place = watcher, side
            pending = self._pending.open(self._runs[PENDING].get(place, ()))
            seen = self._seen.open(self._runs[SEEN].get(place, ()))
            self._entries_now, self._marks_now = pending, seen
            for fresh in self._read_marks(watcher, side, seen):
                if self._is_semi:
                    self._let_go_matched(fresh, pending, results)
            if not self._is_semi:
                pending = self._let_go_due(side, pending, seen, results)
            pending = self._forget(self._pending, pending)
            seen = self._forget(self._seen, seen)
            self._entries_now = self._pending.merge(pending)
            self._seen.merge(seen)

    def _unmarked(self, numbers: Words) -> NDArray[np.bool_]:
        """(n,) numbers -> (n,) whether an entry has no mark: a semi join has emitted the others."""
        return ~_among(numbers, self._marks_now)

    def _waiting(self, numbers: Words) -> NDArray[np.bool_]:
        """(n,) numbers -> (n,) whether a semi join still has the entry; other marks say nothing."""
        live = [run.words[_rows_of(numbers, run)] for run in self._entries_now]
        return np.isin(numbers, np.concatenate(live)) if live else np.zeros(len(numbers), bool)

    def arrive(self, watcher: int, side: Side, tuples: pa.RecordBatch) -> None:
        """Keep tuples until they are judged."""
        each = self._spec.windows_each
        fitting = tuples.num_rows * self._most_bytes // max(tuples.nbytes, 1)
        step = max(min(ENTRIES, fitting) // each, 1)
        for start in range(0, tuples.num_rows, step):
            self._keep(watcher, side, tuples.slice(start, step))

    def _keep(self, watcher: int, side: Side, tuples: pa.RecordBatch) -> None:
        rows, numbers, closes = self._entries(side, tuples)
        if not len(rows):
            return
        words = numbers if self._spec.how is JoinType.LEFT_SEMI else in_order(closes)
        order = np.argsort(words, kind="stable")
        carried = [column.take(pa.array(rows[order])) for column in tuples.columns[:-1]]
        columns = [*carried, pa.array(numbers[order]), pa.array(closes[order])]
        entries = pa.RecordBatch.from_arrays(columns, schema=self._schemas[side])
        self._pending.seal(watcher, side, words[order], entries)

    def close(self) -> None:
        """Seal the marks of this batch; the next batch reads them."""
        self.marker.seal()

    def _entries(self, side: Side, tuples: pa.RecordBatch) -> tuple[Ints, Words, Ints]:
        """The entries of tuples: (n,) row, (n,) number, and (n,) closing time of each."""
        spec, names = self._spec, self._spec.times(side)
        ids = fixed_width(tuples.column(tuples.num_columns - 1), np.dtype(np.uint64))
        rows = np.arange(len(ids))
        times = latest_time(tuples, names) if names else None
        if isinstance(spec.window, Sliding):
            assert times is not None  # tuples without a time are in no window: not admitted
            first, counts = spec.window.shared(times, times)
            windows = expand_ranges(first, counts)
            rows, first = np.repeat(rows, counts), np.repeat(first, counts)
            closes = closing_times(spec, side, None, windows, self._batch)
            numbers = ids[rows] + (windows - first).astype(np.uint64)
            return rows, numbers, np.asarray(closes)
        closes = np.broadcast_to(
            np.asarray(closing_times(spec, side, times, None, self._batch), np.int64), len(ids)
        )
        timeless = no_time(tuples, names) if names else None
        if timeless is not None:
            closes = np.where(timeless, EARLIEST, closes)
        return rows, ids, closes

    def _read_marks(self, watcher: int, side: Side, seen: list[OpenRun]) -> Iterator[Words]:
        """The marks of the last batch that are new, in portions; adds them to `seen`."""
        runs = self._runs[UNREAD].get((watcher, side), ())
        for some, last in _portions(runs, self._most_marks):
            unread = self._unread.open(some)
            ((numbers, closes),) = _united([(run.words, self._closes(run)) for run in unread])
            new = ~_among(numbers, seen)
            if self._is_semi:
                new &= self._waiting(numbers)
            numbers, columns = numbers[new], _mark_columns(closes[new])
            for run in unread:
                self._unread.forget(run.run)
            if len(numbers):
                seen.append(self._seen.seal(watcher, side, numbers, columns, own_file=not last))
                yield numbers

    def _let_go_matched(self, numbers: Words, pending: Sequence[OpenRun], results: Results) -> None:
        """Emit the tuples whose first partner was found (semi joins)."""
        for run in pending if len(numbers) else ():
            for entries in self._chunks(run, _rows_of(numbers, run)):
                self._emit(Side.LEFT, entries, results)

    def _let_go_due(
        self, side: Side, pending: Sequence[OpenRun], seen: Sequence[OpenRun], results: Results
    ) -> list[OpenRun]:
        """Emit the due entries without a mark; the runs without the due entries."""
        limit = word_of_time(self._closing)
        if not limit:
            return list(pending)
        spine = list[OpenRun]()
        upper = np.array([limit % (1 << 64)], np.uint64)

        def first_to_close(rest: OpenRun) -> int:
            return int(self._closes(rest)[np.searchsorted(rest.words, upper[0])])

        for run in pending:
            due = rows_between(run.words, np.zeros(1, np.uint64), upper, run.gone)
            for columns in self._chunks(run, due):
                column = columns.column(columns.num_columns - 2)
                numbers = fixed_width(column, np.dtype(np.uint64))
                alone = ~_among(numbers, seen)
                if alone.any():
                    self._emit(side, columns.filter(pa.array(alone)), results)
            spine.append(self._pending.cut(run, [(0, limit)], first_to_close))
        return [run for run in spine if run.run.live]

    def _chunks(self, run: OpenRun, rows: Ints) -> Iterator[pa.RecordBatch]:
        """The rows of a run, as many at a time as fit."""
        step = min(ENTRIES, run.run.rows_within(self._most_bytes))
        for start in range(0, len(rows), step):
            yield run.columns.take(pa.array(rows[start : start + step]))

    def _forget(self, keeper: Keeper, spine: Sequence[OpenRun]) -> list[OpenRun]:
        """Forget the runs whose entries are all closed; returns the other runs."""
        kept = list[OpenRun]()
        for run in spine:
            last = run.run.max_time
            if last is not None and last < self._closing:
                keeper.forget(run.run)
            else:
                kept.append(run)
        return kept

    def _emit(self, side: Side, entries: pa.RecordBatch, results: Results) -> None:
        """Emit tuples of `side`; columns of the other side are NULL, or their `instead` column."""
        schema, n = self._spec.output_schema, entries.num_rows
        columns = list[pa.Array]()
        for shown, column in zip(schema, self._spec.output, strict=True):
            if column.side is None:
                columns.append(self._window_column(entries, column.column, shown.type))
            elif column.side is side:
                columns.append(entries.column(column.column).cast(shown.type))
            elif column.instead is not None:
                columns.append(entries.column(column.instead).cast(shown.type))
            else:
                columns.append(pa.nulls(n, shown.type))
        results.add(columns)

    def _window_column(self, entries: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
        assert isinstance(self._spec.window, Sliding)
        ends = closing_of(entries) + 1
        times = ends - self._spec.window.size_us if name == WINDOW_START else ends
        return pa.array(times).cast(kind)

    def _closes(self, run: OpenRun) -> Ints:
        return closing_of(run.columns)


def _portions(runs: Sequence[Run], most: int) -> Iterator[tuple[Sequence[Run], bool]]:
    """Portions of runs, of at most `most` rows or one run each; and whether it is the last."""
    start = 0
    while start < len(runs):
        stop, rows = start + 1, runs[start].rows
        while stop < len(runs) and rows + runs[stop].rows <= most:
            rows += runs[stop].rows
            stop += 1
        yield runs[start:stop], stop == len(runs)
        start = stop


def _united(marks: Sequence[tuple[Words, Ints]]) -> list[tuple[Words, Ints]]:
    """Marks in any order -> each mark once, ascending; empty if there are none."""
    if not marks:
        return []
    numbers = np.concatenate([numbers for numbers, _ in marks])
    closes = np.concatenate([closes for _, closes in marks])
    numbers, first = np.unique(numbers, return_index=True)
    return [(numbers, closes[first])]


def _among(numbers: Words, runs: Iterable[OpenRun]) -> NDArray[np.bool_]:
    """(n,) numbers -> (n,) whether any of the runs holds each."""
    is_there = np.zeros(len(numbers), bool)
    for run in runs:
        is_there[rows_among(numbers, run.words)[0]] = True
    return is_there


def _rows_of(numbers: Words, run: OpenRun) -> Ints:
    """The live rows of a run whose words are these numbers."""
    return rows_between(run.words, numbers, numbers + np.uint64(1), run.gone)


def _mark_columns(closes: Ints) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(closes)], names=[CLOSES])
