"""`Jobs`: what the driver needs of whatever runs the tasks of a batch.

Why a protocol: the driver's part of a batch does not depend on what runs the tasks, so tests can
try it with kills, repeated tasks and odd inputs without a cluster.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from joinengine.exchange.reports import OperatorReport, RouteReport
from joinengine.exchange.route import RoutePlan
from joinengine.operators.base import Operator, OperatorTask


class Jobs(Protocol):
    """Runs tasks and returns the reports of the attempts that won, in no particular order."""

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """How many tasks run at a time."""

    @abstractmethod
    def route(self, frame: Any, plan: RoutePlan) -> list[RouteReport]:
        """Route the tuples of `frame`."""

    @abstractmethod
    def read_tables(self, plan: RoutePlan) -> list[RouteReport]:
        """Route the tuples of all tables."""

    @abstractmethod
    def logged(self, batch: int) -> Mapping[str, str]:
        """Name -> content of the files by which whoever cuts batches repeats this one.

        None where they are kept with the state anyway, or where they are not enough.
        """

    @abstractmethod
    def run(self, operator: Operator, tasks: Sequence[OperatorTask]) -> list[OperatorReport]:
        """Carry out the tasks of an operator."""
