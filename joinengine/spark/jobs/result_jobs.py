"""Merges result files, or delivers them to an outside system, in one Spark job.

If there are resident tasks, they do it instead: a resident task keeps its producers from one
delivery to the next. Tasks are in the order of the writers, so a writer finds its producer again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyspark.sql import SparkSession

from joinengine.results.kafka_writers import DeliverReport, DeliverTask, deliver
from joinengine.results.merging import MergeReport, MergeTask, merge
from joinengine.spark.jobs.failures import told_by_spark
from joinengine.spark.jobs.slots import obstacle, pool_of
from joinengine.spark.jobs.spark_jobs import called, described
from joinengine.spark.jobs.tasks import settle_in
from joinengine.staying.orders import Failed
from joinengine.wire.codec import decode, encode
from joinengine.world.world import MACHINE

_Task = TypeVar("_Task")
_Report = TypeVar("_Report")


@dataclass(frozen=True)
class ResultJobs(Generic[_Task, _Report]):
    """Carries out tasks over result files; each task returns a report.

    `name`: as in `SparkJobs`. `verb`: the name of the work in resident tasks; `does`: on Spark's
    page. `function`: carries out one task, encoded. `reports`: the type of the reports.
    """

    spark: SparkSession
    name: str | None
    verb: str
    does: str
    function: Callable[[bytes], bytes]
    reports: type[_Report]

    def __call__(self, tasks: Sequence[_Task]) -> list[_Report]:
        """Carry out the tasks; the reports, in the order of the tasks."""
        encoded = self._carried_out([encode(task) for task in tasks])
        return [decode(report, self.reports) for report in encoded]

    def _carried_out(self, orders: list[bytes]) -> Sequence[bytes]:
        context = self.spark.sparkContext
        pool = pool_of(context) if obstacle(context) is None else None
        if pool is not None and pool.holds:  # a job would wait for the pool's slots
            try:
                orders_alone = [(order,) for order in orders]
                reports = pool.carry_out(self, self.verb, self.function, orders_alone)
            except Failed as error:
                raise told_by_spark(str(error)) from error
            if not isinstance(reports, str):
                return reports
        contents = context.parallelize(orders, len(orders))
        with described(context, f"{called(self.name)}: {self.does}"):
            made: list[bytes] = contents.map(self.function).collect()
        return made


def merges(spark: SparkSession, name: str | None) -> ResultJobs[MergeTask, MergeReport]:
    """The jobs that merge result files."""
    return ResultJobs(spark, name, "merge", "merge result files", _merged, MergeReport)


def deliveries(spark: SparkSession, name: str | None) -> ResultJobs[DeliverTask, DeliverReport]:
    """The jobs that deliver result files to topics."""
    return ResultJobs(spark, name, "deliver", "deliver results", _delivered, DeliverReport)


def _merged(content: bytes) -> bytes:
    settle_in()
    return encode(merge(decode(content, MergeTask), MACHINE))


def _delivered(content: bytes) -> bytes:
    settle_in()
    return encode(deliver(decode(content, DeliverTask), MACHINE))
