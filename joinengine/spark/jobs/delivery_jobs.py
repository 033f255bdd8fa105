"""Results that are delivered to an outside system by one Spark job, or by tasks that stay.

A task that stays keeps its producers from one delivery to the next; the order of the tasks is that
of the writers, so a writer finds its producer where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from joinengine.results.kafka_writers import DeliverReport, DeliverTask, deliver
from joinengine.spark.jobs.merge_jobs import carried_out
from joinengine.spark.jobs.tasks import settle_in
from joinengine.wire.codec import decode, encode
from joinengine.world.world import MACHINE


@dataclass(frozen=True)
class SparkDelivery:
    """Delivers staged result files in one Spark job; `name`: as in `SparkJobs`."""

    spark: SparkSession
    name: str | None = None

    def __call__(self, tasks: Sequence[DeliverTask]) -> list[DeliverReport]:
        """The reports, in the order of the tasks."""
        orders = [encode(task) for task in tasks]
        what = "deliver", "deliver results"
        reports = carried_out(self, self.spark, self.name, what, deliver_files, orders)
        return [decode(report, DeliverReport) for report in reports]


def deliver_files(content: bytes) -> bytes:
    """Carries out one task of a delivery."""
    settle_in()
    return encode(deliver(decode(content, DeliverTask), MACHINE))
