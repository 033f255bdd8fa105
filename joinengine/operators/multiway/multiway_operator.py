"""The multiway join as an operator: its answers to the driver.

Law: a tuple leaves once every tuple that could be in a result with it would be late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from joinengine.exchange.roles import Admission
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.durations import describe
from joinengine.model.keys import Side
from joinengine.model.texts import condition_text
from joinengine.operators.accounts import common_account
from joinengine.operators.base import Operator, OperatorTask, Order
from joinengine.operators.desk import Desk
from joinengine.operators.multiway.multiway_spec import MultiwaySpec
from joinengine.operators.multiway.multiway_task import join_all
from joinengine.operators.multiway.nearness import Nearness
from joinengine.operators.timing import Flow, late_text
from joinengine.state.operator_state import OperatorState


@dataclass(frozen=True, slots=True)
class MultiwayJoin(MultiwaySpec, Operator):
    """A join of several streams on one key; see MultiwaySpec for its facts."""

    @property
    @override
    def window(self) -> Nearness | None:
        """The times of all sides; None: the full history."""
        return self.nearness

    @override
    def admission(self, side: Side) -> Admission:
        """The tuples that pass the filter."""
        return Admission(
            keying=self.keying,
            times=self.times(side),
            schema=self.carried[side],
            filter=self.filters[side],
            ahead_us=None if self.nearness is None else self.nearness.ahead_us,
        )

    @override
    def expire(self, state: OperatorState) -> tuple[OperatorState, int]:
        """The state without the runs that no tuple on time can meet."""
        nearness, watermark = self.nearness, state.clock.watermark
        if nearness is None:
            return state, 0
        return state.keeping(
            lambda run: (
                run.max_time is None
                or run.max_time + nearness.last_needed_us(run.side) >= watermark
            )
        )

    @override
    def tasks(self, order: Order) -> Sequence[OperatorTask]:
        """The tasks of a batch; none unless tuples arrive or state moves."""
        if not (order.brings or order.state.layouts.pending is not None):
            return []
        return order.tasks(order.state.layouts.router.instances)

    @override
    def carry_out(self, task: OperatorTask, desk: Desk) -> None:
        join_all(self, task, desk)

    @override
    def account(self) -> Mapping[str, Any]:
        """Condition, windows, predicates, and all inputs."""
        return {
            **common_account(self, self.keys(Side.LEFT)),
            "how": "multiway inner",
            "on": condition_text(self.condition),
            "within": None if self.nearness is None else self.nearness.text,
            "filters": [
                None if predicate is None else predicate.text for predicate in self.filters
            ],
            "others": [schema.to_string() for schema in self.schemas[1:]],
            "select": [str(column) for column in self.output] if self.is_selected else None,
        }

    @override
    def lines(
        self, inputs: Sequence[str], choice: LayoutChoice, rates: Mapping[Side, Flow]
    ) -> list[str]:
        """The condition, the joins that it replaces, and when tuples leave (per side)."""
        joins = f"{len(self.chain)} joins" if len(self.chain) > 1 else "a join"
        late = [] if self.nearness is None else [late_text(self.inputs, inputs, self.nearness)]
        return [
            f"operator {self.index}: multiway inner join on {condition_text(self.condition)}",
            f"  made of {joins} on one key: each side is stored once, and nothing in between",
            f"  layout {choice.label} on {self.instances} instances: {choice.summary}",
            *(f"    {line}" for line in choice.lines(self.instances)),
            *(f"  {side.name.lower():5} {self._kept(side, inputs[side])}" for side in self.sides),
            *(f"  late  {text}" for text in late),
        ]

    def _kept(self, side: Side, name: str) -> str:
        """How long a tuple of a side is kept, in words."""
        only = self.filters[side]
        name += "" if only is None else f", where {only.text}"
        if self.nearness is None:
            return f"{name}: kept for ever, because the joins have no windows"
        (time,), reach = self.times(side), self.nearness.last_needed_us(side)
        sign = "-" if reach < 0 else "+"
        return (
            f"{name}: a row is kept until the watermark passes {time} {sign} {describe(abs(reach))}"
        )
