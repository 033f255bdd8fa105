"""Novelty as an operator: its answers to the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from joinengine.exchange.roles import Admission
from joinengine.lab.queries.first_story.novelty_spec import NoveltySpec
from joinengine.lab.queries.first_story.novelty_task import judge_due
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.keys import Side
from joinengine.operators.accounts import common_account
from joinengine.operators.base import Operator, OperatorTask
from joinengine.operators.desk import Desk
from joinengine.operators.recent import InTimeOrder
from joinengine.operators.timing import Flow


@dataclass(frozen=True, slots=True)
class Novelty(NoveltySpec, InTimeOrder, Operator):
    """Finds tuples that resemble no earlier tuple of their key; see NoveltySpec.

    State follows the layout at once: a tuple looks for others at one instance only.
    """

    @override
    def admission(self, side: Side) -> Admission:
        return Admission(self.keying, self.window.times[0], self.schemas[0], stays_put=True)

    @override
    def carry_out(self, task: OperatorTask, desk: Desk) -> None:
        judge_due(self, task, desk)

    @override
    def account(self) -> Mapping[str, Any]:
        """The key, the terms and what counts as similar."""
        return {
            "on": f"{self.key} = {self.key}",
            **common_account(self, (self.key,)),
            "how": f"novelty: {self.terms} against {self.history}, at most {self.threshold}",
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
