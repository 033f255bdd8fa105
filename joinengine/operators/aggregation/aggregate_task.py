"""The aggregation task: one stage of a windowed aggregate at a set of instances, in one batch.

PARTIAL aggregates the tuples that arrived, per group and pane, and passes partial results on, at
once or every so many batches. MERGE keeps partial results, sorted by pane, until a window is over;
then it merges the panes of the window. Pieces of a session wait until no more of it may follow:
pieces that end by the watermark are joined with all known neighbours, and become a result, or one
piece that ends later. TOP keeps the greatest groups of each aggregator and, when a window is over,
takes the greatest of all.

Law: a window's results leave once, in the first batch whose watermark has passed its end. By then
every tuple of the window has been passed on, since the watermark of a stage waits for the previous
stage (`joinengine.operators.aggregation.aggregate_operator`). Any instance may aggregate any tuple,
so a change of the layout moves no state.
Cost: per tuple one hash aggregation; per partial result one sort, and one more aggregation for each
window that holds it. Under sessions, an instance reads all its pieces in each batch in which any
piece ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from joinengine.exchange.blocks import PIECE_PART, Tuples, packed
from joinengine.kernels.comparing import latest_time
from joinengine.kernels.hashing import fixed_width
from joinengine.kernels.probing import Ints, rows_between, sort_order
from joinengine.kernels.watch_numbers import in_order, word_of_time
from joinengine.model.aggregation import BEGINNING, PANE, Last, Panes, Sessions, Stage
from joinengine.model.keys import Side
from joinengine.model.query import WINDOW_END
from joinengine.model.windows import INT_MAX, INT_MIN
from joinengine.operators.aggregation.aggregate_spec import AggregateSpec
from joinengine.operators.base import OperatorTask
from joinengine.operators.desk import MERGE_ROWS, Desk
from joinengine.operators.hot import texts_at
from joinengine.predicates.grouping import (
    add_parts,
    add_tuples,
    due_sessions,
    finish,
    greatest,
    partial_schema,
)
from joinengine.predicates.sketching import add_sketches, heaviest, sketch_counts
from joinengine.state.run import OpenRun, Run
from joinengine.state.upkeep import Shelf

#: Facts of a task: windows that end in (CLOSED, watermark] are over; PASSES_ON: whether partial
#: results go to the next stage in this batch.
CLOSED, PASSES_ON = "closed", "passes on"


def aggregate_arrived(spec: AggregateSpec, task: OperatorTask, desk: Desk) -> None:
    """Carry out a task of one stage."""
    worker = _Worker(spec, task, desk)
    for instance in task.header.hosted:
        worker.aggregate(instance)


@dataclass(frozen=True, slots=True)
class PartsShelf(Shelf):
    """Partial results that wait to be passed on, or for the end of their windows."""

    spec: AggregateSpec

    @property
    @override
    def label(self) -> str:
        return f"parts-{self.spec.index}"

    @property
    @override
    def span_us(self) -> int:
        """Partial results live as long as a window, those of sessions for a gap at least."""
        panes = self.panes
        return panes.gap_us if isinstance(panes, Sessions) else panes.size_us

    @property
    def panes(self) -> Panes | Sessions:
        """The panes of partial results."""
        panes = self.spec.grouping.panes
        assert not isinstance(panes, Last)
        return panes

    @override
    def schema(self, side: Side) -> pa.Schema:
        """The columns of partial results; at TOP, those of results."""
        if self.spec.stage is Stage.PARTIAL:
            return self.spec.output_schema
        return self.spec.schemas[0]

    @override
    def times(self, side: Side, columns: pa.RecordBatch) -> Ints:
        """(n,) the pane of each partial result; at TOP, the end of its window."""
        name = WINDOW_END if self.spec.stage is Stage.TOP else PANE
        return fixed_width(columns.column(name), np.dtype(np.int64))

    @override
    def last_needed(self, side: Side, times: Ints) -> Ints:
        """(n,) the greatest time: partial results do not expire, but are excluded once spent."""
        return np.full(len(times), np.iinfo(np.int64).max)


class _Worker:
    def __init__(self, spec: AggregateSpec, task: OperatorTask, desk: Desk) -> None:
        self._spec = spec
        self._task = task
        self._desk = desk
        self._shelf = PartsShelf(spec)
        self._reader = desk.reader(task.blocks[Side.LEFT])
        self._keeper = desk.keeper(self._shelf, merge_rows=MERGE_ROWS)

    def aggregate(self, instance: int) -> None:
        """Do the work of the stage at one instance."""
        with self._desk.at(instance) as report:
            spine = self._keeper.open(self._task.stored.runs.get((instance, Side.LEFT), ()))
            arrived = [Tuples.of([piece]) for piece in self._reader.slices(instance)]
            report.received[Side.LEFT] = sum(len(tuples.words) for tuples in arrived)
            report.stored[Side.LEFT] = report.received[Side.LEFT]
            if self._spec.stage is Stage.PARTIAL:
                self._pass_on(instance, spine, self._added(instance, arrived))
            else:
                panes = self._shelf.panes
                if isinstance(panes, Sessions):
                    spine = self._close_sessions(instance, spine)
                else:
                    spine = self._close_windows(panes, spine)
                self._store(instance, [tuples.columns for tuples in arrived])
                self._keeper.merge(spine)

    def _added(self, instance: int, arrived: Sequence[Tuples]) -> list[pa.Table]:
        """The partial results of the tuples that arrived. Also counts their keys."""
        spec, added = self._spec, list[pa.Table]()
        schema = partial_schema(spec.grouping, spec.schemas[0])
        times = spec.window.times[0]
        for tuples in arrived:
            partial = add_tuples(spec.grouping, tuples.columns, latest_time(tuples.columns, times))
            counts = partial.cast(schema)
            added.append(sketch_counts(spec.grouping, counts) if spec.is_sketched else counts)
        has_keys = bool(spec.keys(Side.LEFT))
        if arrived and (has_keys or self._desk.header.counted is not None):
            words = np.concatenate([tuples.words for tuples in arrived])
            order = sort_order(words)
            words = words[order]
            texts = texts_at(spec.keying, order, words, arrived)
            # Partial results are valid at any instance, so no key has state that moves.
            self._desk.count_keys(instance, [words], [[]], texts)
        return added

    def _pass_on(self, instance: int, spine: Sequence[OpenRun], added: list[pa.Table]) -> None:
        """Send the partial results to the aggregators, or keep them until `passes_on`."""
        if not self._task.facts[PASSES_ON]:
            self._store(instance, [batch for part in added for batch in part.to_batches()])
            return
        held = [pa.Table.from_batches([_live(run)]) for run in spine]
        for run in spine:
            self._keeper.forget(run.run)
        parts = [*held, *added]
        if not parts:
            return
        schema = self._spec.output_schema
        whole = pa.concat_tables([part.cast(schema) for part in parts])
        if len(parts) > 1:
            add = add_sketches if self._spec.is_sketched else add_parts
            whole = add(self._spec.grouping, whole).cast(schema)
        self._emit(whole)

    def _store(self, instance: int, parts: Iterable[pa.RecordBatch]) -> None:
        """Seal partial results, sorted by pane."""
        pieces = [(piece, None) for piece in parts if piece.num_rows]
        for pack in packed(pieces, self._task.memory_bytes // PIECE_PART):
            batch = pa.concat_batches([piece for piece, _ in pack])
            words = in_order(self._shelf.times(Side.LEFT, batch))
            order = np.argsort(words, kind="stable")
            self._keeper.seal(instance, Side.LEFT, words[order], batch.take(pa.array(order)))

    def _close_windows(self, windows: Panes, spine: Sequence[OpenRun]) -> list[OpenRun]:
        """Emit the results of ended windows; the runs, without panes that no later window needs."""
        spec, grouping = self._spec, self._spec.grouping
        watermark, closed = self._task.header.watermark, self._task.facts[CLOSED]
        panes = [self._shelf.times(Side.LEFT, run.columns)[run.live_rows()] for run in spine]
        present = np.unique(np.concatenate(panes)) if panes else np.empty(0, np.int64)
        for end in windows.ends(present, closed, watermark).tolist():
            lower, upper = windows.first_pane(end), end
            parts = pa.Table.from_batches([_between(run, lower, upper) for run in spine])
            if spec.stage is Stage.TOP:
                self._emit(greatest(grouping, parts))
            else:
                edges = end - windows.size_us, end
                close = heaviest if spec.is_sketched else finish
                self._emit(close(grouping, parts, edges, spec.output_schema))
        return self._without(spine, windows.spent(watermark))

    def _close_sessions(self, instance: int, spine: Sequence[OpenRun]) -> list[OpenRun]:
        """Emit the results of ended sessions; the runs of the pieces that are left."""
        until = Sessions.ended_by(self._task.header.watermark)
        if not any(run.run.min_time is not None and run.run.min_time <= until for run in spine):
            return list(spine)
        grouping, schema = self._spec.grouping, self._spec.schemas[0]
        pieces = pa.Table.from_batches([_live(run) for run in spine])
        due = due_sessions(grouping, pieces, until).cast(schema)
        over = due.filter(pc.less_equal(due.column(PANE), min(until, INT_MAX - 1)))
        self._emit(finish(grouping, over, (BEGINNING, PANE), self._spec.output_schema))
        self._store(instance, due.filter(pc.greater(due.column(PANE), until)).to_batches())
        return self._without(spine, until)

    def _without(self, spine: Sequence[OpenRun], last: int) -> list[OpenRun]:
        """The runs without the panes up to `last`."""
        spent = word_of_time(min(last, INT_MAX) + 1)
        return [run for run in (self._less(run, spent) for run in spine) if run.run.live]

    def _less(self, run: OpenRun, spent: int) -> OpenRun:
        """A run without the words below `spent`."""
        if not spent or int(run.words[0]) >= spent:
            return run
        return self._keeper.cut(run, [(0, spent)], self._first_pane)

    def _first_pane(self, run: OpenRun) -> int:
        """The first live pane of a run; runs are sorted by pane."""
        return int(self._shelf.times(Side.LEFT, run.columns)[run.live_rows()[0]])

    def _emit(self, table: pa.Table) -> None:
        for batch in table.combine_chunks().to_batches():
            self._desk.results.add(batch.columns)


def _live(run: OpenRun) -> pa.RecordBatch:
    """The live rows of a run, without a copy if they are adjacent."""
    rows = run.live_rows()
    if rows[-1] - rows[0] == len(rows) - 1:
        return run.columns.slice(int(rows[0]), len(rows))
    return run.columns.take(pa.array(rows))


def _between(run: OpenRun, lower: int, upper: int) -> pa.RecordBatch:
    """The live rows of a run with panes in [lower, upper]."""
    bounds = in_order(np.array([lower, upper + 1]))
    rows = rows_between(run.words, bounds[:1], bounds[1:], run.gone)
    return run.columns.take(pa.array(rows))


def next_end(spec: AggregateSpec, runs: Iterable[Run], closed: float) -> float:
    """The end of the next window after `closed` that may hold a partial result; inf: none.

    Only the range of panes of a run is known, so the window may turn out to be empty.
    """
    panes, ends = PartsShelf(spec).panes, [math.inf]
    if closed == math.inf:
        return math.inf
    for run in runs:
        assert run.min_time is not None
        assert run.max_time is not None
        if isinstance(panes, Sessions):
            ends.append(run.min_time + 1)  # a tuple at the end would still extend the session
            continue
        if panes.given:
            after = run.min_time if run.min_time > closed else run.max_time
            ends.append(after if after > closed else math.inf)
            continue
        after_closed = int(closed) + 1 if math.isfinite(closed) else INT_MIN
        end = panes.first_end(max(run.min_time, after_closed))
        if end - panes.size_us < run.max_time:
            ends.append(end)
    return min(ends)
