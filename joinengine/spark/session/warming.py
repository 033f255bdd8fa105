"""Workers that start before the first batch needs them.

Why: the first job of a session waits for code of Spark's that has not run, the first task of a
worker for a process and for its imports. In a session of ours that happens beside what the driver
does for the session; `session()` waits for both, since a program that stops it at once would get a
trace of Spark's about the job. In another session workers start while the first query does, if
its steps are jobs. Tasks that stay would wait for that job.
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
    """The workers start beside what is done inside, and are there at its end."""
    starting = warm(spark)
    try:
        yield
    finally:
        if starting is not None:
            starting.join()


def warm(spark: SparkSession) -> Thread | None:
    """Start a worker for each core of this machine, once for a session, without waiting for it.

    Where executors are other machines they may lack joinengine, or not be there yet: nothing is
    done. A batch that comes before the workers are ready waits for them as it would anyway.
    """
    context = spark.sparkContext
    if not serves_workers(context.master) or context.applicationId in _warmed:
        return None
    _warmed.add(context.applicationId)
    starting = Thread(target=_start, args=(spark,), name="joinengine-warm", daemon=True)
    starting.start()
    return starting


def _start(spark: SparkSession) -> None:
    # What keeps workers from starting is told when a batch needs them.
    with suppress(Exception):
        context = spark.sparkContext
        context.setJobGroup("joinengine-warm", "joinengine: start workers")
        tasks = max(1, context.defaultParallelism)
        context.parallelize(range(tasks), tasks).foreachPartition(_settled)


def _settled(_: Iterable[int]) -> None:
    settle_in()
