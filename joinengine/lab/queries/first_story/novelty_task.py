"""The novelty task: it finds the due tuples that resemble no earlier tuple of their key.

State is the last tuples of each key, and the tuples that are not due yet. A tuple is judged when
the watermark has passed it: then all tuples that precede it have arrived, in whatever order. Runs
are sorted by key hash and move like those of a join.

Law: under a layout that keeps keys whole, every tuple is judged once, against the same tuples as in
one process. If the tuples of a key are stored at several instances, each instance sees a part of
them, and finds a tuple novel if that part holds none like it (Zacheilas et al., DAIS 2016, table 1:
13.4 % false alarms).
Cost: due tuples times the history; runs are rewritten when they have doubled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from typing_extensions import override

from joinengine.exchange.blocks import Tuples
from joinengine.kernels.comparing import latest_time
from joinengine.kernels.hashing import Words, fixed_width, key_hash
from joinengine.kernels.probing import Ints, Needles, find, sort_order
from joinengine.lab.queries.first_story.novelty_spec import NoveltySpec
from joinengine.lab.queries.first_story.similarity import best_similarities, take_lists
from joinengine.model.keys import Side
from joinengine.operators.base import OperatorTask
from joinengine.operators.desk import Desk
from joinengine.operators.hot import texts_in
from joinengine.operators.spines import Spines
from joinengine.state.run import OpenRun
from joinengine.state.upkeep import Shelf

#: The fact of a task: tuples in [CLOSED, watermark) are due.
CLOSED = "closed"


def judge_due(spec: NoveltySpec, task: OperatorTask, desk: Desk) -> None:
    """Carry out a novelty task."""
    worker = _Worker(spec, task, desk)
    for instance in task.header.hosted:
        worker.judge(instance)


@dataclass(frozen=True, slots=True)
class TuplesShelf(Shelf):
    """Tuples with all their columns."""

    spec: NoveltySpec

    @property
    @override
    def label(self) -> str:
        return f"tuples-{self.spec.index}"

    @property
    @override
    def span_us(self) -> int | None:
        """A tuple is needed while fewer than the history have followed it."""
        return None

    @override
    def schema(self, side: Side) -> pa.Schema:
        return self.spec.schemas[0]

    @override
    def times(self, side: Side, columns: pa.RecordBatch) -> Ints:
        return latest_time(columns, self.spec.times(side))

    @override
    def last_needed(self, side: Side, times: Ints) -> Ints:
        """Merges drop nothing."""
        return np.full(len(times), np.iinfo(np.int64).max)


class _Worker:
    def __init__(self, spec: NoveltySpec, task: OperatorTask, desk: Desk) -> None:
        self._spec = spec
        self._desk = desk
        self._closed = task.facts[CLOSED]
        self._watermark = task.header.watermark
        self._reader = desk.reader(task.blocks[Side.LEFT])
        self._keeper = desk.keeper(TuplesShelf(spec), version=task.stored.versions[0])
        memory = task.memory_bytes // 4
        hosted, timed = task.header.hosted, desk.timed
        self._spines = Spines(task.stored, self._keeper, hosted, memory, None, timed)

    def judge(self, instance: int) -> None:
        """Store arrived tuples, judge due ones, forget those that no later tuple is compared to."""
        with self._desk.at(instance) as here:
            with self._desk.timed("open"):
                spine = self._spines.at(instance, Side.LEFT)
            with self._desk.timed("sort"):
                fresh = self._arrived(instance)
            stored = np.empty(0, np.uint64)
            if fresh is not None:
                here.received[Side.LEFT] = here.stored[Side.LEFT] = fresh.run.rows
                spine.append(fresh)
                stored = fresh.words
            with self._desk.timed("probe"):
                for hashes in self._keys_due(spine):
                    self._judge_keys(spine, hashes)
            with self._desk.timed("merge"):
                kept = self._forget(instance, spine)
            with self._desk.timed("count"):
                # The values of keys are those of all that was here, also if all of it leaves.
                texts = texts_in(self._spec.keying, [spine])
                self._desk.count_keys(instance, [stored], [kept], texts)

    def _arrived(self, instance: int) -> OpenRun | None:
        slices = self._reader.slices(instance)
        if not slices:
            return None
        tuples = Tuples.of(slices)
        order = sort_order(tuples.words)
        columns = tuples.columns.take(pa.array(order))
        return self._keeper.seal(instance, Side.LEFT, tuples.words[order], columns)

    def _keys_due(self, spine: Sequence[OpenRun]) -> list[Words]:
        """The key hashes with tuples that are due, some at a time."""
        found = list[Words]()
        for one in spine:
            assert one.run.min_time is not None
            assert one.run.max_time is not None
            if one.run.max_time < self._closed or one.run.min_time >= self._watermark:
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
                rows = rows[self._times(one.columns)[rows] < self._watermark]
                parts.append(one.columns.take(pa.array(rows)))
                words.append(one.words[rows])
        columns, all_words = pa.concat_batches(parts), np.concatenate(words)
        keys = fixed_width(columns.column(self._spec.key), np.dtype(np.int32))
        order = np.lexsort((all_words, self._times(columns), keys))
        columns, keys = columns.take(pa.array(order)), keys[order]
        due = self._due(self._times(columns))
        lists = columns.column(self._spec.terms)
        offsets = np.asarray(lists.offsets).astype(np.int64)
        values = np.asarray(lists.values).astype(np.int64)
        edges = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1, append=keys[-1] + 1))
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            rows = np.arange(begin, end)
            first = int(np.argmax(due[rows])) if due[rows].any() else len(rows)
            terms, starts = take_lists(offsets, values, rows)
            best = best_similarities(terms, starts, first, self._spec.history)
            novel = np.flatnonzero(best <= self._spec.threshold)
            if len(novel):
                self._emit(columns.take(pa.array(rows[first + novel])), best[novel])

    def _emit(self, tuples: pa.RecordBatch, best: np.ndarray) -> None:
        names = self._spec.output_schema.names[:-1]
        self._desk.results.add([*(tuples.column(name) for name in names), pa.array(best)])

    def _forget(self, instance: int, spine: list[OpenRun]) -> list[OpenRun]:
        """Rewrite the runs if only half of their tuples are still compared with later ones."""
        if self._watermark == np.inf:
            for one in spine:
                self._keeper.forget(one.run)
            self._keeper.expired(sum(one.run.live for one in spine))
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
        self._keeper.expired(len(words) - len(kept))
        order = kept[np.argsort(words[kept], kind="stable")]
        for one in spine:
            self._keeper.forget(one.run)
        rewritten = columns.take(pa.array(order))
        return [self._keeper.seal(instance, Side.LEFT, words[order], rewritten)]

    def _needed(self, words: Words, columns: pa.RecordBatch) -> Ints:
        """The rows that are not judged yet, and the last of each key among those that are."""
        times, hashes = self._times(columns), key_hash(words)
        order = np.lexsort((words, times, hashes))
        judged = times[order] < self._watermark
        ends = np.append(np.flatnonzero(np.diff(hashes[order])) + 1, len(order))
        counts = np.add.reduceat(judged, np.append(0, ends[:-1]))
        starts = np.append(0, ends[:-1])
        last = np.repeat(starts + counts, np.diff(np.append(0, ends)))
        rank = last - np.arange(len(order))  # 1: the latest that is judged; below: not judged
        return order[rank <= self._spec.history]

    def _due(self, times: Ints) -> np.ndarray:
        return (times >= self._closed) & (times < self._watermark)

    def _times(self, columns: pa.RecordBatch) -> Ints:
        return latest_time(columns, self._spec.times(Side.LEFT))
