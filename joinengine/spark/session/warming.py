"""Starts workers before the first batch needs them.

Why: the first job of a session waits for Spark's code that has never run, and the first task of a
worker waits for a process and its imports. In a session of joinengine's, this happens in parallel
with the driver's work for the session. `session()` waits for both, since a program that stops Spark
at once would get a trace about the job. In any other session, workers start together with the first
query, if its steps are jobs; resident tasks would have to wait for that job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from pyspark.sql import SparkSession

from joinengine.spark.jobs.tasks import settle_in
from joinengine.spark.session.home import serves_workers

#: The applications of Spark whose workers have been started.
_warmed = set[str]()


@contextmanager
def warmed(spark: SparkSession) -> Iterator[None]:
    """The workers start in parallel with the block, and are ready at its end."""
    starting = warm(spark)
    try:
        yield
    finally:
        if starting is not None:
            starting.join()


def warm(spark: SparkSession) -> Thread | None:
    """Start a worker for each core of this machine, once for a session, without waiting for it.

    If executors are other machines, nothing is done: they may lack joinengine, or not exist yet. A
    batch that comes before the workers are ready waits for them, as it would anyway.
    """
    context = spark.sparkContext
    if not serves_workers(context.master) or context.applicationId in _warmed:
        return None
    _warmed.add(context.applicationId)
    starting = Thread(target=_start, args=(spark,), name="joinengine-warm", daemon=True)
    starting.start()
    return starting


def _start(spark: SparkSession) -> None:
    # A batch that needs workers reports why they cannot start.
    with suppress(Exception):
        context = spark.sparkContext
        context.setJobGroup("joinengine-warm", "joinengine: start workers")
        tasks = max(1, context.defaultParallelism)
        context.parallelize(range(tasks), tasks).foreachPartition(_settled)


def _settled(_: Iterable[int]) -> None:
    settle_in()
