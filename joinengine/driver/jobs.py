"""`Jobs`: what the driver needs of whatever runs the tasks of a batch.

Why a protocol: the driver's part of a batch does not depend on what runs the tasks, so tests can
try it with kills, repeated tasks and odd inputs without a cluster.
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
        """What has carried out the steps since `route`, in words."""

    @abstractmethod
    def route(
        self, frame: Any, plan: RoutePlan, start: Position, end: Position
    ) -> list[RouteReport]:
        """Route the tuples between two positions, and those of `frame`, a micro-batch of Spark's.

        None: there is none.
        """

    @abstractmethod
    def read_tables(self, plan: RoutePlan) -> list[RouteReport]:
        """Route the tuples of all tables."""

    @abstractmethod
    def logged(self, batch: int) -> Mapping[str, str]:
        """Name -> content of the files by which Spark repeats a micro-batch of its own.

        None where they are kept with the state anyway, or where they are not enough.
        """

    @abstractmethod
    def logged_end(self, batch: int, logged: Mapping[str, str]) -> Position:
        """Where a batch of an earlier version ends, which Spark has cut; `logged`: as there."""

    @abstractmethod
    def gone(self, operator: Operator, instances: int) -> Collection[int]:
        """The instances whose tasks ran on executors that are gone, of an operator with so many."""

    @abstractmethod
    def is_apart(self, operator: Operator, instances: int, domains: int) -> bool:
        """Whether no executor has run tasks of two failure domains, in the operator's last job.

        Instances whose numbers are equal modulo `domains` are in one.
        """

    @abstractmethod
    def kill(self) -> str:
        """Kill an executor; its name."""

    @abstractmethod
    def read_ahead(self, start: Position) -> None:
        """The next batch begins at `start`; what it will probably bring may be read now."""

    @abstractmethod
    def cut_short(self) -> None:
        """Have the step that runs fail, since its query is to end; called by another thread."""

    @abstractmethod
    def run(self, operator: Operator, tasks: Sequence[OperatorTask]) -> list[OperatorReport]:
        """Carry out the tasks of an operator."""
