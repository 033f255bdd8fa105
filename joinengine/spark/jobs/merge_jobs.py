"""Result files that are merged by one Spark job, or by tasks that stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from joinengine.results.merging import MergeReport, MergeTask
from joinengine.spark.jobs.failures import told_by_spark
from joinengine.spark.jobs.slots import obstacle, pool_of
from joinengine.spark.jobs.spark_jobs import called, described
from joinengine.spark.jobs.tasks import merge_files
from joinengine.staying.orders import Failed
from joinengine.wire.codec import decode, encode


@dataclass(frozen=True)
class SparkMerge:
    """Merges staged result files in one Spark job; instructions travel with the job.

    `name`: as in `SparkJobs`.
    """

    spark: SparkSession
    name: str | None = None

    def __call__(self, tasks: Sequence[MergeTask]) -> list[MergeReport]:
        """The reports, in the order of the tasks."""
        orders = [encode(task) for task in tasks]
        what = "merge", "merge result files"
        reports = carried_out(self, self.spark, self.name, what, merge_files, orders)
        return [decode(report, MergeReport) for report in reports]


def carried_out(
    owner: object,
    spark: SparkSession,
    name: str | None,
    what: tuple[str, str],
    function: Callable[[bytes], bytes],
    orders: Sequence[bytes],
) -> Sequence[bytes]:
    """What tasks make of instructions, in their order: those that stay, if any do, or a job's.

    `owner`: who asks, as pools know them; `what`: the name of the function, and what it does.
    """
    context = spark.sparkContext
    pool = pool_of(context) if obstacle(context) is None else None
    if pool is not None and pool.holds:  # a job would wait for its slots
        try:
            reports = pool.carry_out(owner, what[0], function, [(order,) for order in orders])
        except Failed as error:
            raise told_by_spark(str(error)) from error
        if not isinstance(reports, str):
            return reports
    contents = context.parallelize(orders, len(orders))
    with described(context, f"{called(name)}: {what[1]}"):
        return contents.map(function).collect()
