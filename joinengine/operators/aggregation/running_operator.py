"""A running aggregate as an operator: its answers to the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from joinengine.exchange.roles import Admission
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.keys import Side
from joinengine.operators.accounts import common_account
from joinengine.operators.aggregation.aggregate_spec import AggregateSpec
from joinengine.operators.aggregation.running_task import add_up_due
from joinengine.operators.base import Operator, OperatorTask
from joinengine.operators.desk import Desk
from joinengine.operators.layout_policy import LayoutPolicy
from joinengine.operators.recent import InTimeOrder
from joinengine.operators.timing import Flow


@dataclass(frozen=True, slots=True)
class Running(AggregateSpec, InTimeOrder, Operator):
    """Aggregates over the last tuples of a group, at each of its tuples; see AggregateSpec.

    The state moves with the layout at once, because all tuples of a group must be at one instance.
    """

    @property
    @override
    def policy(self) -> LayoutPolicy:
        return LayoutPolicy(divides=False)

    @override
    def admission(self, side: Side) -> Admission:
        """All tuples, routed by their group; NULL is a group."""
        return Admission(
            keying=self.keying,
            times=self.times(side),
            schema=self.carried_schema(side),
            stays_put=True,
            ahead_us=self.window.ahead_us,
        )

    @override
    def carry_out(self, task: OperatorTask, desk: Desk) -> None:
        add_up_due(self, task, desk)

    @override
    def account(self) -> Mapping[str, Any]:
        """Groups, windows and aggregates."""
        return {**self.facts(), **common_account(self, self.keys(Side.LEFT))}

    @override
    def lines(
        self, inputs: Sequence[str], choice: LayoutChoice, rates: Mapping[Side, Flow]
    ) -> list[str]:
        return self.first_lines(inputs[0], choice, "a row is due once the watermark has passed it")
