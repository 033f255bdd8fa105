"""Makes writers for Spark's formats and tables, and checks them before a query starts.

Why: Spark looks for a format or a table only when the first batch is written, deep inside the
running query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from joinengine.model.errors import InvalidRequest
from joinengine.model.named import meant
from joinengine.spark.query.query_folders import Output
from joinengine.spark.session import session
from joinengine.spark.sources.locations import local_path

_FILE_FORMATS = ("avro", "csv", "json", "orc", "text", "xml")
FrameWriter = Callable[[DataFrame, int], None]
#: Formats that the engine writes, for a message.
_OURS = ("parquet", "delta", "iceberg", "kafka", "console", "memory", "noop")


def format_writer(
    spark: SparkSession, kind: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
) -> FrameWriter:
    """A writer that appends each batch in a batch format of Spark.

    Raises InvalidRequest if Spark does not know the format, or if a file format has no path.
    """
    _check_format(spark, kind)
    if kind.lower() in _FILE_FORMATS and "path" not in options:
        raise InvalidRequest(f"{kind}: path is missing: give .option('path', folder)")

    def write(frame: DataFrame, batch: int) -> None:
        mode = "overwrite" if kind == "noop" else "append"
        frame.write.format(kind).options(**options).partitionBy(*partition_by).mode(mode).save()

    return write


def output_of(options: Mapping[str, str]) -> Output | None:
    """The folder into which a format of Spark writes; None: it is none of a POSIX file system."""
    path = options.get("path", "")
    if not path or "://" in path.removeprefix("file://"):
        return None
    return Output(str(local_path(path, "path")))


def console_writer(rows: int, truncate: bool) -> FrameWriter:
    """A writer that prints the first `rows` rows of each batch."""

    def show(frame: DataFrame, batch: int) -> None:
        rule = "-" * 43
        print(f"{rule}\nBatch: {batch}\n{rule}", flush=True)
        frame.show(rows, truncate)

    return show


def table_writer(
    spark: SparkSession,
    table: str,
    partition_by: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> FrameWriter:
    """A writer that appends each batch to a table; the first batch creates a missing table.

    `columns`: those of the results; None: a function of the user's decides. Raises InvalidRequest
    for an invalid name, a missing database, a view, or a table with other columns.
    """
    if _check_table(spark, table) and columns is not None:
        exact = session.case_sensitive(spark)
        _check_columns(table, spark.table(table).columns, columns, exact=exact)

    def append(frame: DataFrame, batch: int) -> None:
        frame.write.partitionBy(*partition_by).mode("append").saveAsTable(table)

    return append


def _check_format(spark: Any, kind: str) -> None:
    sources = spark._jvm.org.apache.spark.sql.execution.datasources.DataSource
    try:
        sources.lookupDataSource(kind, spark._jsparkSession.sessionState().conf())
    except (Py4JJavaError, PySparkException) as error:
        raise InvalidRequest(
            f"format: Spark does not know {kind!r}, and joinengine itself writes "
            f"{', '.join(_OURS)}. Correct the name, or add the package of the format to the "
            f"session (spark.jars.packages){meant(kind, _OURS)}"
        ) from error


def _check_columns(
    table: str, there: Sequence[str], results: Sequence[str], *, exact: bool
) -> None:
    """Raise InvalidRequest for results that Spark, which matches names, cannot append."""
    as_spark = str if exact else str.lower
    if {as_spark(name) for name in there} != {as_spark(name) for name in results}:
        raise InvalidRequest(
            f"toTable: {table!r} has the columns {', '.join(there)}, and the results have "
            f"{', '.join(results)}; change the table (ALTER TABLE .. ADD COLUMNS), choose the "
            "columns with select=, or name another table"
        )


def _check_table(spark: Any, table: str) -> bool:
    """Whether the table exists."""
    if not isinstance(table, str):
        raise InvalidRequest(f"toTable: {table!r} is not a table name; give text")
    try:
        parser = spark._jsparkSession.sessionState().sqlParser()
        parts = list(parser.parseMultipartIdentifier(table).mkString("\0").split("\0"))
    except (ParseException, Py4JJavaError):
        raise InvalidRequest(f"toTable: {table!r} is not a table name") from None
    database = ".".join(f"`{part.replace('`', '``')}`" for part in parts[:-1])
    try:
        if database and not spark.catalog.databaseExists(database):
            raise InvalidRequest(
                f"toTable: {table!r}: database {database} does not exist; create it, or name "
                "another one"
            )
        kind = spark.catalog.getTable(table).tableType if spark.catalog.tableExists(table) else ""
    except AnalysisException as error:
        raise InvalidRequest(f"toTable: {table!r}: {error.getMessage()}") from None
    if kind in ("VIEW", "TEMPORARY"):
        raise InvalidRequest(f"toTable: {table!r} is a view; name a table")
    return bool(kind)
