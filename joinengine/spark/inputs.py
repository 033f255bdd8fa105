"""The inputs of a query: `Stream`s, tables, and any other streaming DataFrame."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from joinengine.exchange.feeds import Reading
from joinengine.model.columns import require_column
from joinengine.model.errors import InvalidRequest
from joinengine.predicates.dialect import compile_predicate
from joinengine.spark import session, types
from joinengine.spark.source import NAME, filters_to_json


@dataclass(frozen=True, eq=False)
class Stream:
    """Parquet files as a stream; route tasks read them, so no tuple passes through the JVM.

    Made by `parquet_stream`. Immutable; `where` and `select` return narrower streams.
    """

    spark: Any
    feed: dict[str, Any]
    reading: Reading

    @property
    def schema(self) -> Any:
        """The Spark schema of its tuples."""
        return types.spark_schema(self.reading.schema)

    def where(self, predicate: str) -> Stream:
        """Only tuples for which `predicate` is true, filtered as they are read.

        It is in the dialect of all predicates (docs/predicates.md), over the columns of the files,
        in the time zone of the Spark session. Raises InvalidRequest for anything else.
        """
        whole = self.reading.columns
        compiled = compile_predicate(
            predicate, (whole, pa.schema([])), "Stream.where", session.zone()
        )
        filters = (*self.reading.filters, compiled)
        return replace(self, reading=replace(self.reading, filters=filters))

    def select(self, columns: list[str]) -> Stream:
        """Only these columns; the others are not read.

        Raises InvalidRequest for a column that is not there.
        """
        schema = self.reading.schema
        for name in columns:
            require_column(schema, name, "select")
        narrow = pa.schema([schema.field(name) for name in columns])
        reading = replace(self.reading, schema=narrow, whole=self.reading.columns)
        return replace(self, reading=reading)

    def to_df(self) -> DataFrame:
        """The same tuples as an ordinary streaming DataFrame of rows.

        Its offsets count row groups in the order of the files' modification times: keep the files.
        """
        import json  # noqa: PLC0415

        session.prepare(self.spark)
        reader = (
            self.spark.readStream.format(NAME)
            .schema(self.schema)
            .option("feeds", json.dumps([self.feed]))
            .option("partitions", session.parallelism(self.spark))
            .option("rows", "true")
        )
        if self.reading.filters:
            reader = reader.option("filters", filters_to_json(self.reading))
        frame: DataFrame = reader.load()
        return frame


@dataclass(frozen=True, eq=False)
class Table:
    """A bounded Parquet file or folder, by its path, for the table side of a join."""

    spark: Any
    path: str
    schema: pa.Schema

    def select(self, columns: list[str]) -> Table:
        """Only these columns. Raises InvalidRequest for a column that is not there."""
        fields = [require_column(self.schema, name, "select") for name in columns]
        return replace(self, schema=pa.schema(fields))

    def to_df(self) -> DataFrame:
        """As a DataFrame."""
        frame: DataFrame = self.spark.read.parquet(self.path).select(*self.schema.names)
        return frame


Source = Stream | DataFrame | Table


def parquet_stream(
    spark: SparkSession,
    folder: str | Path,
    *,
    rows_per_interval: int = 1_000_000,
    schema: Any = None,
) -> Stream:
    """The Parquet files below `folder` as a stream; new files are picked up as they appear.

    An interval (micro-batch) takes whole row groups until `rows_per_interval` rows are reached.
    Write files elsewhere and rename them into the folder. `schema` (a Spark StructType) is needed
    only if the folder is still empty.

    Raises InvalidRequest for a missing folder, an empty one without schema, a broken file, or
    rows_per_interval below 1.
    """
    session.prepare(spark)
    if rows_per_interval < 1:
        raise InvalidRequest(f"rows_per_interval: {rows_per_interval} must be at least 1")
    path = Path(folder).expanduser().absolute()
    columns = types.folder_schema(path) if schema is None else types.arrow_schema(schema)
    feed = {"kind": "folder", "path": str(path), "rows_per_interval": rows_per_interval}
    return Stream(spark, feed, Reading(columns))


def recorded_stream(spark: SparkSession | None, index: Path, schema: pa.Schema) -> Stream:
    """A finite stream that was written with its intervals (`feeds.RecordedFeed`)."""
    columns = types.arrow_schema(types.spark_schema(schema))
    return Stream(spark, {"kind": "recorded", "path": str(index)}, Reading(columns))


def recorded_table(spark: SparkSession | None, path: Path) -> Table:
    """A table: one Parquet file or a folder of them; `spark`: None: the query will not run."""
    return Table(spark, str(path), types.folder_schema(path))


def schema_of(source: Source) -> pa.Schema:
    """The Arrow schema of an input."""
    if isinstance(source, Table):
        return source.schema
    if isinstance(source, Stream):
        return source.reading.schema
    return types.arrow_schema(source.schema)


def delay_of(source: Source, column: str) -> int | None:
    """The delay of the input's `withWatermark` on `column`, in microseconds; None: it has none."""
    if not isinstance(source, DataFrame):
        return None
    metadata: dict[str, Any] = source.schema[column].metadata or {}
    delay = metadata.get("spark.watermarkDelayMs")
    return None if delay is None else int(delay) * 1000
