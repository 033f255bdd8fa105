"""The inputs of a query: `Stream`s, tables, and any other streaming DataFrame."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from joinengine.model.arguments import check_names, check_text
from joinengine.model.columns import require_column
from joinengine.model.conditions import Computed
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.habits import STREAM, not_there
from joinengine.model.named import one_of
from joinengine.model.spelling import printed_lines
from joinengine.predicates.computed_columns import compile_column
from joinengine.predicates.dialect import compile_predicate
from joinengine.sources.feeds import FeedKind
from joinengine.sources.listing import FileOrder, OnBadFile, SchemaChanges
from joinengine.sources.readings import Reading, reading_to_json
from joinengine.sources.schemas import Footer, as_text, from_text, partition_columns, united
from joinengine.sources.transforms import named
from joinengine.spark.session import session
from joinengine.spark.sources import types
from joinengine.spark.sources.frames import frame_in_store
from joinengine.spark.sources.locations import place
from joinengine.spark.sources.source import NAME
from joinengine.world.buckets import is_url

_log = logging.getLogger("joinengine")


@dataclass(frozen=True, eq=False, repr=False)
class Stream:
    """Parquet files as a stream, made by `parquet_stream`.

    Python tasks read the files, so no row passes through the JVM. A stream never changes: its
    methods return new streams.
    """

    spark: Any
    feed: dict[str, Any]
    reading: Reading
    #: column -> its type, of columns that would be delivered and cannot
    unreadable: Mapping[str, pa.DataType] = field(default_factory=dict)
    #: the footers that are known already, by the path of the file
    footers: Mapping[str, Footer] = field(default_factory=dict, repr=False)
    #: event-time column -> how late its tuples may be, in microseconds
    delays: Mapping[str, int] = field(default_factory=dict)
    #: the columns that `select` has left, and those computed since; None: nobody selected
    selected: tuple[str, ...] | None = None

    if not TYPE_CHECKING:  # else every name would be one for the type checker

        def __getattr__(self, name: str) -> Any:
            raise not_there(self, name, STREAM)

    def __repr__(self) -> str:
        where = "" if self.reading.where is None else f" where {self.reading.where}"
        return f"<Stream of {self.feed['path']}: {_columns(self.reading.schema)}{where}>"

    @property
    def schema(self) -> Any:
        """The Spark schema of its rows. Raises InvalidRequest for a column that has none."""
        return types.spark_schema(self.delivered)

    @property
    def delivered(self) -> pa.Schema:
        """The columns of its tuples. Raises InvalidRequest, by name, for one without a type."""
        for name, kind in self.unreadable.items():
            raise InvalidRequest(
                f"{self.feed['path']}: column {name!r} is of type {kind}, which Spark lacks; "
                "write it as another type, or leave it out with .select([...])"
            )
        return self.reading.schema

    def has_columns(self, columns: pa.Schema) -> bool:
        """Whether its files have these columns, or its user has said which they have."""
        return bool(from_text(self.feed["columns"]).equals(columns)) or (
            self.feed["said"] and self.feed["schema_changes"] == SchemaChanges.REFUSE
        )

    def at_restart(self, kept: pa.Schema) -> Stream:
        """The stream with the columns that a checkpoint keeps; under `add` also with its own."""
        if self.feed["schema_changes"] == SchemaChanges.REFUSE:
            return self.over(kept)
        found = from_text(self.feed["columns"])
        return self.over(united([("checkpoint", kept), *((f.name, pa.schema([f])) for f in found)]))

    def over(self, columns: pa.Schema) -> Stream:
        """The same stream as if its files had `columns`. Raises InvalidRequest as `select`."""
        readable, others = types.readable_columns(columns)
        old = self.reading
        reading = replace(old, schema=readable, steps=(), whole=None)
        feed = self.feed | {"columns": as_text(columns)}
        stream = replace(self, feed=feed, reading=reading, unreadable=others, selected=None)
        for step in old.steps:
            if isinstance(step, Computed):
                stream = stream._computing(step.name, step.text, step.zone)
            else:
                stream = stream._filtered(step.text, step.zone)
        return stream if self.selected is None else stream.select(*self.selected)

    def where(self, predicate: str) -> Stream:
        """Keep only rows for which `predicate` is true; the others are dropped as they are read.

        `predicate`: SQL (docs/predicates.md) over the columns of the files and computed columns, in
        the time zone of the Spark session. Raises InvalidRequest for anything else.
        """
        return self._filtered(check_text(predicate, "Stream.where", "'a > 3'"), session.zone())

    def _filtered(self, predicate: str, zone: str) -> Stream:
        sides, exact = (self.reading.named, pa.schema([])), session.case_sensitive()
        step = compile_predicate(predicate, sides, "Stream.where", zone, exact=exact)
        reading = replace(self.reading, steps=(*self.reading.steps, step))
        return replace(self, reading=reading)

    def withColumn(self, name: str, expression: str) -> Stream:
        """Add a column, or replace the column that has its name.

        `expression`: SQL (docs/predicates.md) over the columns of the files and computed columns,
        such as "cast(amount as double)". It is computed as rows are read. Raises InvalidRequest for
        anything else.
        """
        if not check_text(name, "withColumn", "withColumn('day', 'cast(sold_at as date)')"):
            raise InvalidRequest("withColumn: the name of the column is empty; give one")
        check_text(expression, f"withColumn: {name}", "'cast(sold_at as date)'")
        return self._computing(name, expression, session.zone())

    def _computing(self, name: str, expression: str, zone: str) -> Stream:
        reading, exact = self.reading, session.case_sensitive()
        same = [n for n in reading.named.names if n.lower() == name.lower()]
        there = name if exact or not same else same[0]
        step = compile_column(there, expression, reading.named, zone, exact=exact)
        shown = named(reading.schema, [step])
        new = replace(reading, schema=shown, steps=(*reading.steps, step), whole=reading.columns)
        selected = None if self.selected is None else tuple(shown.names)
        return replace(self, reading=new, selected=selected)

    def withWatermark(self, column: str, delay: str | timedelta) -> Stream:
        """Set how late rows may be by the event time `column`, for windows without `delay`.

        Raises InvalidRequest if the column is missing or is no timestamp, or if `delay` is below 0.
        """
        exact = session.case_sensitive()
        found = require_column(self.reading.schema, column, "withWatermark", exact=exact)
        if not pa.types.is_timestamp(found.type):
            raise InvalidRequest(
                f"withWatermark: event time must be a timestamp, and {found.name} is "
                f"{found.type}; cast it"
            )
        delay_us = microseconds(delay, "withWatermark: delay")
        if delay_us < 0:
            raise InvalidRequest(f"withWatermark: delay {delay!r} is negative; give 0 s or more")
        return replace(self, delays={**self.delays, found.name: delay_us})

    def select(self, *columns: str | list[str]) -> Stream:
        """Keep only these columns, in this order; other columns are not read.

        Raises InvalidRequest for a column that does not exist.
        """
        names = _names_of(columns)
        if not self.unreadable.keys().isdisjoint(names):
            _ = self.delivered  # says what is wrong with the column
        narrow = pa.schema(_chosen(self.reading.schema, names))
        reading = replace(self.reading, schema=narrow, whole=self.reading.columns)
        return replace(self, reading=reading, unreadable={}, selected=tuple(narrow.names))

    def in_order(self, column: str | None) -> dict[str, Any]:
        """The options of its feed, with the column by which files are put in order, if one is.

        `column`: its event time in the query; None: that of its watermark. Raises InvalidRequest
        if the files do not have the column.
        """
        if self.feed.get("order") != FileOrder.TIME:
            return self.feed
        where = f"{self.feed['path']}: order='time'"
        found = column or next(iter(self.delays), None)
        if found is None:
            raise InvalidRequest(
                f"{where} needs the column of event time; give a window (within=..) or "
                ".withWatermark(column, delay)"
            )
        computed = {step.name for step in self.reading.steps if isinstance(step, Computed)}
        folders = partition_columns(self.footers, self.feed["path"]).names
        if found in computed or found in folders:
            raise InvalidRequest(
                f"{where} reads the times of {found!r} from the footers of files, and they lack "
                "this column; use order='name' or order='modified'"
            )
        return self.feed | {"time": found}

    def to_df(self) -> DataFrame:
        """The same rows as an ordinary streaming DataFrame.

        Its offsets count row groups in the order of the files' modification times: keep the files.
        Raises InvalidRequest for another `order`: the DataFrame keeps no list of files, so a later
        file that belongs before others would shift the offsets.
        """
        import json  # noqa: PLC0415

        if self.feed.get("order", FileOrder.MODIFIED) != FileOrder.MODIFIED:
            raise InvalidRequest(
                f"to_df: {self.feed['path']}: order={self.feed['order']!r} needs the list of files "
                "that a joinengine query keeps; use order='modified', or the stream in a join"
            )

        session.prepare(self.spark)
        reader = (
            self.spark.readStream.format(NAME)
            .schema(self.schema)
            .option("feeds", json.dumps([self.feed]))
            .option("partitions", session.parallelism(self.spark))
        )
        frame: DataFrame = reader.option("reading", reading_to_json(self.reading)).load()
        return frame


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """A bounded Parquet file or folder, named by its path, for the table side of a join."""

    spark: Any
    path: str
    schema: pa.Schema

    def __repr__(self) -> str:
        return f"<Table of {self.path}: {_columns(self.schema)}>"

    def select(self, *columns: str | list[str]) -> Table:
        """Keep only these columns. Raises InvalidRequest for a column that does not exist."""
        return replace(self, schema=pa.schema(_chosen(self.schema, _names_of(columns))))

    def to_df(self) -> DataFrame:
        """As a DataFrame."""
        if is_url(self.path):
            return frame_in_store(self.spark, self.path, self.schema)
        frame: DataFrame = self.spark.read.parquet(self.path).select(*self.schema.names)
        return frame


Source = Stream | DataFrame | Table


def _names_of(columns: tuple[str | list[str], ...]) -> list[str]:
    """Columns that are named one by one, or in a list."""
    found = [name for names in columns for name in check_names(names, "select", "select('a', 'b')")]
    if not found:
        raise InvalidRequest("select: no column is named; name at least one")
    return found


def _chosen(schema: pa.Schema, names: list[str]) -> list[pa.Field]:
    """The fields of columns."""
    exact = session.case_sensitive()
    return [require_column(schema, name, "select", exact=exact) for name in names]


def parquet_stream(
    spark: SparkSession,
    folder: str | Path,
    *,
    rows_per_interval: int = 1_000_000,
    schema: Any = None,
    on_bad_file: str = "fail",
    schema_changes: str = "refuse",
    settle: str = "30 s",
    order: str = "modified",
) -> Stream:
    """A stream of the Parquet files in `folder` and its subfolders.

    New files are read as they appear. Write a file elsewhere, and move it into the folder when it
    is complete. A batch reads whole row groups until it has `rows_per_interval` rows.

    `schema`: the columns, as a StructType or DDL text. If not given: all columns of the files that
    are there now, each in its widest type, and those in names of folders (`day=2026-03-01`). An
    empty folder needs it. With very many files it saves time: at most a thousand footers are read.
    A file that lacks a column has NULL there.
    `on_bad_file`: a file is bad if it cannot be read or does not fit the columns. `fail` ends the
    query with an error that names it; `skip` leaves it out and names it in the metrics.
    `schema_changes`: `refuse` calls a file with a further column bad; `add` leaves this column out
    until the query starts again.
    `settle`: a file that cannot be read is tried again until it has not changed for this long.
    `order`: how files that are there are sorted: by modification time (`modified`), path (`name`),
    or the earliest event time in the footer (`time`). Later files are read later (docs/sources.md).

    Raises InvalidRequest for a missing folder, an empty folder without `schema`, files whose
    columns do not go together, and wrong arguments.
    """
    if spark is None:
        raise InvalidRequest(
            "parquet_stream: spark is None; pass a session, such as joinengine.session()"
        )
    session.prepare(spark)
    if type(rows_per_interval) is not int or rows_per_interval < 1:
        raise InvalidRequest(
            f"rows_per_interval: {rows_per_interval!r} must be a whole number, at least 1"
        )
    bad = one_of(OnBadFile, on_bad_file, "on_bad_file")
    changes = one_of(SchemaChanges, schema_changes, "schema_changes")
    in_order = one_of(FileOrder, order, "order")
    path = place(folder, "parquet_stream")
    zone = session.zone()
    found = types.folder_columns(path, types.said_columns(schema), bad)
    _warn_of_row_groups(path, rows_per_interval, found.footers)
    feed = {
        "kind": FeedKind.FOLDER.value,
        "path": path,
        "rows_per_interval": rows_per_interval,
        "columns": as_text(found.all),
        "said": schema is not None,
        "on_bad_file": bad.value,
        "schema_changes": changes.value,
        "settle_s": _settle_us(settle) / 1e6,
        "zone": zone,
        "order": in_order.value,
    }
    reading = Reading(found.readable, root=path, zone=zone, on_bad_file=bad)
    return Stream(spark, feed, reading, found.others, found.footers)


def _settle_us(settle: str) -> int:
    found = microseconds(settle, "settle")
    if found < 0:
        raise InvalidRequest(f"settle: {settle!r} is negative; give 0 s or more")
    return found


def _warn_of_row_groups(path: str, rows: int, footers: Mapping[str, Footer]) -> None:
    """Say that intervals are larger than asked for, since row groups are not cut."""
    largest = max((n for footer in footers.values() for n in footer.rows), default=0)
    if largest > rows:
        _log.warning(
            "joinengine: row groups of %s have up to %s rows, and a batch reads whole ones, so "
            "batches have more than %s rows of it; write smaller row groups for smaller batches",
            *(path, f"{largest:,}", f"{rows:,}"),
        )


def recorded_stream(spark: SparkSession | None, index: Path | str, schema: pa.Schema) -> Stream:
    """A finite stream that was written with its intervals (`feeds.RecordedFeed`)."""
    columns = types.arrow_schema(types.spark_schema(schema))
    return Stream(spark, {"kind": "recorded", "path": str(index)}, Reading(columns))


def recorded_table(spark: SparkSession | None, path: Path | str) -> Table:
    """A table: one Parquet file or a folder of them; `spark`: None: the query will not run."""
    return Table(spark, str(path), types.folder_schema(path))


def _columns(schema: pa.Schema) -> str:
    """Names and types, of a few columns."""
    told = [printed_lines(f"{field.name} {field.type}") for field in schema]
    return ", ".join(told[:8]) + (f" and {len(told) - 8} more" if len(told) > 8 else "")


def schema_of(source: Source) -> pa.Schema:
    """The Arrow schema of an input."""
    if isinstance(source, Table):
        return source.schema
    if isinstance(source, Stream):
        return source.delivered
    return types.arrow_schema(source.schema, "a streaming DataFrame")


def delay_of(source: Source, column: str) -> int | None:
    """The delay of the input's `withWatermark` on `column`, in microseconds; None: it has none."""
    if isinstance(source, Stream):
        return source.delays.get(column)
    if not isinstance(source, DataFrame):
        return None
    metadata: dict[str, Any] = source.schema[column].metadata or {}
    delay = metadata.get("spark.watermarkDelayMs")
    return None if delay is None else int(delay) * 1000
