"""Workers that start before the first batch needs them.

Why: the first task of a worker waits for a process and for its imports. While a query starts, the
driver reads and plans, which needs the workers only at its end. They are not started with the
session: a program that stops it at once would get a trace of Spark's about the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from threading import Thread

from pyspark.sql import SparkSession

from joinengine.spark.home import serves_workers
from joinengine.spark.tasks import settle_in

#: The group of the job that does it.
GROUP = "joinengine-warm"
#: The applications of Spark whose workers have been started.
_warmed = set[str]()


def warm(spark: SparkSession) -> None:
    """Start a worker for each core of this machine, once for a session, without waiting for it.

    Where executors are other machines they may lack joinengine, or not be there yet: nothing is
    done. A batch that comes before the workers are ready waits for them as it would anyway.
    """
    context = spark.sparkContext
    if serves_workers(context.master) and context.applicationId not in _warmed:
        _warmed.add(context.applicationId)
        Thread(target=_start, args=(spark,), name="joinengine-warm", daemon=True).start()


def _start(spark: SparkSession) -> None:
    # What keeps workers from starting is told when a batch needs them.
    with suppress(Exception):
        context = spark.sparkContext
        context.setJobGroup(GROUP, "joinengine: start workers")
        tasks = max(1, context.defaultParallelism)
        context.parallelize(range(tasks), tasks).foreachPartition(_settled)


def _settled(_: Iterable[int]) -> None:
    settle_in()
