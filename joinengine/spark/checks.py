"""What is refused before anything runs, and the names of what is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from joinengine.kernels.dialect import compile_predicate
from joinengine.model.conditions import Band, Condition, Distance, Predicate, Theta, equality
from joinengine.model.durations import describe
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.model.query import WINDOW_END, WINDOW_START, OutputColumn
from joinengine.model.windows import Sliding, Window
from joinengine.spark import session, types
from joinengine.spark.inputs import Source, Stream, Table, delay_of, require_column

JOIN_TYPES = ("inner", "left", "right", "full", "left_semi", "left_anti")
#: Windows that one tuple of an outer, semi or anti join may be in: each is an entry of its own.
MOST_WINDOWS = 1 << 12
#: Windows that one tuple of any join or aggregate may be in: each is a result. A day by seconds.
MOST_RESULTS = 1 << 17
_SPARK_NAMES = {
    "leftouter": "left",
    "left_outer": "left",
    "rightouter": "right",
    "right_outer": "right",
    "outer": "full",
    "fullouter": "full",
    "full_outer": "full",
    "semi": "left_semi",
    "leftsemi": "left_semi",
    "anti": "left_anti",
    "leftanti": "left_anti",
}


#: A stream, and its event-time column.
Timed = tuple[Source, str]


def join_type(how: str) -> str:
    """One of JOIN_TYPES from any of Spark's names for it."""
    name = _SPARK_NAMES.get(how.lower().replace(" ", ""), how.lower())
    if name not in JOIN_TYPES:
        raise InvalidRequest(f"how: {how!r} is unknown; use one of {', '.join(JOIN_TYPES)}")
    return name


def check_source(side: Any) -> None:
    """Refuse what is no stream."""
    if isinstance(side, (Stream, Table)):
        return
    if type(side).__module__.startswith("pyspark.sql.connect"):
        session.prepare(side.sparkSession)
    if not isinstance(side, DataFrame):
        raise InvalidRequest(
            f"a side is a {type(side).__name__}; "
            f"give a streaming DataFrame, a Stream or a StreamJoin"
        )


def is_table(side: Any) -> bool:
    """Whether a side is a bounded DataFrame."""
    return isinstance(side, Table) or (isinstance(side, DataFrame) and not side.isStreaming)


def table_side(left: Any, right: Any) -> Side | None:
    """The side that is a bounded DataFrame, None: both are streams. Refuses two of them."""
    bounded = [side for side, one in zip(Side, (left, right), strict=True) if is_table(one)]
    if len(bounded) == len(Side):
        raise InvalidRequest("both sides are bounded DataFrames: join them with Spark's own join")
    return bounded[0] if bounded else None


def check_condition(on: Condition, schemas: tuple[pa.Schema, pa.Schema]) -> Distance | None:
    """What a band means for its columns; refuses columns that are not there or do not compare."""
    equal = equality(on)
    for left, right in zip(equal.left, equal.right, strict=True):
        types.check_equality(
            require_column(schemas[0], left, "on"), require_column(schemas[1], right, "on")
        )
    if not isinstance(on, Band):
        return None
    return types.distance(
        on,
        require_column(schemas[0], on.left, "band"),
        require_column(schemas[1], on.right, "band"),
    )


def check_predicate(
    on: Condition, where: str | None, schemas: tuple[pa.Schema, pa.Schema]
) -> Predicate | None:
    """What a pair must fulfil beside keys, band and window."""
    if isinstance(on, Theta):
        text = on.predicate if where is None else f"({on.predicate}) and ({where})"
        return compile_predicate(text, schemas, "theta", session.zone())
    if where is None:
        return None
    return compile_predicate(where, schemas, "where", session.zone())


def check_filter(text: str | None, side: Side, schema: pa.Schema) -> Predicate | None:
    """What the tuples of one side must fulfil to enter the join."""
    if text is None:
        return None
    none = pa.schema([])
    schemas = (schema, none) if side is Side.LEFT else (none, schema)
    return compile_predicate(text, schemas, f"{side.name.lower()}_where", session.zone())


def check_schema(schema: pa.Schema) -> pa.Schema:
    """Refuse an input with two columns of one name."""
    _refuse_doubles(schema.names, "an input")
    return schema


def check_window(
    window: Window,
    schemas: tuple[pa.Schema, pa.Schema],
    sources: tuple[Timed | None, Timed | None],
) -> Window:
    """The window with the delays of its sources settled.

    `sources` are the streams that event time comes from, with its column there; None: a join.

    Refuses columns that are no event time, two kinds of event time, and a source of which nobody
    says how late it may be.
    """
    fields = [field for side in Side for field in _time_fields(schemas[side], window.times[side])]
    if len({field.type for field in fields}) > 1:
        found = ", ".join(f"{field.name} is {field.type}" for field in fields)
        raise InvalidRequest(f"within: no shared event-time type: {found}; cast one side")
    left, right = (_delay(window.delays_us[side], sources[side]) for side in Side)
    return replace(window, delays_us=(left, right))


def check_event_time(
    schema: pa.Schema, columns: Sequence[str], delay: int | None, timed: Timed | None
) -> int:
    """The delay of one input, settled; refuses what `check_window` refuses."""
    _time_fields(schema, columns)
    return _delay(delay, timed)


def _time_fields(schema: pa.Schema, columns: Sequence[str]) -> list[pa.Field]:
    fields = [require_column(schema, name, "within") for name in columns]
    for field in fields:
        types.check_time(field)
    return fields


def check_type(how: str, window: Window | None, table: Side | None) -> None:
    """Refuse join types of which some results could never be known, or never be made."""
    if how == "inner":
        if isinstance(window, Sliding):
            check_slide("sliding", window.size_us, window.slide_us)
        return
    if table is not None:
        kept = {"left": Side.RIGHT, "right": Side.LEFT, "left_semi": Side.RIGHT}
        kept["left_anti"] = Side.RIGHT
        if kept.get(how) is not table:
            raise InvalidRequest(
                f"how: {how!r} would show what of the table, the {table.name.lower()} side, never "
                f"matches, which a stream without end cannot tell; use inner, or keep the stream's "
                f"side (left, left_semi and left_anti with the stream on the left, or right)"
            )
    elif window is None and how != "left_semi":
        raise InvalidRequest(
            f"how: {how!r} needs a window: over the full history no tuple is ever known to have "
            f"no match; give within="
        )
    if isinstance(window, Sliding) and window.most_windows > MOST_WINDOWS:
        raise InvalidRequest(
            f"how: {how!r} follows each tuple through every window that holds it, here "
            f"{window.most_windows}; at most {MOST_WINDOWS} are served: make the slide larger"
        )


def check_slide(what: str, size_us: int, slide_us: int) -> None:
    """Refuse windows of which so many hold a tuple that making their results would not end."""
    found = -(-size_us // slide_us)
    if found > MOST_RESULTS:
        raise InvalidRequest(
            f"{what}: with size {describe(size_us)} and slide {describe(slide_us)} a tuple is in "
            f"{found} windows, and in a result of each; at most {MOST_RESULTS} are served: make "
            f"the slide larger or the size smaller"
        )


def output_columns(
    schemas: tuple[pa.Schema, pa.Schema],
    on: Condition,
    suffixes: tuple[str, str] | None,
    how: str = "inner",
    window: Window | None = None,
) -> tuple[OutputColumn, ...]:
    """All columns of left, then all of right; a USING column once; the window's edges.

    Semi and anti joins have those of left only. Refuses a clash of names.
    """
    equal = equality(on)
    shared = dict(zip(equal.left, equal.right, strict=True)) if equal.using else {}
    edges = (WINDOW_START, WINDOW_END) if isinstance(window, Sliding) else ()
    sides = (Side.LEFT,) if how in ("left_semi", "left_anti") else tuple(Side)
    names = [
        (side, name)
        for side in sides
        for name in schemas[side].names
        if side is Side.LEFT or name not in shared
    ]
    lower = [name.lower() for _, name in names] + list(edges)
    clashing = {name for name in lower if lower.count(name) > 1}
    if clashing and suffixes is None:
        raise InvalidRequest(
            f"ambiguous output column names: both sides have {', '.join(sorted(clashing))}; "
            f"rename one, or give suffixes=('_l', '_r')"
        )
    columns = list[OutputColumn]()
    for side, name in names:
        suffix = suffixes[side] if suffixes and name.lower() in clashing else ""
        instead = shared.get(name) if side is Side.LEFT and how in ("right", "full") else None
        columns.append(OutputColumn(name + suffix, side, name, instead))
    columns += [OutputColumn(edge, None, edge) for edge in edges]
    _refuse_doubles([column.name for column in columns], "the output")
    return tuple(columns)


def _delay(given: int | None, timed: Timed | None) -> int:
    if timed is None:  # a windowed join: its watermark follows from its own inputs
        return 0
    source, column = timed
    delay = delay_of(source, column) if given is None else given
    if delay is None:
        raise InvalidRequest(
            f"within: how late may {column} be? Give within(..., delay=...) or call "
            f"withWatermark({column!r}, ...) on the input"
        )
    return delay


def _refuse_doubles(names: list[str], what: str) -> None:
    lower = [name.lower() for name in names]
    doubles = sorted({name for name in lower if lower.count(name) > 1})
    if doubles:
        raise InvalidRequest(f"ambiguous column names: {what} has {', '.join(doubles)} twice")
