"""Spark sessions: the settings that help, and those that a query cannot do without.

Why the settings: over unix domain sockets a Python task costs 15 ms less than over loopback TCP; a
checkpoint manager that goes through `FileSystem` writes Spark's own logs in 20 ms a batch less than
the default on a local disk; with a limit on an Arrow batch's bytes Spark adds up all its buffers
after every row, half of what a row costs on its way to Python, so batches are limited by rows
alone; the JVM's optimising compiler is kept for loops over tuples, since on two cores it takes a
third of the machine for minutes to optimise planning code (docs/decisions/0004 has the figures).
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from joinengine.model.errors import InvalidRequest
from joinengine.spark.interpreter import check_interpreter
from joinengine.spark.source import JoinEngineSource

_HELPS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.shuffle.partitions": "8",
    # Ten times the JVM's default thresholds for optimising. A loop over tuples reaches them in the
    # first batch; code that plans a batch never does.
    "spark.driver.extraJavaOptions": (
        "-XX:+UseParallelGC -XX:Tier4InvocationThreshold=50000 "
        "-XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
        "-XX:Tier4BackEdgeThreshold=400000"
    ),
}
_UNIX_SOCKETS = "PYSPARK_UDS_MODE"


def session(name: str = "joinengine", master: str = "local[*]", **settings: str) -> SparkSession:
    """A SparkSession with settings that help; `settings`: further ones, with `__` for dots.

    If this process has a session, it is returned as it is, with joinengine's source registered.
    """
    if SparkSession.getActiveSession() is None:
        os.environ.setdefault(_UNIX_SOCKETS, "true")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (_HELPS | {k.replace("__", "."): v for k, v in settings.items()}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    prepare(spark)
    return spark


def prepare(spark: Any) -> None:
    """Register joinengine's source in a classic session; warns once if a setting is missing.

    Raises InvalidRequest for a Spark Connect session.
    """
    if not isinstance(spark, SparkSession) or _is_connect(spark):
        raise InvalidRequest(
            "this is a Spark Connect session; joinengine needs a classic one: "
            "SparkSession.builder.master(...), or joinengine.session()"
        )
    spark.dataSource.register(JoinEngineSource)
    if os.environ.get(_UNIX_SOCKETS, "").lower() != "true" and not getattr(
        prepare, "warned", False
    ):
        prepare.warned = True  # type: ignore[attr-defined]
        warnings.warn(
            f"set the environment variable {_UNIX_SOCKETS}=true before the session starts, or use "
            f"joinengine.session(): each Python task then costs about 15 ms less",
            stacklevel=3,
        )


def parallelism(spark: SparkSession) -> int:
    """As many tasks as there are cores."""
    return max(1, spark.sparkContext.defaultParallelism)


def zone() -> str:
    """The time zone of the Spark session, for dates and hours of instants; no session: UTC."""
    try:
        return str(SparkSession.active().conf.get("spark.sql.session.timeZone"))
    except PySparkRuntimeError:
        return "UTC"


def check_settings(spark: SparkSession) -> None:
    """Raise InvalidRequest for a setting or a Python under which a batch could not be trusted."""
    name = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
    if str(spark.conf.get(name, "true")).lower() == "false":
        raise InvalidRequest(
            f"{name} is false: a retried shuffle could then mix two attempts; set it to true"
        )
    check_interpreter(spark.sparkContext)


def _is_connect(spark: Any) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")
