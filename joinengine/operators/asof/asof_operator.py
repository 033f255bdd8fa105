"""The as-of join as an operator: its answers to the driver.

Law: a right tuple leaves once it can be nearest to no left tuple. A batch settles left tuples that
its watermark has passed, so right tuples leave by the watermark of the previous batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from joinengine.exchange.roles import Admission, Matchless
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.conditions import AsOf, Direction
from joinengine.model.durations import describe
from joinengine.model.keys import Side
from joinengine.model.query import JoinType
from joinengine.model.texts import condition_text
from joinengine.operators.accounts import join_account
from joinengine.operators.asof.asof_spec import AsOfShelf, AsOfSpec
from joinengine.operators.asof.asof_task import join_as_of
from joinengine.operators.base import Operator, OperatorTask, Order
from joinengine.operators.desk import Desk
from joinengine.operators.timing import Flow, late_text
from joinengine.state.operator_state import OperatorState


@dataclass(frozen=True, slots=True)
class AsOfJoin(AsOfSpec, Operator):
    """An as-of join of two inputs; see AsOfSpec for its facts."""

    @property
    @override
    def lags(self) -> bool:
        """True if left tuples wait: they are settled a batch after the watermark passes them."""
        return self.waits

    @property
    @override
    def window(self) -> AsOf | None:
        """The times of both sides; None: left tuples do not wait, and no tuple is late."""
        return self.condition if self.waits else None

    @override
    def admission(self, side: Side) -> Admission:
        """The tuples that pass the filter; right ones are numbered."""
        shows_all = side is Side.LEFT and self.how is JoinType.LEFT
        return Admission(
            keying=self.keying,
            times=self.condition.times[side] if self.waits or self.until_us is not None else (),
            schema=self.carried[side],
            filter=self.filters[side],
            passes_by=side is Side.LEFT and not self.waits,
            matchless=Matchless.ALL if shows_all else Matchless.NONE,
            numbered=side is Side.RIGHT,
        )

    @override
    def expire(self, state: OperatorState) -> tuple[OperatorState, int]:
        """The state without right runs that are too far from all waiting and later left tuples."""
        if not self.waits:
            return state, 0
        passed, shelf = state.clock.closed, AsOfShelf(self)
        return state.keeping(
            lambda run: (
                passed < math.inf
                and shelf.last_needed(run.side, np.array([run.max_time]))[0] >= passed
            )
        )

    @override
    def is_due(self, state: OperatorState, batch: int, *, quiet: bool) -> bool:
        """Whether the watermark has moved past left tuples since the last batch."""
        watermark = state.clock.watermark
        return watermark > state.clock.closed and any(
            run.side is Side.LEFT and run.min_time is not None and run.min_time < watermark
            for run in state.shelves.state.values()
        )

    @override
    def time_through(self, columns: Sequence[str]) -> tuple[Side, Sequence[str]] | None:
        """The left side, if its tuples do not wait: then results keep their event time."""
        if self.waits:
            return None
        named = {column.name: column.column for column in self.output if column.side is Side.LEFT}
        return Side.LEFT, [named[name] for name in columns if name in named]

    @override
    def tasks(self, order: Order) -> Sequence[OperatorTask]:
        """The tasks of a batch; none unless tuples arrive, state moves, or left tuples are due."""
        state = order.state
        due = self.is_due(state, order.batch, quiet=True)
        if not (order.brings or due or state.layouts.pending is not None):
            return []
        return order.tasks(state.layouts.router.instances)

    @override
    def carry_out(self, task: OperatorTask, desk: Desk) -> None:
        join_as_of(self, task, desk)

    @override
    def account(self) -> Mapping[str, Any]:
        """Condition, type, predicates, and both inputs."""
        return {
            **join_account(self),
            "how": f"asof {self.how.value}",
            "deleted": None if self.deleted is None else self.deleted.text,
        }

    @override
    def lines(
        self, inputs: Sequence[str], choice: LayoutChoice, rates: Mapping[Side, Flow]
    ) -> list[str]:
        """The condition, the layout, when tuples leave (per side), and which tuples are late."""
        names = [
            name if only is None else f"{name}, where {only.text}"
            for name, only in zip(inputs, self.filters, strict=True)
        ]
        late = [f"  late  {late_text(self.inputs, inputs, self.condition)}"]
        kind, on = f"{self.how.value} {self._kind}", condition_text(self.condition)
        return [
            f"operator {self.index}: {kind}, {on}",
            f"  layout {choice.label} on {self.instances} instances: {choice.summary}",
            *(f"    {line}" for line in choice.lines(self.instances)),
            f"  left  {names[0]}: {self._waits()}",
            f"  right {names[1]}: {self._kept()}",
            *(late if self.waits else []),
        ]

    @property
    def _kind(self) -> str:
        return "join with the latest" if self.condition.is_latest else "as-of join"

    def _waits(self) -> str:
        """How long a left tuple waits, in words."""
        if self.table is not None:
            return "rows meet the table and do not wait"
        if self.condition.is_latest:
            return "rows meet what was there before their batch and do not wait"
        (time,), reach = self.condition.times[Side.LEFT], self.condition.reach_us
        if reach is None:
            return f"a row waits until the watermark has passed {time} and its nearest row"
        nearest = f" and its nearest row, or {time} + {describe(reach)}" if reach else ""
        return f"a row waits until the watermark has passed {time}{nearest}"

    def _kept(self) -> str:
        """How long a right tuple is kept, in words."""
        if self.table is not None:
            return "read whole before the first batch, and kept"
        gone = "" if self.deleted is None else f"; deleted where {self.deleted.text}"
        if self.condition.is_latest:
            return f"read first as far as it goes; of each key the newest row is kept{gone}"
        (time,), on = self.condition.times[Side.RIGHT], self.condition
        if on.direction is Direction.FORWARD:
            return f"a row is kept until the watermark has passed {time}"
        newest = "of each key the newest row below the watermark is kept, and all rows after it"
        if on.tolerance_us is None:
            return newest + gone
        far = int(AsOfShelf(self).last_needed(Side.RIGHT, np.array([0]))[0])
        return f"{newest}, until the watermark has passed {time} + {describe(far)}{gone}"
