"""The join as an operator: its answers to the driver.

Law: state expires after a batch (docs/decisions/0001). Dropping it before the next batch is
equivalent: any tuple that could still match it is late by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from joinengine.exchange.roles import Admission, Matchless
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.conditions import Theta
from joinengine.model.durations import describe, describe_about
from joinengine.model.keys import PAIR, Side
from joinengine.model.query import JoinType
from joinengine.model.texts import condition_text, counted, size_text
from joinengine.model.windows import Sliding
from joinengine.operators.accounts import join_account
from joinengine.operators.base import Operator, OperatorTask, Order
from joinengine.operators.desk import Desk
from joinengine.operators.join.join_spec import JoinSpec
from joinengine.operators.join.join_task import join_arrived
from joinengine.operators.join.watchers import CLOSING, SEEN, UNREAD, WATCHERS
from joinengine.operators.layout_policy import LayoutPolicy
from joinengine.operators.timing import (
    Flow,
    Limit,
    Upstream,
    batches_held,
    late_text,
    limit_of_side,
)
from joinengine.state.operator_state import PENDING, OperatorState


@dataclass(frozen=True, slots=True)
class Join(JoinSpec, Operator):
    """A join of two inputs; see JoinSpec for its facts."""

    @property
    @override
    def policy(self) -> LayoutPolicy:
        """Any layout is allowed; state follows the layout, or stays and is probed where it lies."""
        return LayoutPolicy(may_lag=True, copies=True)

    @property
    @override
    def lags(self) -> bool:
        """True if there are watchers: they judge an entry a batch after its last mark."""
        return bool(self.watched)

    @property
    @override
    def is_changelog(self) -> bool:
        return self.changes is not None

    @override
    def admission(self, side: Side) -> Admission:
        """The tuples that pass the filter."""
        return Admission(
            keying=self.keying,
            times=self.times(side),
            schema=self.carried_schema(side),
            filter=self.filters[side],
            windows_each=self.windows_each,
            passes_by=self.passes_by(side),
            ahead_us=None if self.window is None else self.window.ahead_us,
            matchless=self._matchless if side in self.watched else Matchless.NONE,
            change=self.change_of(side),
            u_of=self.cancel_by(side),
        )

    @property
    def _matchless(self) -> Matchless:
        if self.how is JoinType.LEFT_SEMI:
            return Matchless.NONE
        return Matchless.TIMED if isinstance(self.window, Sliding) else Matchless.ALL

    @override
    def expire(self, state: OperatorState) -> tuple[OperatorState, int]:
        """The state without the runs whose last partner would be late."""
        window, watermark = self.window, state.clock.watermark
        if window is None:
            return state, 0
        return state.keeping(
            lambda run: (
                run.max_time is None or window.last_partners(run.side, run.max_time) >= watermark
            )
        )

    @override
    def is_due(self, state: OperatorState, batch: int, *, quiet: bool) -> bool:
        """Whether watchers can judge an entry in `batch` although no tuple arrives."""
        if self.how is JoinType.LEFT_SEMI:
            return bool(state.shelves.on(UNREAD))
        limit = self._closing(state, batch)
        pending = state.shelves.on(PENDING).values()
        return any(run.min_time is not None and run.min_time < limit for run in pending)

    @override
    def limit(self, side: Side, newest: float, upstream: Upstream) -> Limit:
        """The limit of the side's source, or of the operator that it reads."""
        return limit_of_side(self, side, newest, upstream)

    @override
    def time_through(self, columns: Sequence[str]) -> tuple[Side, Sequence[str]] | None:
        """A join with a table passes on the event time of its stream."""
        if self.table is None:
            return None
        stream = self.table.other
        named = {column.name: column.column for column in self.output if column.side is stream}
        return stream, [named[name] for name in columns if name in named]

    @override
    def tasks(self, order: Order) -> Sequence[OperatorTask]:
        """The tasks of a batch; none if no tuple arrives, no state moves and no watcher works."""
        state = order.state
        pending = state.layouts.pending is not None
        if not (order.brings or pending or self._watchers_work(state, order.batch)):
            return []
        instances = state.layouts.router.instances
        if not self.watched:
            return order.tasks(instances)
        facts = {WATCHERS: state.watchers, CLOSING: self._closing(state, order.batch)}
        return order.tasks(max(instances, state.watchers), (PENDING, UNREAD, SEEN), facts)

    @override
    def carry_out(self, task: OperatorTask, desk: Desk) -> None:
        join_arrived(self, task, desk)

    @override
    def account(self) -> Mapping[str, Any]:
        """Condition, type, window, predicates, and both inputs."""
        return {
            **join_account(self),
            "how": self.how.value,
            "where": None if self.predicate is None else self.predicate.text,
            "within": self._bounds(),
            **({} if self.changes is None else {"changes": list(self.changes)}),
        }

    @override
    def lines(
        self, inputs: Sequence[str], choice: LayoutChoice, rates: Mapping[Side, Flow]
    ) -> list[str]:
        """The condition, the layout, when tuples leave (per side), and which tuples are late."""
        on = condition_text(self.condition)
        where = "" if self.predicate is None else f", where {self.predicate.text}"
        if self.predicate is not None and isinstance(self.condition, Theta):
            on, where = self.predicate.text, ""  # the predicate is the whole condition
        where += "" if self.changes is None else f", of changes told by {self._told_by()}"
        lost = ["this is no inner join: losses end the query, unless it recovers from the store"]
        window = self.window
        return [
            f"operator {self.index}: {self.how.value.replace('_', ' ')} join on {on}{where}",
            f"  layout {choice.label} on {self.instances} instances: {choice.summary}",
            *(f"    {line}" for line in choice.lines(self.instances)),
            *(f"    {line}" for line in lost if self.watched and choice.copying is not None),
            *(self._side_line(s, inputs[s], choice) + self._forecast(s, rates) for s in PAIR),
            *self._cap_line(),
            *([] if window is None else [f"  late  {late_text(self.inputs, inputs, window)}"]),
        ]

    # Watchers

    def _closing(self, state: OperatorState, batch: int) -> float:
        """The limit below which watched entries that close are judged in `batch`.

        If one side is a table, a tuple of the stream meets all its partners in its own batch, and
        closing times are numbers of batches.
        """
        return batch if self.table is not None else state.clock.watermark

    def _watchers_work(self, state: OperatorState, batch: int) -> bool:
        """Whether watchers have marks to read, entries to judge or runs to forget."""
        limit = self._closing(state, batch)
        held = (
            run for shelf in (PENDING, UNREAD, SEEN) for run in state.shelves.on(shelf).values()
        )
        over = any(run.max_time is not None and run.max_time < limit for run in held)
        return over or bool(state.shelves.on(UNREAD)) or self.is_due(state, batch, quiet=False)

    # In words

    def _told_by(self) -> str:
        columns = (f"{s.name.lower()}.{c}" for s in PAIR if (c := self.change_of(s)) is not None)
        return " and ".join(columns)

    def _bounds(self) -> str | None:
        window = self.window
        if window is None:
            return None
        left, right = (" or ".join(times) for times in window.times)
        if isinstance(window, Sliding):
            lengths = describe(window.size_us), describe(window.slide_us)
            return f"{left} and {right} in a window of {lengths[0]} every {lengths[1]}"
        low = "" if window.lower_us is None else f"{describe(window.lower_us)} <= "
        high = "" if window.upper_us is None else f" <= {describe(window.upper_us)}"
        return f"{low}{right} - {left}{high}"

    def _cap_line(self) -> list[str]:
        if self.max_pairs is None:
            return []
        return [f"  cap   at most {counted(self.max_pairs, 'pair')} of a key; others are left out"]

    def _side_line(self, side: Side, name: str, choice: LayoutChoice) -> str:
        return f"  {side.name.lower():5} {self._leaving(side, name, choice)}"

    def _leaving(self, side: Side, name: str, choice: LayoutChoice) -> str:
        only, window = self.filters[side], self.window
        name += "" if only is None else f", where {only.text}"
        if self.table is side:
            return f"{name}: read whole before the first batch, and kept"
        if self.table is not None:
            return f"{name}: rows are matched with the table and not kept"
        endless = window is None or window.endless is side
        if endless and self.cancel_by(side) and not choice.parts_equal_rows:
            return f"{name}: a row is kept until its deletion has come"
        if window is None:
            return f"{name}: kept for ever, because the join has no window"
        if window.endless is side:
            bound = "upper" if side is Side.LEFT else "lower"
            return f"{name}: kept for ever, because the interval has no {bound} bound"
        time = " or ".join(window.times[side])
        time = f"the latest of {time}" if len(window.times[side]) > 1 else time
        if isinstance(window, Sliding):
            until = f"its last window (by {time}) has ended"
        else:
            reach = int(window.last_partners(side, 0))
            sign = "-" if reach < 0 else "+"
            until = f"the watermark passes {time} {sign} {describe(abs(reach))}"
        return f"{name}: a row is kept until {until}"

    @override
    def forecast(self, rates: Mapping[Side, Flow]) -> tuple[float, float] | None:
        """The sum over the sides; unknown without a window, or if one side is unknown."""
        rows = [self._rows_at_fullest(side, rates) for side in PAIR]
        if any(n is None for n in rows):
            return None
        sizes = [n * rates[side].copy_bytes for side, n in zip(PAIR, rows, strict=True) if n]
        return sum(n or 0.0 for n in rows), sum(sizes)

    def _rows_at_fullest(self, side: Side, rates: Mapping[Side, Flow]) -> float | None:
        """How many rows of a side the state will hold; None: unknown, or it grows for ever."""
        flow, window = rates.get(side), self.window
        if self.passes_by(side):
            return 0.0
        if window is None or flow is None or window.endless is side:
            return None
        return flow.batch_rows * batches_held(window, side, flow)

    def _forecast(self, side: Side, rates: Mapping[Side, Flow]) -> str:
        """How much of a side the state will hold, if the flow so far continues; in words."""
        flow, rows = rates.get(side), self._rows_at_fullest(side, rates)
        if flow is None or not rows:
            return ""
        return (
            f"; forecast: about {rows:,.0f} rows, {size_text(rows * flow.copy_bytes)} "
            f"({flow.rows_per_s:,.1f} copies of rows per second of event time, batches of "
            f"{describe_about(flow.batch_us)})"
        )
