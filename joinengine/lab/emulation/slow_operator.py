"""An operator whose instances take longer than they need, and fail before given batches.

Why: two cores can show what eight would do if the work of instances is waiting; and the effects of
a loss can be seen without losing anything.

How: the operator carries out the batch. Then its task waits until the emulated work of its last
instance would be done; the work of an instance begins when its real work ends. The instances of a
task work side by side, as if each had its own machine, and the last results leave after that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

from joinengine.balancing.costs import Amounts
from joinengine.operators.base import Operator, OperatorTask, Order
from joinengine.operators.desk import Desk
from joinengine.operators.layout_policy import LayoutPolicy
from joinengine.wire.reports import InstanceReport

#: The name of a fact, before the number of an instance whose state is lost.
_FAILS = "fails "


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of emulated work.

    `per_tuple_s`: for each tuple that an instance receives and does not only keep as a backup;
    `per_result_s`: for each row that it emits.
    """

    per_tuple_s: float = 0.0
    per_result_s: float = 0.0

    def of(self, report: InstanceReport) -> float:
        """The work of an instance in a batch."""
        received = sum(report.received) - sum(report.backed)
        return self.per_tuple_s * received + self.per_result_s * report.results


NO_WORK = Work()


def slowed(operator: Operator, work: Work, losses: Mapping[int, Sequence[int]]) -> Operator:
    """The operator with more work; `losses`: batch -> the instances that fail before it."""
    return cast(Operator, _Slow(operator, work, losses))


class _Slow:
    """Answers as its operator does, except for the methods here."""

    def __init__(self, operator: Operator, work: Work, losses: Mapping[int, Sequence[int]]) -> None:
        self._operator, self._work, self._losses = operator, work, losses

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._operator, name)

    @property
    def policy(self) -> LayoutPolicy:
        """The policy of the operator, under which planners add the emulated work."""
        further = Amounts(routed=self._work.per_tuple_s, results=self._work.per_result_s)
        return replace(self._operator.policy, further=further)

    def tasks(self, order: Order) -> Sequence[OperatorTask]:
        """Tasks that find the state of failing instances lost; each is lost once in a batch."""
        tasks = self._operator.tasks(order)
        failing = set(self._losses.get(order.batch, ())) - {*order.lost, *order.fetched}
        return [_without(task, failing) for task in tasks] if failing else tasks

    def carry_out(self, task: OperatorTask, desk: Desk) -> None:
        """Do the batch, and wait for the emulated work."""
        lost = [name for name in task.facts if name.startswith(_FAILS)]
        if lost:
            numbers = (int(name.removeprefix(_FAILS)) for name in lost)
            desk.report.lost = dict.fromkeys(numbers, "as requested by fail")
            return
        self._operator.carry_out(task, desk)
        ends = list[float]()
        for instance, report in desk.report.instances.items():
            work_s = self._work.of(report)
            report.busy_s += work_s
            if work_s:
                ends.append(desk.done_s[instance] + work_s)
        if ends:
            desk.pause(max(ends), "emulated")


def _without(task: OperatorTask, failing: set[int]) -> OperatorTask:
    """The task with a fact for each failing instance that it reads, if it survives losses."""
    if not task.header.survives:
        return task
    read = {instance for instance, _ in chain(task.stored.runs, *task.shelves.values())}
    lost = dict.fromkeys((f"{_FAILS}{instance}" for instance in sorted(failing & read)), 1.0)
    return replace(task, facts={**task.facts, **lost})
