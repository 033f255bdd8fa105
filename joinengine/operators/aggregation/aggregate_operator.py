"""A stage of an aggregation as an operator: its answers to the driver."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from joinengine.exchange.roles import Admission
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.aggregation import Sessions, Stage
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
from joinengine.operators.base import Operator, OperatorTask, Order
from joinengine.operators.desk import Desk
from joinengine.operators.layout_policy import LayoutPolicy
from joinengine.operators.timing import Flow, Limit, Upstream, limit_of_side
from joinengine.state.operator_state import OperatorState

_MERGES = "merges partial results"


@dataclass(frozen=True, slots=True)
class Aggregation(AggregateSpec, Operator):
    """One stage of an aggregation; see AggregateSpec for its facts."""

    @property
    @override
    def policy(self) -> LayoutPolicy:
        """Only PARTIAL can change its layout, and a new layout moves no state.

        The layout says which instance aggregates a tuple; a partial result is valid at any
        instance.
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
            # The event times of later stages are ends of windows, which lie ahead of their tuples.
            ahead_us=self.window.ahead_us if self.stage is Stage.PARTIAL else None,
        )

    @override
    def is_due(self, state: OperatorState, batch: int, *, quiet: bool) -> bool:
        """Whether PARTIAL must pass on partial results, or a window of a later stage is over."""
        runs = state.shelves.state
        if self.stage is Stage.PARTIAL:
            # Kept partial results may belong to a window that ended batches ago, or delay sessions.
            is_over = next_end(self, runs.values(), -math.inf) <= state.clock.watermark
            return bool(runs) and (quiet or is_over or isinstance(self.grouping.panes, Sessions))
        return next_end(self, runs.values(), state.clock.closed) <= state.clock.watermark

    @override
    def limit(self, side: Side, newest: float, upstream: Upstream) -> Limit:
        """The limit of a stage; MERGE and TOP wait for all partial results of a window.

        MERGE has the partial results of all tuples below the watermark of PARTIAL, except those
        that PARTIAL still keeps: the first end of their windows bounds the limit. A kept piece of a
        session may begin at any time, so then there is no limit. TOP has the results of the windows
        that were over in the previous batch.
        """
        (source,) = self.inputs
        if self.stage is Stage.PARTIAL:
            return limit_of_side(self, side, newest, upstream)
        assert isinstance(source, FromOperator)
        if self.stage is Stage.TOP:
            return Limit(upstream.before[source.operator].clock.watermark)
        partial = upstream.states[source.operator]
        kept = partial.shelves.state
        if kept and isinstance(self.grouping.panes, Sessions):
            return Limit(-math.inf)
        return Limit(min(partial.clock.watermark, next_end(self, kept.values(), -math.inf) - 1))

    @override
    def tasks(self, order: Order) -> Sequence[OperatorTask]:
        """The tasks of a batch; none unless tuples or partial results arrive or a batch is due."""
        state, blocks = order.state, order.blocks[Side.LEFT]
        if not (blocks or self.is_due(state, order.batch, quiet=True)):
            return []
        ended = state.clock.watermark == math.inf
        passes_on = not blocks or (order.batch + 1) % self.merge_every == 0 or ended
        # Partial results stay at the instance that made them, even after a shrink has removed it.
        runs = state.shelves.state.values()
        most = max([state.layouts.router.instances, *(run.instance + 1 for run in runs)])
        return order.tasks(most, facts={CLOSED: state.clock.closed, PASSES_ON: passes_on})

    @override
    def carry_out(self, task: OperatorTask, desk: Desk) -> None:
        aggregate_arrived(self, task, desk)

    @override
    def account(self) -> Mapping[str, Any]:
        """Groups, windows, aggregates and the top."""
        common = common_account(self, self.keys(Side.LEFT))
        return {**self.facts(), **common, "top": repr(self.grouping.top)}

    @override
    def lines(
        self, inputs: Sequence[str], choice: LayoutChoice, rates: Mapping[Side, Flow]
    ) -> list[str]:
        (name,) = inputs
        if self.stage is Stage.PARTIAL:
            often = f"{self.merge_every} batches" if self.merge_every > 1 else "batch"
            return self.first_lines(
                name, choice, f"partial results are sent on after every {often}"
            )
        what = f"keeps the top groups of {name}," if self.stage is Stage.TOP else _MERGES
        return [
            f"operator {self.index}: {what} on {self.instances} instances",
            "  a partial result is kept until its last window has ended",
        ]
