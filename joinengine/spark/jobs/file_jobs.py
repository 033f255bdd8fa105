"""Runs the tasks of a batch whose blocks are files: by resident tasks, or by jobs of Spark.

Jobs find their instructions in files of the exchange folder, which all executors see. Resident
tasks get theirs as orders (`joinengine.staying.pool`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark import RDD
from pyspark.sql import DataFrame
from typing_extensions import override

from joinengine.exchange.exchange import Through, ThroughFiles
from joinengine.exchange.readahead import AHEAD_PART
from joinengine.exchange.route import Portion, RoutePlan
from joinengine.operators.base import Operator, OperatorTask
from joinengine.spark.jobs.failures import told_by_spark
from joinengine.spark.jobs.locality import Location, short_wait
from joinengine.spark.jobs.spark_jobs import SparkJobs, step_of
from joinengine.spark.jobs.tasks import PLAN_PROPERTY, OperatorTasks, RouteOrders
from joinengine.state.manifest import Position
from joinengine.staying.orders import Failed, Function, Order
from joinengine.wire.codec import decode, encode
from joinengine.wire.reports import OperatorReport, RouteReport

#: The step that routes the tuples of `Stream`s.
_ROUTE = "route"


class FileJobs(SparkJobs):
    """Blocks and instructions are files of the exchange folder, which all executors see."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._name_of_functions = self._world.nonce()
        self._route_orders = RouteOrders(self._streams.readings)
        #: how many bytes each task may read ahead, from the instructions of the last batch
        self._ahead_bytes = 0
        #: (step, its number of tasks) -> where they run, and the RDD of their reports
        self._rdds: dict[tuple[str | int, int], tuple[tuple[Location, ...] | None, RDD[Any]]] = {}

    @override
    def _routed_portions(self, portions: Sequence[Portion], plan: RoutePlan) -> list[RouteReport]:
        folder, what = _folder(plan.exchange), _ROUTE
        self._ahead_bytes = int(plan.memory_bytes * AHEAD_PART)
        instructions, read = encode(plan), [encode(portion) for portion in portions]
        orders = [(content, instructions, b"%d" % number) for number, content in enumerate(read)]
        reports = self._stayed(what, self._route_orders, orders)
        if reports is not None:
            return [decode(report, RouteReport) for report in reports]
        exchange = self._world.storage(folder)
        exchange.put(what, instructions)
        for number, content in enumerate(read):
            exchange.put(f"{what}-{number}", content)
        tasks = self._tasks(what, len(portions), self._route_groups)
        with self._announced(folder, what), self._described(plan.batch, what):
            return [decode(report, RouteReport) for report in tasks.collect()]

    @override
    def _routed(
        self, frames: Mapping[tuple[int, ...], DataFrame], plan: RoutePlan, what: str
    ) -> list[RouteReport]:
        folder = _folder(plan.exchange)
        self._world.storage(folder).put(what, encode(plan))
        with self._announced(folder, what), self._described(plan.batch, what):
            rows = [row for frame in frames.values() for row in frame.collect()]
        return [decode(bytes(row.row), RouteReport) for row in rows]

    @override
    def read_ahead(self, start: Position) -> None:
        """Resident tasks read what they would route next; jobs read nothing ahead."""
        if self._stays and self._why_now is None:
            portions = self._streams.after(start)
            orders = [(encode(portion), b"%d" % self._ahead_bytes) for portion in portions]
            self._pool.hint(self._name_of(_ROUTE), self._route_orders, orders)

    @override
    def run(self, operator: Operator, tasks: Sequence[OperatorTask]) -> list[OperatorReport]:
        """Run the tasks as orders or as one job, which collects one report per task."""
        name = _step(operator)
        instructions = [encode(task) for task in tasks]
        locations = self._locality.locations(operator, tasks)
        orders, function = (
            [(content,) for content in instructions],
            OperatorTasks(operator).carry_out,
        )
        stayed = self._stayed(name, function, orders, locations)
        if stayed is None:
            stayed = self._done_by_a_job(operator, tasks, instructions, locations)
        reports = [decode(report, OperatorReport) for report in stayed]
        self._locality.note(operator, reports)
        return reports

    def _done_by_a_job(
        self,
        operator: Operator,
        tasks: Sequence[OperatorTask],
        instructions: Sequence[bytes],
        locations: tuple[Location, ...] | None,
    ) -> list[bytes]:
        first, name = tasks[0].header, _step(operator)
        folder = _folder(first.exchange)
        exchange = self._world.storage(folder)
        for task, content in zip(tasks, instructions, strict=True):
            exchange.put(f"{name}-{task.header.task}", content)
        job = self._tasks(operator.index, len(tasks), OperatorTasks(operator), locations)
        with (
            self._announced(folder, name),
            self._described(first.batch, step_of(operator)),
            short_wait(self._context, locations, self._wait),
        ):
            return job.collect()

    def _stayed(
        self,
        step: str,
        function: Function,
        orders: Sequence[Order],
        locations: Sequence[Location] | None = None,
    ) -> list[bytes] | None:
        """The reports of resident tasks; None: a job must carry out the step."""
        if not self._stays:
            return None
        name = self._name_of(step)
        try:
            reports = self._pool.carry_out(self, name, function, orders, locations)
        except Failed as error:
            raise told_by_spark(str(error)) from error
        if isinstance(reports, str):
            self._why_now = reports
            return None
        return reports

    def _name_of(self, step: str) -> str:
        """The name of a step's function in resident tasks."""
        return f"{self._name_of_functions}-{step}"

    @override
    def cut_short(self) -> None:
        if self._stays:
            self._pool.cut(self)

    def _tasks(
        self,
        step: str | int,
        tasks: int,
        function: Callable[..., Any],
        locations: tuple[Location, ...] | None = None,
    ) -> RDD[Any]:
        """The RDD of a step, whose tasks find their instructions by number; new if they move.

        `step`: its name, or the number of an operator.
        """
        known = self._rdds.get((step, tasks))
        if known is None or known[0] != locations:
            numbers: RDD[Any] = (
                self._context.parallelize(range(tasks), tasks)
                if locations is None
                else self._locality.located(step, locations)
            )
            known = locations, numbers.mapPartitionsWithIndex(function)
            self._rdds[step, tasks] = known
        return known[1]

    @contextmanager
    def _announced(self, folder: str, name: str) -> Iterator[None]:
        """Jobs in the block find their instructions at `folder/name`."""
        self._context.setLocalProperty(PLAN_PROPERTY, f"{folder}/{name}")
        yield


def _step(operator: Operator) -> str:
    return f"operator-{operator.index}"


def _folder(exchange: Through) -> str:
    assert isinstance(exchange, ThroughFiles)
    return exchange.folder
