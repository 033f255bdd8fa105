"""The task of a running aggregate: at each due tuple, it aggregates the last tuples of the group.

Law: every tuple is due once, and makes one result, over the same tuples as in a single process
(`joinengine.operators.recent`). Tuples of equal time are ordered by the columns that aggregates
use; for tuples that also agree in these, the order makes no difference.
Cost: one window aggregation, by DuckDB, over the due tuples and the tuples kept for them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from joinengine.model.aggregation import Last
from joinengine.model.keys import Side
from joinengine.operators.aggregation.aggregate_spec import AggregateSpec
from joinengine.operators.base import OperatorTask
from joinengine.operators.desk import Desk
from joinengine.operators.recent import Judge, Recent, RecentShelf, Timed
from joinengine.predicates.last_rows import add_up_last, rank_from_last


def add_up_due(spec: AggregateSpec, task: OperatorTask, desk: Desk) -> None:
    """Carry out a task."""
    columns = spec.carried_schema(Side.LEFT)
    judge = _Running(spec, desk)
    shelf = RecentShelf(f"last-{spec.index}", columns, spec.times(Side.LEFT), judge)
    recent = Recent(task, desk, shelf, spec.keying)
    for instance in task.header.hosted:
        recent.work_at(instance)


class _Running(Judge):
    def __init__(self, spec: AggregateSpec, desk: Desk) -> None:
        self._spec = spec
        self._desk = desk

    @override
    def judge(self, tuples: Timed, closed: float) -> None:
        grouping, due = self._spec.grouping, tuples.times >= closed
        schema = self._spec.output_schema
        sums = add_up_last(grouping, tuples.columns, tuples.times, due, schema)
        for batch in sums.combine_chunks().to_batches():
            self._desk.results.add(batch.columns)

    @override
    def needed(self, tuples: Timed, watermark: float) -> NDArray[np.bool_]:
        grouping, waits = self._spec.grouping, tuples.times >= watermark
        assert isinstance(grouping.panes, Last)
        ranks = rank_from_last(grouping, tuples.columns, tuples.times, waits)
        return waits | (ranks < grouping.panes.rows)
