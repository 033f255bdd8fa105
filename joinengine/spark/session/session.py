"""Spark sessions: the settings that help, and those that a query cannot do without.

Why the settings: over unix domain sockets a Python task costs 15 ms less than over loopback TCP; a
checkpoint manager that goes through `FileSystem` writes Spark's own logs in some 40 ms a batch less
than the default on a local disk; with a limit on an Arrow batch's bytes Spark adds up all its
buffers after every row, half of what a row costs on its way to Python, so batches are limited by
rows alone; the JVM's optimising compiler is kept for loops over tuples, since on two cores it takes
a third of the machine for minutes to optimise planning code (docs/decisions/0004 has the figures).

In a session that the user has made, a query sets for itself what a query can have for itself
(`for_query`, joinengine.spark.session.tuning); the rest is named in one warning.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from py4j.clientserver import ClientServer
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from joinengine.model.arguments import kind_of
from joinengine.model.errors import InvalidRequest
from joinengine.spark.query.waiting import interrupted_later
from joinengine.spark.session import archive, daemon, tuning, warming
from joinengine.spark.session.early import begun_early
from joinengine.spark.session.home import lent_spark_home, serves_workers
from joinengine.spark.session.interpreter import check_interpreter
from joinengine.spark.session.java import check_java

#: An offset of a time zone, as Java takes it.
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")
#: Where all of Spark runs on this machine, nobody else need reach the driver.
_LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
_HELPS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Spark's old type of instants has no time zone, and other readers give it 64 bits of ns.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    tuning.ARROW_BYTES: str(tuning.NO_LIMIT),
    tuning.ARROW_ROWS: str(tuning.ROWS),
    tuning.CHECKPOINT_MANAGER: tuning.BY_FILE_SYSTEM,
    "spark.sql.shuffle.partitions": "8",
    # Ten times the JVM's default thresholds for optimising. A loop over tuples reaches them in the
    # first batch; code that plans a batch never does. And room for the classes that Spark loads at
    # its start: from the JVM's 21 MB on it collects its whole heap four times over them.
    tuning.JVM_OPTIONS: (
        "-XX:+UseParallelGC -XX:MetaspaceSize=200m "
        "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
        "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
    ),
}
#: The page keeps what it shows in the driver's memory, and a query has jobs without end.
_UI = {
    "spark.ui.enabled": "true",
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.ui.retainedTasks": "5000",
    "spark.sql.ui.retainedExecutions": "100",
}
#: Spark's loggers of errors that end a query, and so reach the user's program.
_TOLD_BY_US = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",  # until 4.0
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
)
#: Else Spark begins each program with seven lines of its own.
_LOG = Path(__file__).with_name("log4j2.properties")
#: Far longer than Spark takes to start a query, in seconds.
_START_S = 10.0
_starting = threading.Lock()


def session(
    name: str = "joinengine", master: str | None = None, *, ui: bool = False, **settings: str
) -> SparkSession:
    """A SparkSession with settings that suit joinengine.

    `master`: if not given, that of spark-submit, else `local[*]`.
    `ui`: turn on Spark's web page, at `spark.sparkContext.uiWebUrl`.
    `settings`: further settings of Spark, with `__` for dots: `spark__driver__memory="4g"`.

    If this process already has a session, that one is returned. It gets those of the settings that
    can still be changed, among them the time zone UTC.

    Spark logs errors only; `spark.sparkContext.setLogLevel("WARN")` makes it log more. The web page
    is off by default. Under a local master, only this machine can open it. It costs about 5 MB of
    the driver's heap, because it keeps the last 200 jobs only, and no measurable time
    (docs/metrics.md). Its jobs are named after the query, the batch, and the step or operator. It
    shows no state, watermarks or instances, nor the rows of a `parquet_stream`.

    Raises InvalidRequest if there is no Java, or if Java is too old for Spark.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    master = "local[*]" if master is None and not submitted else master
    local = master is not None and master.startswith("local")
    if SparkSession.getActiveSession() is None:
        # Spark's Python and its JVM must agree on sockets; one that runs keeps its environment.
        if SparkContext._gateway is None and not submitted:
            os.environ.setdefault(tuning.UNIX_SOCKETS, "true")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if ui and local:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else the page binds to any
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    helps = _HELPS | (_LOOPBACK if local else {}) | (_UI if ui else {})
    if serves_workers(master):
        helps[daemon.SETTING] = daemon.MODULE
        helps[tuning.JVM_OPTIONS] += f" {archive.use_options()}"
        if not {"SPARK_CONF_DIR", "SPARK_HOME"} & os.environ.keys():  # which may have one of theirs
            helps[tuning.JVM_OPTIONS] += f" -Dlog4j2.configurationFile={_LOG.as_uri()}"
    for key, value in (helps | {k.replace("__", "."): v for k, v in settings.items()}).items():
        builder = builder.config(key, value)
    # Executors of their own have a daemon each, and tasks wait for the last of them anyway.
    alone = serves_workers(master) and not str(master).startswith("local-cluster")
    if SparkContext._gateway is None and not submitted:
        check_java()
    begins = alone and SparkContext._gateway is None
    # A JVM that PySpark does not wait for would never end.
    with (
        interrupted_later(),
        lent_spark_home(master or "spark-submit"),
        begun_early(daemon.MODULE, serves=begins),
    ):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if local:
        _leave_to_us(spark)
    check_classic(spark)
    with warming.warmed(spark) if begins else nullcontext():
        zone()  # the first question about SQL takes a third of a second
    return spark


def _leave_to_us(spark: Any) -> None:
    """Spark does not print the errors that end a query.

    It would print each three times, with pages of traces, before the user's program gets the one
    sentence; joinengine hands the trace to its own logger (joinengine.spark.jobs.failures). Where
    executors are other machines, their errors may not end a query, and stay in Spark's log.
    """
    log4j = spark._jvm.org.apache.logging.log4j
    for name in _TOLD_BY_US:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def check_classic(spark: Any) -> None:
    """Raise InvalidRequest for a Spark Connect session, and for what is no session."""
    if _is_connect(spark):
        raise InvalidRequest(
            "joinengine needs a classic Spark session, and this is a Spark Connect session; use "
            "SparkSession.builder.master(...) or joinengine.session()"
        )
    if not isinstance(spark, SparkSession):
        raise InvalidRequest(
            f"the first argument must be a Spark session, not {kind_of(spark)}; write "
            "parquet_stream(joinengine.session(), 'clicks')"
        )


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Let Spark read by a source of ours.

    Only for who needs it: Spark then starts a Python process that looks for sources, for a second.
    """
    # Spark warns of a name that is registered a second time.
    known = spark._jsparkSession.sessionState().dataSourceManager()
    if not known.dataSourceExists(source.name()):
        spark.dataSource.register(source)


@cache
def warn_of_missing(spark: Any) -> None:
    """Warn once of what a session lacks whose streaming DataFrames are read."""
    sockets = spark.sparkContext.getConf().get(
        "spark.python.unix.domain.socket.enabled", os.environ.get(tuning.UNIX_SOCKETS, "")
    )
    management = spark._jvm.java.lang.management.ManagementFactory
    missing = tuning.missing(
        unix_sockets=sockets.lower() == "true",
        jvm_arguments=list(management.getRuntimeMXBean().getInputArguments()),
        manager=not paths_are_local(spark) or _chosen(spark, tuning.CHECKPOINT_MANAGER),
    )
    if missing:
        warnings.warn(
            f"joinengine runs faster in a session started with {'; '.join(missing)}. A running "
            "session cannot be changed; joinengine.session() starts one with these settings",
            stacklevel=2,
        )


def paths_are_local(spark: Any) -> bool:
    """Whether Spark takes a path without a scheme for one of the local file system."""
    default = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    return bool(default.startswith("file:"))


def _chosen(spark: Any, name: str) -> bool:
    """Whether somebody has set `name`."""
    return spark.conf.get(name, None) is not None


@contextmanager
def for_query(spark: Any) -> Iterator[None]:
    """A query that is started inside writes its own logs faster, if its checkpoint is local.

    Spark clones the session while a query starts, and the logs of the query go by the clone. So the
    setting is in the session of the user for as long as the start takes, and then gone; Spark's own
    sources may or may not see it there. One start at a time, else the first that is done would take
    the setting from the others. A start that has waited for _START_S seconds (since it comes from a
    listener that was called by another start) goes on without it.
    """
    name = tuning.CHECKPOINT_MANAGER
    alone = paths_are_local(spark) and _starting.acquire(timeout=_START_S)
    ours = False
    try:
        if alone and not _chosen(spark, name):
            spark.conf.set(name, tuning.BY_FILE_SYSTEM)
            ours = True
        yield
    finally:
        if ours:
            spark.conf.unset(name)
        if alone:
            _starting.release()


def parallelism(spark: SparkSession) -> int:
    """As many tasks as there are cores."""
    return max(1, spark.sparkContext.defaultParallelism)


def current() -> SparkSession | None:
    """The session of this thread, else that of the process; None: there is none."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def zone(spark: SparkSession | None = None) -> str:
    """The time zone of a session, for dates and hours of instants.

    `spark`: None: the current session; if there is none, UTC.
    """
    spark = spark or current()
    if spark is None:
        return "UTC"
    return zone_of(str(spark.conf.get("spark.sql.session.timeZone")))


def zone_of(text: str) -> str:
    """A time zone in the one form that Arrow and DuckDB read as Spark does.

    >>> [zone_of(text) for text in ("Z", "-8", "GMT+2", "UTC+01:30", "Europe/Berlin")]
    ['UTC', '-08:00', '+02:00', '+01:30', 'Europe/Berlin']
    """
    if text in ("Z", "UT", "GMT0"):
        return "UTC"
    offset = _OFFSET.fullmatch(text)
    if offset is None:
        return text
    sign, hours, minutes = offset.groups(default="00")
    return f"{sign}{hours:0>2}:{minutes}" if int(hours) or int(minutes) else "UTC"


def case_sensitive(spark: SparkSession | None = None) -> bool:
    """Whether names of columns must have the case of the column.

    `spark`: None: the current session; if there is none, they need not.
    """
    spark = spark or current()
    return spark is not None and str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"


def check_settings(spark: SparkSession) -> None:
    """Raise InvalidRequest for a setting or a Python under which a batch could not be trusted."""
    name = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
    if str(spark.conf.get(name, "true")).lower() == "false":
        raise InvalidRequest(
            f"{name} is false, so a retried shuffle could mix rows of two attempts; set it to true"
        )
    if not isinstance(SparkContext._gateway, ClientServer):
        raise InvalidRequest(
            "PYSPARK_PIN_THREAD is false, so jobs of two queries could get each other's "
            "instructions; remove it from the environment before the session starts"
        )
    check_interpreter(spark.sparkContext)


def _is_connect(spark: Any) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")
