"""`Jobs`: the interface through which the driver has the tasks of a batch run.

Why a protocol: the driver does not depend on Spark, so tests can try it with kills, repeated tasks
and odd inputs without a cluster.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from joinengine.exchange.route import RoutePlan
from joinengine.operators.base import Operator, OperatorTask
from joinengine.state.manifest import Position
from joinengine.wire.reports import OperatorReport, RouteReport


class Jobs(Protocol):
    """Runs tasks and returns the reports of the attempts that won, in no particular order."""

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """How many tasks run at a time."""

    @property
    @abstractmethod
    def done_by(self) -> str:
        """What has run the tasks since the last call of `route`, in words."""

    @abstractmethod
    def route(
        self, frame: Any, plan: RoutePlan, start: Position, end: Position
    ) -> list[RouteReport]:
        """Route the tuples between two positions, and those of `frame`.

        `frame`: a micro-batch of Spark's; None: there is none.
        """

    @abstractmethod
    def read_tables(self, plan: RoutePlan) -> list[RouteReport]:
        """Route the tuples of all tables."""

    @abstractmethod
    def logged(self, batch: int) -> Mapping[str, str]:
        """Name -> content of the files from which Spark repeats one of its micro-batches.

        Empty if these files lie with the state anyway, or do not suffice to repeat it.
        """

    @abstractmethod
    def logged_end(self, batch: int, logged: Mapping[str, str]) -> Position:
        """Where a batch ends that Spark has cut under an earlier version of joinengine.

        `logged`: as returned by `logged`.
        """

    @abstractmethod
    def gone(self, operator: Operator, instances: int) -> Collection[int]:
        """The instances of an operator, of 0 to `instances` - 1, whose executors are gone."""

    @abstractmethod
    def is_apart(self, operator: Operator, instances: int, domains: int) -> bool:
        """Whether, in the operator's last job, each executor ran tasks of one failure domain only.

        Instances whose numbers are equal modulo `domains` are in one failure domain.
        """

    @abstractmethod
    def kill(self) -> str:
        """Kill an executor; its name."""

    @abstractmethod
    def read_ahead(self, start: Position) -> None:
        """Say that the next batch begins at `start`: its probable rows may be read now."""

    @abstractmethod
    def cut_short(self) -> None:
        """Make the running step fail, because its query is to end; another thread calls this."""

    @abstractmethod
    def run(self, operator: Operator, tasks: Sequence[OperatorTask]) -> list[OperatorReport]:
        """Carry out the tasks of an operator."""
