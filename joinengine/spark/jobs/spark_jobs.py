"""Runs the tasks of a batch as Spark jobs: one for the route tasks, and one for each operator.

This module has what is common to all exchanges. `joinengine.spark.jobs.file_jobs` uses files, and
resident tasks if possible; `joinengine.spark.jobs.shuffle_jobs` uses Spark's shuffle.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from textwrap import shorten

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from joinengine.driver.jobs import Jobs
from joinengine.exchange.route import Portion, RoutePlan
from joinengine.operators.base import Operator
from joinengine.spark.jobs.locality import LONG_WAIT, WAIT, Locality
from joinengine.spark.jobs.slots import pool_of
from joinengine.spark.jobs.tasks import RouteGroups
from joinengine.spark.query.spark_logs import SparkLogs, offset_in
from joinengine.spark.session.session import parallelism
from joinengine.spark.session.tuning import ArrowBatches
from joinengine.spark.sources.streams import Streams
from joinengine.state.manifest import Position
from joinengine.staying.pool import Pool
from joinengine.wire.reports import RouteReport
from joinengine.world.world import World

#: The local property by which Spark's web page names a job.
_DESCRIPTION = "spark.job.description"
#: The most characters of a condition in the name of a job.
_MOST = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """How many operators a query has, and the executors on which their tasks have fixed places.

    `name`: of the query; Spark's web page shows it with each job. `why_jobs`: why tasks are not
    resident (`joinengine.spark.jobs.slots`); None: they are.
    """

    name: str | None
    operators: int
    slots: Sequence[str]
    why_jobs: str | None


class SparkJobs(Jobs):
    """Runs tasks as Spark jobs, which carry the operators.

    `streams`: joinengine's own streams. `tables`: source that is a table -> a frame whose rows are
    the reports of routing it. `arrow_batches`: gives the settings that the streaming query's clone
    of the session needs for its sources. `logs`: Spark's part of the checkpoint.
    """

    def __init__(
        self,
        spark: SparkSession,
        world: World,
        streams: Streams,
        tables: Mapping[int, DataFrame],
        arrow_batches: ArrowBatches,
        logs: SparkLogs,
        shape: Shape,
    ) -> None:
        self._name = shape.name
        self._operators, slots = shape.operators, shape.slots
        self._logs = logs
        self._why_jobs = shape.why_jobs
        #: why a job has carried out a step of the running batch, although tasks may be resident
        self._why_now: str | None = None
        self._world = world
        self._streams = streams
        self._route_groups = RouteGroups(streams.readings)
        self._context = spark.sparkContext
        self._tables = tables
        self._arrow_batches = arrow_batches
        self._set: dict[str, str] = {}
        self._parallelism = parallelism(spark)
        if slots:  # the same number of tasks on each executor
            self._parallelism = max(self._parallelism // len(slots), 1) * len(slots)
        self._locality = Locality(self._context, slots)
        self._wait = LONG_WAIT if slots else WAIT

    @property
    def _stays(self) -> bool:
        return self._why_jobs is None

    @cached_property
    def _pool(self) -> Pool:
        return pool_of(self._context)  # this asks the JVM

    @property
    def tasks(self) -> str:
        """What carries out the steps of a batch (resident tasks or jobs), in words."""
        why = self._why_jobs
        if why is None:
            why = self._pool.obstacle
        if why is None:
            return (
                "resident: they run from batch to batch, and end when another job of the session "
                "needs their slots"
            )
        return f"each step is a Spark job, because {why}"

    @property
    @override
    def done_by(self) -> str:
        why = self._why_jobs if self._why_now is None else self._why_now
        return "stay" if why is None else f"jobs: {why}"

    @property
    @override
    def parallelism(self) -> int:
        """As many tasks as cores."""
        return self._parallelism

    @override
    def route(
        self, frame: DataFrame | None, plan: RoutePlan, start: Position, end: Position
    ) -> list[RouteReport]:
        """Run one job over the `Stream`s, if they bring tuples, and one over `frame`."""
        brought, self._why_now = self._streams.between(start, end), None
        reports = [brought.report]
        if brought.portions:
            reports += self._routed_portions(brought.portions, plan)
        ours = self._streams.readings.keys() | self._tables.keys()
        others = tuple(source for source in plan.roles if source not in ours)
        if others and frame is not None:
            self._apply(self._arrow_batches.settings(), frame.sparkSession)
            reports += self._routed({others: frame}, plan, "route")
        for report in reports:
            for source, width in report.widths.items():
                self._arrow_batches.see(source, width, report.source_rows)
        return reports

    def _apply(self, settings: dict[str, str], clone: SparkSession) -> None:
        """Set `settings` in the query's clone of the session."""
        for name in self._set.keys() - settings.keys():
            clone.conf.unset(name)
        for name, value in settings.items() - self._set.items():
            clone.conf.set(name, value)
        self._set = settings

    @override
    def logged(self, batch: int) -> dict[str, str]:
        """The content of Spark's logs of offsets and commits, if they lie apart from the state."""
        return self._logs.of_batch(batch)

    @override
    def logged_end(self, batch: int, logged: Mapping[str, str]) -> Position:
        """From `logged`, or else Spark's log of offsets. Raises DamagedState if there is none."""
        if not self._streams.sources:
            return {}
        name = f"offsets/{batch}"
        if name in logged:
            return self._streams.position(offset_in(logged[name], name))
        return self._streams.position(self._logs.offset(batch))

    @override
    def gone(self, operator: Operator, instances: int) -> Collection[int]:
        return self._locality.gone(operator, instances)

    @override
    def is_apart(self, operator: Operator, instances: int, domains: int) -> bool:
        """As in `Jobs`; False if Spark has run tasks on executors other than their own."""
        last = self._locality.last_of(operator, instances)
        return None not in last and len(set(zip(last, cycle(range(domains))))) == len(set(last))

    @override
    def kill(self) -> str:
        """Kill the newest executor on which tasks have places; its name."""
        self._make_way()
        host, _, number = self._locality.kill().removeprefix("executor_").rpartition("_")
        return f"executor {number} on {host}"

    @override
    def read_tables(self, plan: RoutePlan) -> list[RouteReport]:
        """Run one job for each table."""
        self._make_way()
        return self._routed(
            {(source,): frame for source, frame in self._tables.items()}, plan, "tables"
        )

    def _make_way(self) -> None:
        """Before a job of ours: give back the slots of resident tasks, which it would wait for."""
        if self._stays:
            self._pool.release()

    @override
    def read_ahead(self, start: Position) -> None:
        """Do nothing: a job that only reads ahead would delay other jobs."""

    @override
    def cut_short(self) -> None:
        """Do nothing: the jobs of a query that ends are cancelled by their group."""

    @abstractmethod
    def _routed_portions(self, portions: Sequence[Portion], plan: RoutePlan) -> list[RouteReport]:
        """Run the route tasks of `Stream`s, one for each portion; their reports."""

    @abstractmethod
    def _routed(
        self, frames: Mapping[tuple[int, ...], DataFrame], plan: RoutePlan, what: str
    ) -> list[RouteReport]:
        """Run the route tasks of frames; their reports. `frames`: sources -> frame.

        `what`: the sources, in words.
        """

    @contextmanager
    def _described(self, batch: int, step: str) -> Iterator[None]:
        """Jobs in the block have the name of the step."""
        with described(self._context, f"{called(self._name)}, batch {batch}: {step}"):
            yield


def called(name: str | None) -> str:
    """The start of the names of a query's jobs."""
    return "joinengine" if name is None else f"joinengine {name}"


def step_of(operator: Operator) -> str:
    """The name of the step that runs an operator: its kind, number, and join or group columns.

    >>> class Joining:
    ...     kind, index = "join", 1
    ...     account = staticmethod(lambda: {"on": "a = b"})
    >>> step_of(Joining())
    'join 1 on a = b'
    """
    on = shorten(str(operator.account().get("on", "")), _MOST, placeholder=" ..")
    return f"{operator.kind} {operator.index}" + (f" on {on}" if on else "")


@contextmanager
def described(context: SparkContext, description: str) -> Iterator[None]:
    """Jobs in the block have this description; after it, Spark's own description is back."""
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, description)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type] # None removes it
