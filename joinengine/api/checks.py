"""Checks the inputs of a query before Spark starts, and settles how late their tuples may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from joinengine.api.comparable import check_time
from joinengine.model.aggregation import Windows
from joinengine.model.arguments import check_one_of
from joinengine.model.columns import as_timestamp, require_column, require_of
from joinengine.model.conditions import AsOf, Condition
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Side
from joinengine.model.lateness import positive_length
from joinengine.model.windows import Sliding, Window, Within
from joinengine.spark.session import session
from joinengine.spark.sources.inputs import Source, Table, delays_of
from joinengine.spark.sources.own_streams import OwnStream


class NoDelay(InvalidRequest):
    """The delay of a stream, how late its rows may be, is missing; `column`: its event time."""

    def __init__(self, text: str, column: str) -> None:
        super().__init__(text)
        self.column = column


#: A stream, and its event-time column.
Timed = tuple[Source, str]


def check_source(side: Any) -> None:
    """Raise InvalidRequest unless `side` is a stream."""
    if isinstance(side, (OwnStream, Table)):
        return
    if type(side).__module__.startswith("pyspark.sql.connect"):
        session.check_classic(side.sparkSession)
    if type(side).__module__.startswith("pandas"):
        raise InvalidRequest(
            "an input must be a streaming DataFrame, a Stream or a StreamJoin; found a pandas "
            "DataFrame. Make a table of it with spark.createDataFrame(..)"
        )
    if isinstance(side, str | Path):
        raise InvalidRequest(
            f"an input must be a streaming DataFrame, a Stream or a StreamJoin; found str "
            f"{str(side)!r}. Read a folder with parquet_stream(spark, {str(side)!r})"
        )
    if not isinstance(side, DataFrame):
        raise InvalidRequest(
            f"an input must be a streaming DataFrame, a Stream or a StreamJoin; found "
            f"{type(side).__name__}"
        )


def check_stream(source: Any, advice: str = "") -> None:
    """Raise InvalidRequest unless `source` is a stream without end; `advice`: what to do then."""
    check_source(source)
    if is_table(source):
        raise InvalidRequest(f"the source must be a stream; found a bounded DataFrame{advice}")


def is_table(side: Any) -> bool:
    """Whether a side is a bounded DataFrame."""
    return isinstance(side, Table) or (isinstance(side, DataFrame) and not side.isStreaming)


def table_side(left: Any, right: Any) -> Side | None:
    """The side that is a bounded DataFrame; None: both are streams. Refuses two tables."""
    bounded = [side for side, stream in zip(PAIR, (left, right), strict=True) if is_table(stream)]
    if len(bounded) == len(PAIR):
        raise InvalidRequest(
            "at least one side must be a stream; found two bounded DataFrames. Join them with "
            "Spark's own join"
        )
    return bounded[0] if bounded else None


def check_kind(window: Any) -> None:
    """Refuse anything but a window of a join."""
    if isinstance(window, Windows):
        raise InvalidRequest(
            f"within: {window.panes.function}(..) belongs to a StreamAggregate; write "
            f"tumbling('lt', 'rt', size=..) or sliding(..)"
        )
    example = "within=within('lt', 'rt', lower='0 s', upper='1 hour')"
    if window is not None:
        check_one_of(window, (Within, Sliding), "within", example)


def kept(keep: Any, window: Any, inputs: Sequence[Any], on: Condition) -> Within:
    """The window that `keep` stands for, over the event times of two inputs.

    Whether a row is still there when its partner arrives would depend on when the two arrive. So
    event times decide instead: rows match if the earlier one is kept until the time of the later.
    """
    if isinstance(on, AsOf):
        raise InvalidRequest(
            "keep: an as-of join, or one with latest, keeps what may be nearest; leave it out"
        )
    if window is not None:
        raise InvalidRequest("keep: within says how long rows are kept; give one of the two")
    left, right = keep if isinstance(keep, tuple) and len(keep) == len(PAIR) else (keep, keep)
    if left is None and right is None:
        raise InvalidRequest("keep: both sides would be kept forever; leave it out")
    times = list[str]()
    for side, source in zip(PAIR, inputs, strict=True):
        watermarks = [*delays_of(source)]
        if len(watermarks) != 1:
            raise InvalidRequest(
                f"keep: expected one event time of the {side.name.lower()} input, set by "
                f"withWatermark(..), found {', '.join(watermarks) or 'none'}. Set one, or write "
                f"within=within('left_time', 'right_time', lower='-7 days', upper='7 days')"
            )
        times += watermarks
    lower, upper = (
        None if length is None else positive_length(length, "keep") for length in (right, left)
    )
    return Within(((times[0],), (times[1],)), None if lower is None else -lower, upper)


def found_times(window: Window, schemas: tuple[pa.Schema, pa.Schema], *, exact: bool) -> Window:
    """The window with the names that its columns have."""
    left, right = (
        tuple(
            require_of(schemas, side, name, "within", exact=exact).name
            for name in window.times[side]
        )
        for side in PAIR
    )
    return replace(window, times=(left, right))


_OnTime = TypeVar("_OnTime", bound=Within | Sliding | AsOf)


def check_window(
    window: _OnTime,
    schemas: tuple[pa.Schema, pa.Schema],
    sources: tuple[Timed | None, Timed | None],
    name: str = "within",
) -> _OnTime:
    """The window with the delays of its sources settled.

    `sources`: per side the stream that event time comes from, with its column there; None: event
    time comes from an operator.

    Refuses columns that are not event time, two types of event time, and a source without a delay.
    """
    check_times(window, schemas, name)
    by = window.function if isinstance(window, Sliding) else name
    left, right = (_delay(window.delays_us[side], sources[side], name, by) for side in PAIR)
    return replace(window, delays_us=(left, right))


def check_times(window: _OnTime, schemas: tuple[pa.Schema, pa.Schema], name: str) -> _OnTime:
    """The same window; refuses columns that are not event time, and two types of event time."""
    fields = [
        field for side in PAIR for field in _time_fields(schemas[side], window.times[side], name)
    ]
    if len({field.type for field in fields}) > 1:
        types = ", ".join(f"{field.name} is {field.type}" for field in fields)
        local = min(fields, key=lambda field: field.type.tz or "")
        raise InvalidRequest(
            f"{name}: both sides need the same event-time type, but {types}; {as_timestamp(local)}"
        )
    return window


def check_ahead(ahead_us: int | None, name: str, sources: Sequence[Source]) -> None:
    """Refuse `max_ahead` for replays of recorded streams, whose times are not the present.

    `sources`: all that the operator reads, directly or through other operators.
    """
    if ahead_us is None:
        return
    for source in sources:
        if isinstance(source, OwnStream) and source.is_recorded:
            raise InvalidRequest(
                f"{name}: max_ahead needs current event times, but {source.place} is a "
                f"recorded stream; leave max_ahead out"
            )


def check_event_time(
    schema: pa.Schema, columns: Sequence[str], delay: int | None, timed: Timed | None
) -> int:
    """The delay of one input, settled; refuses what `check_window` refuses."""
    _time_fields(schema, columns, "window")
    return _delay(delay, timed, "window", "windows")


def _time_fields(schema: pa.Schema, columns: Sequence[str], name: str) -> list[pa.Field]:
    fields = [require_column(schema, column, name) for column in columns]
    for field in fields:
        check_time(field, name)
    return fields


def _delay(given: int | None, timed: Timed | None, name: str, function: str) -> int:
    """The delay that is given, or the delay of the input; `function`: what takes it, for errors."""
    if timed is None:  # an operator with windows: its watermark follows from those of its inputs
        return 0
    source, column = timed
    delay = delays_of(source).get(column) if given is None else given
    if delay is None:
        raise NoDelay(
            f"{name}: the delay of {column} is missing. Give {function}(..., delay=...), or call "
            f"withWatermark({column!r}, ...) on the input",
            column,
        )
    return delay
