"""Makes Spark sessions with settings that help, and checks the settings that a query needs.

Why the settings (figures in docs/decisions/0004): over unix domain sockets, a Python task costs 15
ms less than over loopback TCP. A checkpoint manager that uses `FileSystem` writes Spark's own logs
some 40 ms a batch faster than the default on a local disk. With a byte limit on Arrow batches,
Spark adds up all buffers after every row, which is half of a row's cost on its way to Python; so
batches are limited only by rows. The JVM's optimising compiler is reserved for loops over tuples,
because on two cores it would take a third of the machine for minutes to optimise planning code.

In a session that the user has made, a query applies the settings that can be set for one query
(`for_query`, `joinengine.spark.session.tuning`), and names the others in one warning.
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
#: If all of Spark runs on this machine, no other machine needs to reach the driver.
_LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
_HELPS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Spark's old type of instants has no time zone, and other readers read it as 64-bit ns.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    tuning.ARROW_BYTES: str(tuning.NO_LIMIT),
    tuning.ARROW_ROWS: str(tuning.ROWS),
    tuning.CHECKPOINT_MANAGER: tuning.BY_FILE_SYSTEM,
    "spark.sql.shuffle.partitions": "8",
    # Ten times the JVM's default thresholds for optimising: a loop over tuples reaches them in the
    # first batch, code that plans a batch never does. And room for the classes that Spark loads at
    # its start: from the default of 21 MB, the JVM would collect its whole heap four times.
    tuning.JVM_OPTIONS: (
        "-XX:+UseParallelGC -XX:MetaspaceSize=200m "
        "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
        "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
    ),
}
#: The page keeps its content in the driver's memory, and a query has jobs without end.
_UI = {
    "spark.ui.enabled": "true",
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.ui.retainedTasks": "5000",
    "spark.sql.ui.retainedExecutions": "100",
}
#: Spark's loggers of errors that end a query; joinengine reports these errors itself.
_TOLD_BY_US = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",  # until 4.0
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
)
#: The log settings without which Spark begins each program with seven lines of its own.
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
        # Spark's Python and its JVM must agree on sockets; a running JVM keeps its environment.
        if SparkContext._gateway is None and not submitted:
            os.environ.setdefault(tuning.UNIX_SOCKETS, "true")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if ui and local:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or the page binds to any address
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    helps = _HELPS | (_LOOPBACK if local else {}) | (_UI if ui else {})
    if serves_workers(master):
        helps[daemon.SETTING] = daemon.MODULE
        helps[tuning.JVM_OPTIONS] += f" {archive.use_options()}"
        if not {"SPARK_CONF_DIR", "SPARK_HOME"} & os.environ.keys():  # these may have log settings
            helps[tuning.JVM_OPTIONS] += f" -Dlog4j2.configurationFile={_LOG.as_uri()}"
    for key, value in (helps | {k.replace("__", "."): v for k, v in settings.items()}).items():
        builder = builder.config(key, value)
    # Separate executors have a daemon each, and tasks wait for the last of these anyway.
    alone = serves_workers(master) and not str(master).startswith("local-cluster")
    if SparkContext._gateway is None and not submitted:
        check_java()
    begins = alone and SparkContext._gateway is None
    # A JVM would never end if PySpark did not wait for it.
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
    """Keep Spark from printing the errors that end a query.

    It would print each three times, with pages of traces, before the user's program gets the one
    sentence. joinengine gives the trace to its own logger (`joinengine.spark.jobs.failures`). If
    executors are other machines, their errors may not end a query, and stay in Spark's log.
    """
    log4j = spark._jvm.org.apache.logging.log4j
    for name in _TOLD_BY_US:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def check_classic(spark: Any) -> None:
    """Raise InvalidRequest for a Spark Connect session, and for an object that is no session."""
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
    """Register a data source of joinengine's with Spark.

    Call it only if needed: Spark then starts a Python process that looks for sources for a second.
    """
    # Spark warns of a name that is registered a second time.
    known = spark._jsparkSession.sessionState().dataSourceManager()
    if not known.dataSourceExists(source.name()):
        spark.dataSource.register(source)


@cache
def warn_of_missing(spark: Any) -> None:
    """Warn once of helpful settings that a session with streaming DataFrames lacks."""
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
    """Whether Spark reads a path without a scheme as one of the local file system."""
    default = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    return bool(default.startswith("file:"))


def _chosen(spark: Any, name: str) -> bool:
    """Whether the setting `name` has been set explicitly."""
    return spark.conf.get(name, None) is not None


@contextmanager
def for_query(spark: Any) -> Iterator[None]:
    """A Spark query that is started in the block writes its logs faster on a local disk.

    Spark clones the session while a query starts, and the query's logs follow the clone. So the
    setting is in the user's session only during the start; Spark's own sources may or may not see
    it. Starts take turns, because the first one to finish removes the setting. A start that has
    waited for _START_S seconds (for example, from a listener that another start has called) goes on
    without the setting.
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
    """The number of tasks that run at a time: that of cores."""
    return max(1, spark.sparkContext.defaultParallelism)


def current() -> SparkSession | None:
    """The session of this thread, else that of the process; None: there is none."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _or_current(spark: object) -> SparkSession | None:
    """The session that is given, else the current one; the start of a query checks sessions."""
    return spark if isinstance(spark, SparkSession) else current()


def zone(spark: SparkSession | None = None) -> str:
    """The time zone of a session, for dates and hours of instants.

    `spark`: None: the current session; if there is none, UTC.
    """
    spark = _or_current(spark)
    if spark is None:
        return "UTC"
    return zone_of(str(spark.conf.get("spark.sql.session.timeZone")))


def zone_of(text: str) -> str:
    """A time zone in the form that Arrow and DuckDB read as Spark does.

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
    spark = _or_current(spark)
    return spark is not None and str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"


def check_settings(spark: SparkSession) -> None:
    """Raise InvalidRequest for a setting or a Python with which a batch could be wrong."""
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
