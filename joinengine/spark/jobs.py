"""The tasks of a batch as Spark jobs: one for the route tasks, and one for each operator."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark import RDD, cloudpickle
from pyspark.sql import DataFrame, SparkSession

from joinengine.exchange.reports import OperatorReport, RouteReport
from joinengine.exchange.route import RoutePlan
from joinengine.operators.base import OperatorTask
from joinengine.spark.session import parallelism
from joinengine.spark.tasks import PLAN_PROPERTY, operator_partition
from joinengine.spark.tuning import ArrowBatches


class SparkJobs:
    """Spark jobs; instructions travel as files of the exchange folder.

    `tables`: per table, a frame whose rows are the reports of routing it. `arrow_batches` says what
    the streaming query's own clone of the session must have set for the rows of its sources.
    """

    def __init__(
        self,
        spark: SparkSession,
        tables: Sequence[DataFrame] = (),
        arrow_batches: ArrowBatches | None = None,
    ) -> None:
        self._context = spark.sparkContext
        self._tables = tables
        self._arrow_batches = arrow_batches or ArrowBatches({})
        self._set: dict[str, str] = {}
        self._parallelism = parallelism(spark)
        self._rdds: dict[int, RDD[Any]] = {}

    @property
    def parallelism(self) -> int:
        """As many tasks as cores."""
        return self._parallelism

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

    def read_tables(self, plan: RoutePlan) -> list[RouteReport]:
        """One job for each."""
        return self._routed(self._tables, plan, "tables")

    def _routed(self, frames: Sequence[DataFrame], plan: RoutePlan, what: str) -> list[RouteReport]:
        path = Path(plan.exchange_folder) / what
        path.write_bytes(pickle.dumps(plan))
        self._announce(path, f"joinengine batch {plan.batch}: {what}")
        return [pickle.loads(row.report) for frame in frames for row in frame.collect()]

    def run(self, tasks: Sequence[OperatorTask]) -> list[OperatorReport]:
        """One job; collects one row per task."""
        first = tasks[0].header
        path = Path(first.exchange_folder) / f"operator-{first.operator}"
        for task in tasks:
            Path(f"{path}-{task.header.task}").write_bytes(_instructions(task))
        self._announce(path, f"joinengine batch {first.batch}: operator {first.operator}")
        n = len(tasks)
        if n not in self._rdds:
            numbers = self._context.parallelize(range(n), n)
            self._rdds[n] = numbers.mapPartitionsWithIndex(operator_partition)
        return [pickle.loads(report) for report in self._rdds[n].collect()]

    def _announce(self, plan: Path, description: str) -> None:
        self._context.setLocalProperty(PLAN_PROPERTY, str(plan))
        self._context.setLocalProperty("spark.job.description", description)


def _instructions(task: OperatorTask) -> bytes:
    """A task as bytes; cloudpickle sends a class of a script or a notebook along."""
    return bytes(cloudpickle.dumps(task))  # type: ignore[no-untyped-call]
