"""Novelty as an operator: its answers to the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from joinengine.exchange.keying import Keying
from joinengine.exchange.roles import Admission
from joinengine.lab.queries.first_story.novelty_spec import NoveltySpec
from joinengine.lab.queries.first_story.novelty_task import CLOSED, judge_due
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.keys import Side
from joinengine.operators.accounts import common_account
from joinengine.operators.base import OneInput, Operator, OperatorTask, Order
from joinengine.operators.desk import Desk
from joinengine.operators.timing import Flow
from joinengine.state.operator_state import OperatorState


@dataclass(frozen=True, slots=True)
class Novelty(NoveltySpec, OneInput, Operator):
    """Tuples that resemble none of those before them under their key; see NoveltySpec.

    State follows the layout at once: a tuple looks for others at one instance only.
    """

    @override
    def admission(self, side: Side) -> Admission:
        keys = (self.key,)
        return Admission(
            Keying((keys, keys)), self.window.times[0], self.schemas[0], stays_put=True
        )

    @override
    def is_due(self, state: OperatorState, batch: int, *, quiet: bool) -> bool:
        """Whether tuples may have become due since the last batch."""
        clock, runs = state.clock, state.shelves.state.values()
        return clock.watermark > clock.closed and any(
            run.max_time is not None and run.max_time >= clock.closed for run in runs
        )

    @override
    def tasks(self, order: Order) -> Sequence[OperatorTask]:
        """The tasks of a batch; none if no tuple arrives, no state moves and no tuple is due."""
        state = order.state
        pending = state.layouts.pending is not None
        if not (order.brings or pending or self.is_due(state, order.batch, quiet=True)):
            return []
        return order.tasks(state.layouts.router.instances, facts={CLOSED: state.clock.closed})

    @override
    def carry_out(self, task: OperatorTask, desk: Desk) -> None:
        judge_due(self, task, desk)

    @override
    def account(self) -> Mapping[str, Any]:
        """The key, the terms and what counts as similar."""
        return {
            "on": f"{self.key} = {self.key}",
            **common_account(self, (self.key,)),
            "how": f"novelty: {self._rule}",
        }

    @override
    def lines(
        self, inputs: Sequence[str], choice: LayoutChoice, rates: Mapping[Side, Flow]
    ) -> list[str]:
        return [
            f"operator {self.index}: finds rows whose `{self.terms}` are at most "
            f"{self.threshold} similar to the {self.history} before them with the same "
            f"`{self.key}`",
            f"  layout {choice.label} on {self.instances} instances: {choice.summary}",
            f"  {inputs[0]}: a row is judged once the watermark has passed its time",
        ]

    @property
    def _rule(self) -> str:
        return f"{self.terms} against {self.history}, at most {self.threshold}"
