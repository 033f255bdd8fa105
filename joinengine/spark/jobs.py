"""The tasks of a batch as Spark jobs: one for the route tasks, and one for each operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from joinengine.driver.jobs import Jobs
from joinengine.exchange.codec import decode, encode
from joinengine.exchange.merging import MergeReport, MergeTask
from joinengine.exchange.reports import OperatorReport, RouteReport
from joinengine.exchange.route import RoutePlan
from joinengine.operators.base import Operator, OperatorTask
from joinengine.spark.session import parallelism
from joinengine.spark.tasks import PLAN_PROPERTY, OperatorTasks, merge_files
from joinengine.spark.tuning import ArrowBatches
from joinengine.world.world import World


class SparkJobs(Jobs):
    """Spark jobs; instructions travel as files of the exchange folder, operators with the job.

    `tables`: per table, a frame whose rows are the reports of routing it. `arrow_batches` says what
    the streaming query's own clone of the session must have set for the rows of its sources.
    """

    def __init__(
        self,
        spark: SparkSession,
        world: World,
        tables: Sequence[DataFrame] = (),
        arrow_batches: ArrowBatches | None = None,
    ) -> None:
        self._world = world
        self._context = spark.sparkContext
        self._tables = tables
        self._arrow_batches = arrow_batches or ArrowBatches({})
        self._set: dict[str, str] = {}
        self._parallelism = parallelism(spark)
        self._rdds: dict[tuple[int, int], RDD[Any]] = {}

    @property
    @override
    def parallelism(self) -> int:
        """As many tasks as cores."""
        return self._parallelism

    @override
    def route(self, frame: DataFrame, plan: RoutePlan) -> list[RouteReport]:
        """One job over the sources; collects one row per task."""
        self._apply(self._arrow_batches.settings(), frame.sparkSession)
        reports = self._routed([frame], plan, "route")
        for report in reports:
            for source, width in report.widths.items():
                self._arrow_batches.see(source, width, report.source_rows)
        return reports

    def _apply(self, settings: dict[str, str], clone: SparkSession) -> None:
        """Change the query's clone of the session, so that all of `settings` is set there."""
        for name in self._set.keys() - settings.keys():
            clone.conf.unset(name)
        for name, value in settings.items() - self._set.items():
            clone.conf.set(name, value)
        self._set = settings

    @override
    def read_tables(self, plan: RoutePlan) -> list[RouteReport]:
        """One job for each."""
        return self._routed(self._tables, plan, "tables")

    def _routed(self, frames: Sequence[DataFrame], plan: RoutePlan, what: str) -> list[RouteReport]:
        self._world.storage(plan.exchange_folder).put(what, encode(plan))
        self._announce(plan.exchange_folder, what, f"joinengine batch {plan.batch}: {what}")
        return [
            decode(bytes(row.report), RouteReport) for frame in frames for row in frame.collect()
        ]

    @override
    def run(self, operator: Operator, tasks: Sequence[OperatorTask]) -> list[OperatorReport]:
        """One job; collects one row per task."""
        first, name = tasks[0].header, f"operator-{operator.index}"
        exchange = self._world.storage(first.exchange_folder)
        for task in tasks:
            exchange.put(f"{name}-{task.header.task}", encode(task))
        about = f"joinengine batch {first.batch}: operator {operator.index}"
        self._announce(first.exchange_folder, name, about)
        key = operator.index, len(tasks)
        if key not in self._rdds:
            numbers = self._context.parallelize(range(len(tasks)), len(tasks))
            self._rdds[key] = numbers.mapPartitionsWithIndex(OperatorTasks(operator))
        return [decode(report, OperatorReport) for report in self._rdds[key].collect()]

    def _announce(self, folder: str, name: str, description: str) -> None:
        self._context.setLocalProperty(PLAN_PROPERTY, f"{folder}/{name}")
        self._context.setLocalProperty("spark.job.description", description)


@dataclass(frozen=True)
class SparkMerge:
    """Merges staged result files in one Spark job; instructions travel with the job."""

    spark: SparkSession

    def __call__(self, tasks: Sequence[MergeTask]) -> list[MergeReport]:
        """The reports, in the order of the tasks."""
        context = self.spark.sparkContext
        context.setLocalProperty("spark.job.description", "joinengine: merge result files")
        contents = context.parallelize([encode(task) for task in tasks], len(tasks))
        return [decode(report, MergeReport) for report in contents.map(merge_files).collect()]
