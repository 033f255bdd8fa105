"""The aggregation task: one stage of a windowed aggregate at a set of instances, in one batch.

PARTIAL adds up the tuples that arrived, per group and pane, and passes partial results on, at once
or every so many batches. MERGE keeps partial results, sorted by pane, until a window is over, and
adds up its panes. TOP keeps the greatest of each aggregator and takes the greatest of them.

Law: a window's results leave once, in the first batch whose watermark has passed its end; by then
every tuple of it has been passed on, since the watermark of a stage waits for the one before
(joinengine.spark.bookkeeping). Which instance added a tuple up does not matter, so nothing moves
when the layout changes.
Cost: per tuple one hash aggregation; per partial result one sort and one more aggregation for each
window that holds it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from joinengine.balancing.counting import count_keys
from joinengine.kernels.comparing import latest_time
from joinengine.kernels.grouping import add_parts, add_tuples, finish, greatest, partial_schema
from joinengine.kernels.hashing import fixed_width
from joinengine.kernels.probing import Ints, rows_between
from joinengine.kernels.sketching import add_sketches, heaviest, sketch_counts
from joinengine.kernels.watching import in_order, word_of_time
from joinengine.model.aggregates import PANE, AggregateSpec, Stage
from joinengine.model.keys import Side
from joinengine.model.query import WINDOW_END
from joinengine.model.reports import Block, InstanceReport, JoinReport
from joinengine.spark.operators import OperatorTask
from joinengine.state.run import OpenRun, Run, RunStore, excluded_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateTask(OperatorTask):
    """The instructions of one task of one stage in one batch.

    Windows that end in (`closed`, `watermark`] are over. `passes_on`: whether partial results go to
    the next stage in this batch.
    """

    spec: AggregateSpec
    blocks: tuple[Block, ...]
    runs: Mapping[int, tuple[Run, ...]]
    closed: float
    passes_on: bool
    merge_rows: int

    def carry_out(self, store: RunStore) -> JoinReport:
        """Do it."""
        store.retain(self.files)
        worker = _Worker(self, store)
        for instance in self.hosted:
            worker.aggregate(instance)
        return worker.close()


@dataclass(frozen=True, slots=True)
class PartsShelf:
    """Partial results that wait to be passed on, or for the end of their windows."""

    spec: AggregateSpec

    @property
    def label(self) -> str:
        """By the number of the stage."""
        return f"parts-{self.spec.index}"

    @property
    def span_us(self) -> int:
        """Parts live as long as a window."""
        return self.spec.grouping.panes.size_us

    def schema(self, side: Side) -> pa.Schema:
        """What MERGE gets; TOP gets results."""
        if self.spec.stage is Stage.PARTIAL:
            return self.spec.output_schema
        return self.spec.schemas[0]

    def times(self, side: Side, columns: pa.RecordBatch) -> Ints:
        """The end of the pane, or of the window."""
        name = WINDOW_END if self.spec.stage is Stage.TOP else PANE
        return fixed_width(columns.column(name), np.dtype(np.int64))

    def last_needed(self, side: Side, times: Ints) -> Ints:
        """What is spent has been excluded: the rest is needed."""
        return np.full(len(times), np.iinfo(np.int64).max)


class _Worker:
    def __init__(self, task: AggregateTask, store: RunStore) -> None:
        self._task = task
        self._shelf = PartsShelf(task.spec)
        self._report = JoinReport(task.task)
        self._reader = task.reader(task.blocks)
        self._results = task.results(task.spec.output_schema)
        upkeep = task.upkeep(self._shelf, merge_rows=task.merge_rows)
        self._keeper = task.keeper(upkeep, store)

    def aggregate(self, instance: int) -> None:
        """What the stage does at one instance."""
        start = time.perf_counter()
        here = self._report.instances[instance] = InstanceReport()
        before = self._results.rows
        spine = self._keeper.open(self._task.runs.get(instance, ()))
        slices = self._reader.slices(instance)
        here.received[Side.LEFT] = here.stored[Side.LEFT] = sum(one.num_rows for one in slices)
        if self._task.spec.stage is Stage.PARTIAL:
            self._pass_on(instance, spine, self._added(instance, slices))
        else:
            spine = self._close_windows(spine)
            self._store(instance, [one.select(one.schema.names[2:]) for one in slices])
            self._keeper.merge(spine)
        here.results = self._results.rows - before
        if self._task.work_s:
            time.sleep(self._task.work_s * sum(here.received))
        here.busy_s = time.perf_counter() - start

    def _added(self, instance: int, slices: Sequence[pa.RecordBatch]) -> list[pa.Table]:
        """Partial results of what arrived; the keys are counted on the way."""
        spec, added = self._task.spec, list[pa.Table]()
        schema = partial_schema(spec.grouping, spec.schemas[0])
        times = spec.window.times[0]
        for one in slices:
            panes = spec.grouping.panes.pane_of(latest_time(one, times))
            counts = add_tuples(spec.grouping, one, panes).cast(schema)
            added.append(sketch_counts(spec.grouping, counts) if spec.is_sketched else counts)
        if self._task.counted is not None and slices:
            words = np.sort(np.concatenate([one.column(0).to_numpy() for one in slices]))
            # Whoever has added a tuple up: its part stays there, so no key holds what could move.
            counts = count_keys(instance, [words], [[]], self._task.counted[instance])
            self._report.keys.append(counts)
        return added

    def _pass_on(self, instance: int, spine: Sequence[OpenRun], added: list[pa.Table]) -> None:
        """Partial results go to the aggregators, or wait here."""
        if not self._task.passes_on:
            self._store(instance, [one for part in added for one in part.to_batches()])
            return
        held = [
            pa.Table.from_batches([one.columns.take(pa.array(one.live_rows()))]) for one in spine
        ]
        for one in spine:
            self._keeper.changes.remove(one.run)
        parts = [*held, *added]
        if not parts:
            return
        schema = self._task.spec.output_schema
        whole = pa.concat_tables([part.cast(schema) for part in parts])
        if len(parts) > 1:
            add = add_sketches if self._task.spec.is_sketched else add_parts
            whole = add(self._task.spec.grouping, whole).cast(schema)
        self._emit(whole)

    def _store(self, instance: int, parts: Iterable[pa.RecordBatch]) -> None:
        """Keep parts, sorted by pane."""
        found = [one for one in parts if one.num_rows]
        if not found:
            return
        batch = pa.concat_batches(found)
        words = in_order(self._shelf.times(Side.LEFT, batch))
        order = np.argsort(words, kind="stable")
        self._keeper.seal(instance, Side.LEFT, words[order], batch.take(pa.array(order)))

    def _close_windows(self, spine: Sequence[OpenRun]) -> list[OpenRun]:
        """Results of the windows that are over; the runs, less what no later window holds."""
        grouping, task = self._task.spec.grouping, self._task
        panes = [self._shelf.times(Side.LEFT, one.columns)[one.live_rows()] for one in spine]
        present = np.unique(np.concatenate(panes)) if panes else np.empty(0, np.int64)
        for end in grouping.panes.ends(present, task.closed, task.watermark).tolist():
            lower, upper = grouping.panes.first_pane(end), end
            parts = pa.Table.from_batches([_between(one, lower, upper) for one in spine])
            if task.spec.stage is Stage.TOP:
                self._emit(greatest(grouping, parts))
            else:
                edges = end - grouping.panes.size_us, end
                close = heaviest if task.spec.is_sketched else finish
                self._emit(close(grouping, parts, edges, task.spec.output_schema))
        spent = word_of_time(float(min(grouping.panes.spent(task.watermark), 1 << 62)) + 1)
        return [one for one in (self._less(one, spent) for one in spine) if one.run.live]

    def _less(self, one: OpenRun, spent: int) -> OpenRun:
        """A run without the panes below a word."""
        if not spent or int(one.words[0]) >= spent:
            return one
        rest = one.run.without([(0, spent)], one.words)
        if rest.excluded == one.run.excluded:
            return one
        opened = OpenRun(rest, one.words, one.columns, excluded_rows(one.words, rest.exclusions))
        if rest.live:
            first = int(self._shelf.times(Side.LEFT, one.columns)[opened.live_rows()[0]])
            opened = replace(opened, run=replace(rest, min_time=first))
        self._keeper.changes.change(opened.run)
        return opened

    def _emit(self, table: pa.Table) -> None:
        for batch in table.combine_chunks().to_batches():
            self._results.add(batch.columns)

    def close(self) -> JoinReport:
        """Seal the files and report."""
        self._results.close(self._report)
        self._report.changes = self._keeper.close()
        return self._report


def _between(one: OpenRun, lower: int, upper: int) -> pa.RecordBatch:
    """The live rows with panes in [lower, upper]."""
    bounds = in_order(np.array([lower, upper + 1]))
    rows = rows_between(one.words, bounds[:1], bounds[1:], one.gone)
    return one.columns.take(pa.array(rows))


def next_end(spec: AggregateSpec, runs: Iterable[Run], closed: float) -> float:
    """The end of the next window, after `closed`, that may hold any of the parts; inf: none.

    What is known of a run is its range of panes, so there may turn out to be none in a window.
    """
    panes, ends = spec.grouping.panes, [np.inf]
    for run in runs:
        assert run.min_time is not None
        assert run.max_time is not None
        if panes.given:
            after = run.min_time if run.min_time > closed else run.max_time
            ends.append(float(after) if after > closed else np.inf)
            continue
        least = max(float(run.min_time), closed + 1)
        end = -((panes.size_us - least) // panes.slide_us) * panes.slide_us + panes.size_us
        if end - panes.size_us < run.max_time:
            ends.append(end)
    return min(ends)
