"""The novelty task: which of the tuples that are due resemble none before them.

State is the last tuples of each key and those that are not due yet: a tuple is judged when the
watermark has passed it, so that all that precede it are there, however they came. Runs are sorted
by key hash and move like those of a join.

Law: under a layout that keeps keys whole, every tuple is judged once, against the same tuples as in
one process. Where a key's tuples are stored at several instances each sees a part of them, and
calls novel what it has not seen itself (Zacheilas et al., DAIS 2016, table 1: 13.4 % false alarms).
Cost: what is due, times the history; runs are rewritten when they have doubled.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinengine.balancing.counting import count_keys
from joinengine.kernels.comparing import latest_time
from joinengine.kernels.hashing import Words, fixed_width, key_hash
from joinengine.kernels.novelty import best_similarities, take_lists
from joinengine.kernels.probing import Ints, Needles, find, sort_order
from joinengine.model.keys import Side
from joinengine.model.novelty import NoveltySpec
from joinengine.model.reports import Block, InstanceReport, JoinReport
from joinengine.spark.operators import OperatorTask
from joinengine.spark.spines import Spines, Stored
from joinengine.state.run import OpenRun, RunStore


@dataclass(frozen=True, slots=True, kw_only=True)
class NoveltyTask(OperatorTask):
    """The instructions of one task in one batch; tuples in [`closed`, `watermark`) are due."""

    spec: NoveltySpec
    blocks: tuple[Block, ...]
    stored: Stored
    closed: float
    memory_bytes: int

    def carry_out(self, store: RunStore) -> JoinReport:
        """Do it."""
        store.retain(self.files)
        worker = _Worker(self, store)
        for instance in self.hosted:
            worker.judge(instance)
        return worker.close()


@dataclass(frozen=True, slots=True)
class TuplesShelf:
    """Tuples with all their columns."""

    spec: NoveltySpec

    @property
    def label(self) -> str:
        """By the number of the operator."""
        return f"tuples-{self.spec.index}"

    @property
    def span_us(self) -> int | None:
        """A tuple is needed while fewer than the history have followed it."""
        return None

    def schema(self, side: Side) -> pa.Schema:
        """As they came."""
        return self.spec.schemas[0]

    def times(self, side: Side, columns: pa.RecordBatch) -> Ints:
        """Event time."""
        return latest_time(columns, self.spec.times(side))

    def last_needed(self, side: Side, times: Ints) -> Ints:
        """Merges drop nothing."""
        return np.full(len(times), np.iinfo(np.int64).max)


class _Worker:
    def __init__(self, task: NoveltyTask, store: RunStore) -> None:
        self._task = task
        self._report = JoinReport(task.task)
        self._reader = task.reader(task.blocks)
        self._results = task.results(task.spec.output_schema)
        upkeep = task.upkeep(TuplesShelf(task.spec), task.stored.versions[0])
        self._keeper = task.keeper(upkeep, store)
        memory = task.memory_bytes // 4
        self._spines = Spines(task.stored, self._keeper, task.hosted, memory, None)

    def judge(self, instance: int) -> None:
        """Store what arrived, judge what is due, forget what no later tuple is compared with."""
        start = time.perf_counter()
        here = self._report.instances[instance] = InstanceReport()
        before = self._results.rows
        spine = self._spines.at(instance, Side.LEFT)
        fresh = self._arrived(instance)
        if fresh is not None:
            here.received[Side.LEFT] = here.stored[Side.LEFT] = fresh.run.rows
            spine.append(fresh)
        for hashes in self._keys_due(spine):
            self._judge_keys(spine, hashes)
        self._count_keys(instance, self._forget(instance, spine), fresh)
        here.results = self._results.rows - before
        if self._task.work_s:
            time.sleep(self._task.work_s * sum(here.received))
        here.busy_s = time.perf_counter() - start

    def _arrived(self, instance: int) -> OpenRun | None:
        slices = self._reader.slices(instance)
        if not slices:
            return None
        batch = pa.concat_batches(slices)
        words = batch.column(0).to_numpy(zero_copy_only=True)
        order = sort_order(words)
        columns = batch.select(batch.schema.names[2:]).take(pa.array(order))
        return self._keeper.seal(instance, Side.LEFT, words[order], columns)

    def _keys_due(self, spine: Sequence[OpenRun]) -> list[Words]:
        """The key hashes with tuples that are due, some at a time."""
        found = list[Words]()
        for one in spine:
            assert one.run.min_time is not None
            assert one.run.max_time is not None
            if one.run.max_time < self._task.closed or one.run.min_time >= self._task.watermark:
                continue
            rows = one.live_rows()
            due = self._due(self._times(one.columns)[rows])
            found.append(key_hash(one.words[rows[due]]))
        hashes = np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)
        return [hashes[at : at + 256] for at in range(0, len(hashes), 256)]

    def _judge_keys(self, spine: Sequence[OpenRun], hashes: Words) -> None:
        """Gather the tuples of some keys that are not after the watermark, and judge the due."""
        needles = Needles(hashes, np.arange(len(hashes) + 1))
        parts, words = list[pa.RecordBatch](), list[Words]()
        for one in spine:
            hits = find(one.words, needles)
            for lower, count in zip(hits.lower.tolist(), hits.counts.tolist(), strict=True):
                rows = np.arange(lower, lower + count)
                if one.gone is not None:
                    rows = np.intersect1d(rows, one.live_rows(), assume_unique=True)
                rows = rows[self._times(one.columns)[rows] < self._task.watermark]
                parts.append(one.columns.take(pa.array(rows)))
                words.append(one.words[rows])
        columns, all_words = pa.concat_batches(parts), np.concatenate(words)
        keys = fixed_width(columns.column(self._task.spec.key), np.dtype(np.int32))
        order = np.lexsort((all_words, self._times(columns), keys))
        columns, keys = columns.take(pa.array(order)), keys[order]
        due = self._due(self._times(columns))
        lists = columns.column(self._task.spec.terms)
        offsets = np.asarray(lists.offsets).astype(np.int64)
        values = np.asarray(lists.values).astype(np.int64)
        edges = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1, append=keys[-1] + 1))
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            rows = np.arange(begin, end)
            first = int(np.argmax(due[rows])) if due[rows].any() else len(rows)
            terms, starts = take_lists(offsets, values, rows)
            best = best_similarities(terms, starts, first, self._task.spec.history)
            novel = np.flatnonzero(best <= self._task.spec.threshold)
            if len(novel):
                self._emit(columns.take(pa.array(rows[first + novel])), best[novel])

    def _emit(self, tuples: pa.RecordBatch, best: np.ndarray) -> None:
        names = self._task.spec.output_schema.names[:-1]
        self._results.add([*(tuples.column(name) for name in names), pa.array(best)])

    def _forget(self, instance: int, spine: list[OpenRun]) -> list[OpenRun]:
        """Rewrite the runs once they hold twice what later tuples are compared with."""
        if self._task.watermark == np.inf:
            for one in spine:
                self._keeper.changes.remove(one.run)
            return []
        if len(spine) < 2 or sum(one.run.live for one in spine) < 2 * max(
            one.run.live for one in spine
        ):
            return spine
        rows = [one.live_rows() for one in spine]
        words = np.concatenate([one.words[some] for one, some in zip(spine, rows, strict=True)])
        columns = pa.concat_batches(
            [one.columns.take(pa.array(some)) for one, some in zip(spine, rows, strict=True)]
        )
        kept = self._needed(words, columns)
        order = kept[np.argsort(words[kept], kind="stable")]
        for one in spine:
            self._keeper.changes.remove(one.run)
        rewritten = columns.take(pa.array(order))
        return [self._keeper.seal(instance, Side.LEFT, words[order], rewritten)]

    def _needed(self, words: Words, columns: pa.RecordBatch) -> Ints:
        """The rows that are not judged yet, and the last of each key among those that are."""
        times, hashes = self._times(columns), key_hash(words)
        order = np.lexsort((words, times, hashes))
        judged = times[order] < self._task.watermark
        ends = np.append(np.flatnonzero(np.diff(hashes[order])) + 1, len(order))
        counts = np.add.reduceat(judged, np.append(0, ends[:-1]))
        starts = np.append(0, ends[:-1])
        last = np.repeat(starts + counts, np.diff(np.append(0, ends)))
        rank = last - np.arange(len(order))  # 1: the latest that is judged; below: not judged
        return order[rank <= self._task.spec.history]

    def _count_keys(self, instance: int, spine: list[OpenRun], fresh: OpenRun | None) -> None:
        if self._task.counted is None:
            return
        stored = np.empty(0, np.uint64) if fresh is None else fresh.words
        state = [(one.words, one.gone) for one in spine]
        asked = self._task.counted[instance]
        self._report.keys.append(count_keys(instance, [stored], [state], asked))

    def _due(self, times: Ints) -> np.ndarray:
        return (times >= self._task.closed) & (times < self._task.watermark)

    def _times(self, columns: pa.RecordBatch) -> Ints:
        return latest_time(columns, self._task.spec.times(Side.LEFT))

    def close(self) -> JoinReport:
        """Seal the files and report."""
        self._results.close(self._report)
        self._report.changes = self._keeper.close()
        return self._report
