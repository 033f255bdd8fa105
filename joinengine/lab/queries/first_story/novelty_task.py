"""The novelty task: it finds the due tuples that resemble no earlier tuple of their key.

Law: under a layout that keeps keys whole, every tuple is judged once, against the same tuples as in
one process (joinengine.operators.recent). If the tuples of a key are stored at several instances,
each instance sees a part of them, and finds a tuple novel if that part holds none like it
(Zacheilas et al., DAIS 2016, table 1: 13.4 % false alarms).
Cost: due tuples times the history.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from joinengine.kernels.hashing import fixed_width
from joinengine.kernels.probing import Ints
from joinengine.lab.queries.first_story.novelty_spec import NoveltySpec
from joinengine.lab.queries.first_story.similarity import best_similarities, take_lists
from joinengine.model.keys import Side
from joinengine.operators.base import OperatorTask
from joinengine.operators.desk import Desk
from joinengine.operators.recent import Judge, Recent, RecentShelf, Timed


def judge_due(spec: NoveltySpec, task: OperatorTask, desk: Desk) -> None:
    """Carry out a novelty task."""
    judge = _Novel(spec, desk)
    shelf = RecentShelf(f"tuples-{spec.index}", spec.schemas[0], spec.times(Side.LEFT), judge)
    recent = Recent(task, desk, shelf, spec.keying)
    for instance in task.header.hosted:
        recent.work_at(instance)


class _Novel(Judge):
    def __init__(self, spec: NoveltySpec, desk: Desk) -> None:
        self._spec = spec
        self._desk = desk

    @override
    def judge(self, tuples: Timed, closed: float) -> None:
        keys = self._keys(tuples)
        order = np.lexsort((tuples.words, tuples.times, keys))
        columns, keys = tuples.columns.take(pa.array(order)), keys[order]
        due = tuples.times[order] >= closed
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

    @override
    def needed(self, tuples: Timed, watermark: float) -> NDArray[np.bool_]:
        keys, words, times = self._keys(tuples), tuples.words, tuples.times
        order = np.lexsort((words, times, keys))
        judged = times[order] < watermark
        ends = np.append(np.flatnonzero(np.diff(keys[order])) + 1, len(order))
        starts = np.append(0, ends[:-1])
        counts = np.add.reduceat(judged, starts)
        last = np.repeat(starts + counts, np.diff(np.append(0, ends)))
        rank = last - np.arange(len(order))  # 1: the latest that is judged; below: not judged
        kept = np.empty(len(order), np.bool_)
        kept[order] = rank <= self._spec.history
        return kept

    def _keys(self, tuples: Timed) -> Ints:
        return fixed_width(tuples.columns.column(self._spec.key), np.dtype(np.int32))
