"""The common part of joinengine's own streams: filters, columns and watermarks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame

from joinengine.model.arguments import check_names, check_text
from joinengine.model.columns import as_timestamp, require_column
from joinengine.model.conditions import Computed
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.habits import STREAM, Helped
from joinengine.model.spelling import printed_lines
from joinengine.predicates.computed_columns import compile_column
from joinengine.predicates.dialect import compile_predicate
from joinengine.sources.projection import Projection
from joinengine.sources.schemas import Footer
from joinengine.sources.transforms import named
from joinengine.spark.session import session
from joinengine.spark.sources import types


@dataclass(frozen=True, eq=False, repr=False)
class OwnStream(Helped, ABC):
    """A stream that Python tasks read, so that no row passes through the JVM.

    It never changes: its methods return new streams.
    """

    _instead = STREAM
    spark: Any
    #: the options of its feed, as plain values
    feed: dict[str, Any]
    reading: Projection
    #: column -> its type, of columns that a stream cannot deliver
    unreadable: Mapping[str, pa.DataType] = field(default_factory=dict)
    #: event-time column -> how late its tuples may be, in microseconds
    delays: Mapping[str, int] = field(default_factory=dict)
    #: the columns that `select` has kept, and those computed since; None: `select` was not called
    selected: tuple[str, ...] | None = None

    @property
    @abstractmethod
    def place(self) -> str:
        """The place of its tuples, in the user's words."""

    @property
    @abstractmethod
    def folders(self) -> list[str]:
        """The folders and URLs from which it reads."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Its kind and place, as a checkpoint keeps them."""

    @property
    @abstractmethod
    def why_not_again(self) -> str | None:
        """Why a batch of it cannot be read again unchanged; None: it can."""

    @property
    def passing(self) -> tuple[str, ...]:
        """The columns that belong to a change and not to its row: they differ when the row goes."""
        return ()

    @property
    def is_recorded(self) -> bool:
        """Whether it is a recorded stream, whose event times may lie anywhere."""
        return False

    @property
    def footers(self) -> Mapping[str, Footer]:
        """Path -> footer, of files whose footers are known already."""
        return {}

    @property
    def kept_columns(self) -> str | None:
        """The columns that its source has, as a checkpoint keeps them; None: they are not kept."""
        return None

    @abstractmethod
    def has_columns(self, kept: str) -> bool:
        """Whether its source has these `kept_columns`, or its user has given the columns."""

    @abstractmethod
    def at_restart(self, kept: str) -> Self:
        """The stream with the `kept_columns` of a checkpoint."""

    @abstractmethod
    def over(self, kept: str) -> Self:
        """The same stream as if its source had these `kept_columns`.

        Raises InvalidRequest as its steps do.
        """

    @abstractmethod
    def in_order(self, column: str | None) -> dict[str, Any]:
        """The options of its feed; `column`: its event time in the query; None: it has none."""

    @abstractmethod
    def timed(self, column: str | None, ahead_us: int | None) -> Projection:
        """How a query with this event time reads the stream; `ahead_us`: as in the windows."""

    def awaiting(self, until: Mapping[int, int]) -> Self:
        """The stream which, if it is read first, must reach `until` before others are read.

        `until`: partition -> offset. Raises InvalidRequest for a stream without offsets.
        """
        raise InvalidRequest(
            f"latest: until={dict(until)} are offsets of a topic, and {self.place} is read by "
            "files, which have none; give the time of a version, such as until='2026-03-01'"
        )

    @abstractmethod
    def to_df(self) -> DataFrame:
        """The same rows as an ordinary streaming DataFrame."""

    def __repr__(self) -> str:
        where = "" if self.reading.where is None else f" where {self.reading.where}"
        return (
            f"<{type(self).__name__} of {self.place}: {columns_text(self.reading.schema)}{where}>"
        )

    @property
    def schema(self) -> Any:
        """The Spark schema of its rows. Raises InvalidRequest for a column that has none."""
        return types.spark_schema(self.delivered)

    @property
    def delivered(self) -> pa.Schema:
        """The columns of its tuples. Raises InvalidRequest, by name, for one without a type."""
        for name, kind in self.unreadable.items():
            raise InvalidRequest(
                f"{self.place}: column {name!r} is of type {kind}, which Spark lacks; "
                "write it as another type, or leave it out with .select([...])"
            )
        return self.reading.schema

    def where(self, predicate: str) -> Self:
        """Keep only rows for which `predicate` is true; the others are dropped as they are read.

        `predicate`: SQL (docs/predicates.md) over the columns of the files and computed columns, in
        the time zone of the Spark session. Raises InvalidRequest for anything else.
        """
        return self._filtered(
            check_text(predicate, "Stream.where", "'a > 3'"), session.zone(self.spark)
        )

    def _filtered(self, predicate: str, zone: str) -> Self:
        rows, exact = (self.reading.named,), session.case_sensitive(self.spark)
        step = compile_predicate(predicate, rows, "Stream.where", zone, exact=exact)
        reading = replace(self.reading, steps=(*self.reading.steps, step))
        return replace(self, reading=reading)

    def withColumn(self, name: str, expression: str) -> Self:
        """Add a column, or replace the column that has its name.

        `expression`: SQL (docs/predicates.md) over the columns of the files and computed columns,
        such as "cast(amount as double)". It is computed as rows are read. Raises InvalidRequest for
        anything else.
        """
        return self._computing(name, expression, session.zone(self.spark))

    def _computing(self, name: str, expression: str, zone: str) -> Self:
        reading = self.reading
        exact = session.case_sensitive(self.spark)
        step = column_step(name, expression, reading.named, zone, exact=exact)
        shown = named(reading.schema, [step])
        new = replace(reading, schema=shown, steps=(*reading.steps, step), whole=reading.columns)
        selected = None if self.selected is None else tuple(shown.names)
        return replace(self, reading=new, selected=selected)

    def _stepping(self, written: OwnStream) -> Self:
        """The stream, which has no steps yet, with the steps of `written`."""
        stream = self
        for step in written.reading.steps:
            if isinstance(step, Computed):
                stream = stream._computing(step.name, step.text, step.zone)
            else:
                stream = stream._filtered(step.text, step.zone)
        return stream if written.selected is None else stream.select(*written.selected)

    def withWatermark(self, column: str, delay: str | timedelta) -> Self:
        """Set how late rows may be by the event time `column`, for windows without `delay`.

        Raises InvalidRequest if the column is missing or is no timestamp, or if `delay` is below 0.
        """
        exact = session.case_sensitive(self.spark)
        field = require_column(self.reading.schema, column, "withWatermark", exact=exact)
        if not pa.types.is_timestamp(field.type):
            raise InvalidRequest(
                f"withWatermark: event time must be a timestamp, and {field.name} is "
                f"{field.type}; {as_timestamp(field)}"
            )
        delay_us = microseconds(delay, "withWatermark: delay")
        if delay_us < 0:
            raise InvalidRequest(f"withWatermark: delay {delay!r} is negative; give 0 s or more")
        return replace(self, delays={**self.delays, field.name: delay_us})

    def select(self, *columns: str | list[str]) -> Self:
        """Keep only these columns, in this order; other columns are not read.

        Raises InvalidRequest for a column that does not exist.
        """
        names = names_of(columns)
        if not self.unreadable.keys().isdisjoint(names):
            _ = self.delivered  # says what is wrong with the column
        narrow = pa.schema(chosen(self.spark, self.reading.schema, names))
        reading = replace(self.reading, schema=narrow, whole=self.reading.columns)
        return replace(self, reading=reading, unreadable={}, selected=tuple(narrow.names))


def column_step(
    name: str, expression: str, there: pa.Schema, zone: str, *, exact: bool
) -> Computed:
    """The step of `withColumn` over the columns that are there; it may replace one of them."""
    if not check_text(name, "withColumn", "withColumn('day', 'cast(sold_at as date)')"):
        raise InvalidRequest("withColumn: the name of the column is empty; give one")
    check_text(expression, f"withColumn: {name}", "'cast(sold_at as date)'")
    same = [n for n in there.names if n.lower() == name.lower()]
    column = name if exact or not same else same[0]
    return compile_column(column, expression, there, zone, exact=exact)


def names_of(columns: tuple[str | list[str], ...]) -> list[str]:
    """The names of columns that are given one by one or in a list."""
    columns_named = [
        name for names in columns for name in check_names(names, "select", "select('a', 'b')")
    ]
    if not columns_named:
        raise InvalidRequest("select: no column is named; name at least one")
    return columns_named


def chosen(spark: Any, schema: pa.Schema, names: list[str]) -> list[pa.Field]:
    """The fields of columns."""
    exact = session.case_sensitive(spark)
    return [require_column(schema, name, "select", exact=exact) for name in names]


def columns_text(schema: pa.Schema) -> str:
    """The names and types of the first few columns, as text."""
    texts = [printed_lines(f"{field.name} {field.type}") for field in schema]
    return ", ".join(texts[:8]) + (f" and {len(texts) - 8} more" if len(texts) > 8 else "")
