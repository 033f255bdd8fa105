"""A stage of an aggregation as an operator: what the driver asks of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from joinengine.exchange.roles import Admission
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.aggregation import AggregateFunction, Panes, Stage
from joinengine.model.durations import describe
from joinengine.model.keys import Side
from joinengine.model.query import FromOperator
from joinengine.operators.accounts import common_account
from joinengine.operators.aggregation.aggregate_spec import AggregateSpec
from joinengine.operators.aggregation.aggregate_task import (
    CLOSED,
    PASSES_ON,
    aggregate_arrived,
    next_end,
)
from joinengine.operators.base import LayoutPolicy, OneInput, Operator, OperatorTask, Order
from joinengine.operators.desk import Desk, TaskHeader
from joinengine.operators.timing import Flow, Limit, Upstream, left_out_text, limit_of_side
from joinengine.state.operator_state import OperatorState

_MERGES = "merges partial results"
#: What aggregates are called.
_NOUNS = {
    AggregateFunction.COUNT: "counts",
    AggregateFunction.SUM: "sums",
    AggregateFunction.MEAN: "means",
    AggregateFunction.MIN: "least values",
    AggregateFunction.MAX: "greatest values",
}


@dataclass(frozen=True, slots=True)
class Aggregation(AggregateSpec, OneInput, Operator):
    """One stage of an aggregation; see AggregateSpec for its facts."""

    @property
    @override
    def policy(self) -> LayoutPolicy:
        """Only PARTIAL can change its layout, and a new layout moves no state.

        The layout says which instance adds a tuple up; a partial result is valid at any instance.
        MERGE and TOP always route by the hash of the group.
        """
        return LayoutPolicy(changes=self.stage is Stage.PARTIAL, follows=False, grows=False)

    @override
    def admission(self, side: Side) -> Admission:
        """All tuples, routed by their group; NULL is a group."""
        return Admission(
            keying=self.keying,
            times=self.times(side),
            schema=self.carried_schema(side),
            stays_put=True,
            # Later stages get the ends of windows, which may lie ahead of all tuples in them.
            ahead_us=self.window.ahead_us if self.stage is Stage.PARTIAL else None,
        )

    @override
    def is_due(self, state: OperatorState, batch: int, *, quiet: bool) -> bool:
        """Whether partial results are to be passed on, or a window is over."""
        runs = state.shelves.state
        if self.stage is Stage.PARTIAL:
            return bool(runs) and (quiet or state.clock.watermark == math.inf)
        return next_end(self, runs.values(), state.clock.closed) <= state.clock.watermark

    @override
    def limit(self, side: Side, newest: float, upstream: Upstream) -> Limit:
        """The limit of a stage; MERGE and TOP wait for all partial results of a window.

        If PARTIAL keeps none, MERGE has the partial results of all tuples below the watermark of
        PARTIAL. TOP has the results of the windows that were over in the batch before.
        """
        (source,) = self.inputs
        if self.stage is Stage.PARTIAL:
            return limit_of_side(self, side, newest, upstream)
        assert isinstance(source, FromOperator)
        if self.stage is Stage.TOP:
            return Limit(upstream.before[source.operator].clock.watermark)
        before = upstream.states[source.operator]
        return Limit(-math.inf if before.shelves.state else before.clock.watermark)

    @override
    def tasks(self, order: Order) -> Sequence[OperatorTask]:
        """The tasks of a batch; none unless tuples or partial results arrive or a batch is due."""
        state, blocks = order.state, order.blocks[Side.LEFT]
        if not (blocks or self.is_due(state, order.batch, quiet=True)):
            return []
        ended = state.clock.watermark == math.inf
        passes_on = not blocks or (order.batch + 1) % self.merge_every == 0 or ended
        # Partial results stay at the instance that made them, even if it is none any more.
        runs = state.shelves.state.values()
        most = max([state.layouts.router.instances, *(run.instance + 1 for run in runs)])
        tasks = order.tasks(most, facts={CLOSED: state.clock.closed, PASSES_ON: passes_on})
        if self.stage is Stage.PARTIAL:
            return tasks
        # The emulated work of tuples is that of the first stage.
        return [replace(one, header=_without_work(one.header)) for one in tasks]

    @override
    def carry_out(self, task: OperatorTask, desk: Desk) -> None:
        aggregate_arrived(self, task, desk)

    @override
    def account(self) -> Mapping[str, Any]:
        """Groups, windows, aggregates and the top."""
        return {
            "on": self._grouping_text(),
            "aggregates": [[a.name, a.function, a.sql] for a in self.grouping.aggregates],
            **common_account(self, self.keys(Side.LEFT)),
            "how": f"aggregate: {self.stage.value}",
            "top": repr(self.grouping.top),
        }

    @override
    def lines(
        self, inputs: Sequence[str], choice: LayoutChoice, rates: Mapping[Side, Flow]
    ) -> list[str]:
        (name,) = inputs
        if self.stage is Stage.PARTIAL:
            (source,), time = self.inputs, " or ".join(self.times(Side.LEFT))
            often = f"{self.merge_every} batches" if self.merge_every > 1 else "batch"
            left_out = left_out_text(source, self.window.delays_us[0], self.window.ahead_us)
            return [
                f"operator {self.index}: {self._in_words()}",
                f"  layout {choice.label} on {self.instances} instances: {choice.summary}",
                f"  {name}: added up by {time}; partial results are sent on after every {often}"
                f"{left_out}",
            ]
        what = f"keeps the top groups of {name}," if self.stage is Stage.TOP else _MERGES
        return [
            f"operator {self.index}: {what} on {self.instances} instances",
            "  a partial result is kept until its last window has ended",
        ]

    def _in_words(self) -> str:
        """What is computed, by which groups, in which windows; for people."""
        panes, groups = self.grouping.panes, ", ".join(self.grouping.groups)
        made = dict.fromkeys(_NOUNS[one.function] for one in self.grouping.aggregates)
        stretches = str(panes)
        if isinstance(panes, Panes) and panes.slide_us == panes.size_us:
            stretches = f"windows of {describe(panes.size_us)}"
        by = f" by {groups}" if groups else ""
        return f"{' and '.join(made)}{by}, in {stretches}"

    def _grouping_text(self) -> str:
        return f"{', '.join(self.grouping.groups) or 'nothing'} in {self.grouping.panes}"


def _without_work(header: TaskHeader) -> TaskHeader:
    return replace(header, emulation=replace(header.emulation, per_tuple_s=0.0))
