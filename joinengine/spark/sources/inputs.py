"""The inputs of a query: `Stream`s, tables, and any other streaming DataFrame."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from joinengine.model.conditions import Computed
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import one_of
from joinengine.sources.feeds import FeedKind
from joinengine.sources.listing import FileOrder, OnBadFile, SchemaChanges
from joinengine.sources.readings import Reading, reading_to_json
from joinengine.sources.schemas import Footer, as_text, from_text, partition_columns, united
from joinengine.spark.session import session
from joinengine.spark.sources import types
from joinengine.spark.sources.frames import frame_in_store
from joinengine.spark.sources.locations import place
from joinengine.spark.sources.own_streams import OwnStream, chosen, columns_text, names_of
from joinengine.spark.sources.source import NAME, JoinEngineSource
from joinengine.world.buckets import is_url

_log = logging.getLogger("joinengine")


@dataclass(frozen=True, eq=False, repr=False)
class Stream(OwnStream):
    """Parquet files as a stream, made by `parquet_stream`.

    Python tasks read the files, so no row passes through the JVM. A stream never changes: its
    methods return new streams.
    """

    reading: Reading
    #: path of a file -> its footer, if that is known already
    known: Mapping[str, Footer] = field(default_factory=dict, repr=False)

    @property
    @override
    def place(self) -> str:
        return str(self.feed["path"])

    @property
    @override
    def folders(self) -> list[str]:
        return [self.place]

    @property
    @override
    def description(self) -> str:
        return f"{self.feed['kind']} {self.place}"

    @property
    @override
    def why_not_again(self) -> str | None:
        return None

    @property
    @override
    def is_recorded(self) -> bool:
        return bool(self.feed["kind"] == FeedKind.RECORDED)

    @property
    @override
    def footers(self) -> Mapping[str, Footer]:
        return self.known

    @property
    @override
    def kept_columns(self) -> str | None:
        return self.feed.get("columns")

    @override
    def timed(self, column: str | None, ahead_us: int | None) -> Reading:
        return self.reading

    @override
    def has_columns(self, kept: str) -> bool:
        return bool(from_text(self.feed["columns"]).equals(from_text(kept))) or (
            self.feed["said"] and self.feed["schema_changes"] == SchemaChanges.REFUSE
        )

    @override
    def at_restart(self, kept: str) -> Stream:
        """As in OwnStream; under `add`, with further columns of its files."""
        if self.feed["schema_changes"] == SchemaChanges.REFUSE:
            return self.over(kept)
        columns = from_text(self.feed["columns"])
        every = [("checkpoint", from_text(kept)), *((f.name, pa.schema([f])) for f in columns)]
        return self.over(as_text(united(every)))

    @override
    def over(self, kept: str) -> Stream:
        readable, others = types.readable_columns(from_text(kept))
        reading = replace(self.reading, schema=readable, steps=(), whole=None)
        feed = self.feed | {"columns": kept}
        bare = replace(self, feed=feed, reading=reading, unreadable=others, selected=None)
        return bare._stepping(self)

    @override
    def in_order(self, column: str | None) -> dict[str, Any]:
        """The options of its feed, with the column by which files are sorted, if there is one.

        `column`: its event time in the query; None: that of its watermark. Raises InvalidRequest
        if the files do not have the column.
        """
        if self.feed.get("order") != FileOrder.TIME:
            return self.feed
        where = f"{self.feed['path']}: order='time'"
        time = column or next(iter(self.delays), None)
        if time is None:
            raise InvalidRequest(
                f"{where} needs the column of event time; give a window (within=..) or "
                ".withWatermark(column, delay)"
            )
        computed = {step.name for step in self.reading.steps if isinstance(step, Computed)}
        folders = partition_columns(self.footers, self.feed["path"]).names
        if time in computed or time in folders:
            raise InvalidRequest(
                f"{where} reads the times of {time!r} from the footers of files, and they lack "
                "this column; use order='name' or order='modified'"
            )
        return self.feed | {"time": time}

    @override
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

        session.register(self.spark, JoinEngineSource)
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
        return f"<Table of {self.path}: {columns_text(self.schema)}>"

    def select(self, *columns: str | list[str]) -> Table:
        """Keep only these columns. Raises InvalidRequest for a column that does not exist."""
        return replace(self, schema=pa.schema(chosen(self.spark, self.schema, names_of(columns))))

    def to_df(self) -> DataFrame:
        """The table as a DataFrame."""
        if is_url(self.path):
            return frame_in_store(self.spark, self.path, self.schema)
        names = (f"`{name.replace('`', '``')}`" for name in self.schema.names)
        frame: DataFrame = self.spark.read.parquet(self.path).select(*names)
        return frame


Source = OwnStream | DataFrame | Table


def parquet_stream(  # noqa: PLR0913 # each is an option by its name
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
    session.check_classic(spark)
    if type(rows_per_interval) is not int or rows_per_interval < 1:
        raise InvalidRequest(
            f"rows_per_interval: {rows_per_interval!r} must be a whole number, at least 1"
        )
    bad = one_of(OnBadFile, on_bad_file, "on_bad_file")
    changes = one_of(SchemaChanges, schema_changes, "schema_changes")
    in_order = one_of(FileOrder, order, "order")
    path = place(folder, "parquet_stream")
    zone = session.zone(spark)
    columns = types.folder_columns(path, types.said_columns(schema), bad)
    _warn_of_row_groups(path, rows_per_interval, columns.footers)
    feed = {
        "kind": FeedKind.FOLDER.value,
        "path": path,
        "rows_per_interval": rows_per_interval,
        "columns": as_text(columns.all),
        "said": schema is not None,
        "on_bad_file": bad.value,
        "schema_changes": changes.value,
        "settle_s": _settle_us(settle) / 1e6,
        "zone": zone,
        "order": in_order.value,
    }
    reading = Reading(columns.readable, root=path, zone=zone, on_bad_file=bad)
    return Stream(spark, feed, reading, columns.others, known=columns.footers)


def _settle_us(settle: str) -> int:
    length = microseconds(settle, "settle")
    if length < 0:
        raise InvalidRequest(f"settle: {settle!r} is negative; give 0 s or more")
    return length


def _warn_of_row_groups(path: str, rows: int, footers: Mapping[str, Footer]) -> None:
    """Warn that intervals are larger than asked for, since row groups are not cut."""
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


def schema_of(source: Source) -> pa.Schema:
    """The Arrow schema of an input."""
    if isinstance(source, Table):
        return source.schema
    if isinstance(source, OwnStream):
        return source.delivered
    types.refuse_collations(source.schema, "a DataFrame")
    return types.arrow_schema(source.schema, "a DataFrame")


def delays_of(source: Source) -> Mapping[str, int]:
    """Event-time column -> the delay, in microseconds, of each `withWatermark` of the input."""
    if isinstance(source, OwnStream):
        return source.delays
    if not isinstance(source, DataFrame):
        return {}
    key = "spark.watermarkDelayMs"
    timed = [field for field in source.schema if key in (field.metadata or {})]
    return {field.name: int(field.metadata[key]) * 1000 for field in timed}
