"""What is refused before anything runs, and the names of what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from joinengine.kernels.theta import compile_predicate
from joinengine.model.conditions import Band, Condition, Distance, Predicate, Theta, equality
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.model.query import OutputColumn
from joinengine.model.windows import Window, Within
from joinengine.spark import session, types
from joinengine.spark.inputs import Source, Stream, delay_of, require_column

JOIN_TYPES = ("inner", "left", "right", "full", "left_semi", "left_anti")
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


def join_type(how: str) -> str:
    """One of JOIN_TYPES from any of Spark's names for it."""
    name = _SPARK_NAMES.get(how.lower().replace(" ", ""), how.lower())
    if name not in JOIN_TYPES:
        raise InvalidRequest(f"how: {how!r} is unknown; use one of {', '.join(JOIN_TYPES)}")
    return name


def check_source(side: Any) -> None:
    """Refuse what is no stream."""
    if isinstance(side, Stream):
        return
    if type(side).__module__.startswith("pyspark.sql.connect"):
        session.prepare(side.sparkSession)
    if not isinstance(side, DataFrame):
        raise InvalidRequest(
            f"a side is a {type(side).__name__}; "
            f"give a streaming DataFrame, a Stream or a StreamJoin"
        )


def check_bounded(left: Any, right: Any) -> None:
    """Refuse bounded DataFrames."""
    bounded = [isinstance(s, DataFrame) and not s.isStreaming for s in (left, right)]
    if all(bounded):
        raise InvalidRequest("both sides are bounded DataFrames: join them with Spark's own join")
    if any(bounded):
        name = Side(bounded.index(True)).name.lower()
        raise InvalidRequest(
            f"the {name} side is a bounded DataFrame; table sides are not served yet: "
            f"read it with readStream"
        )


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
        return compile_predicate(text, schemas, "theta")
    return None if where is None else compile_predicate(where, schemas, "where")


def check_filter(text: str | None, side: Side, schema: pa.Schema) -> Predicate | None:
    """What the tuples of one side must fulfil to enter the join."""
    if text is None:
        return None
    none = pa.schema([])
    schemas = (schema, none) if side is Side.LEFT else (none, schema)
    return compile_predicate(text, schemas, f"{side.name.lower()}_where")


def check_schema(schema: pa.Schema) -> pa.Schema:
    """Refuse an input with two columns of one name."""
    _refuse_doubles(schema.names, "an input")
    return schema


def check_window(
    window: Window,
    schemas: tuple[pa.Schema, pa.Schema],
    sources: tuple[Source | None, Source | None],
) -> Within:
    """The window with the delays of its sources settled; None among `sources`: a join.

    Refuses window types that are not served, columns that are no event time, two kinds of event
    time, and a source of which nobody says how late it may be.
    """
    if not isinstance(window, Within):
        kind = type(window).__name__.lower()
        raise InvalidRequest(f"{kind} windows are not served yet; use within(...)")
    fields = [
        require_column(schemas[side], name, "within")
        for side in Side
        for name in window.times[side]
    ]
    for field in fields:
        types.check_time(field)
    if len({field.type for field in fields}) > 1:
        found = ", ".join(f"{field.name} is {field.type}" for field in fields)
        raise InvalidRequest(f"within: no shared event-time type: {found}; cast one side")
    left, right = (_delay(window, side, sources[side]) for side in Side)
    return replace(window, delays_us=(left, right))


def output_columns(
    schemas: tuple[pa.Schema, pa.Schema], on: Condition, suffixes: tuple[str, str] | None
) -> tuple[OutputColumn, ...]:
    """All columns of left, then all of right; a USING column once. Refuses a clash of names."""
    shared = set(equality(on).left) if equality(on).using else set()
    left = {name.lower() for name in schemas[0].names}
    clashing = {n.lower() for n in schemas[1].names if n.lower() in left and n not in shared}
    if clashing and suffixes is None:
        raise InvalidRequest(
            f"ambiguous output column names: both sides have {', '.join(sorted(clashing))}; "
            f"rename one, or give suffixes=('_l', '_r')"
        )
    columns = list[OutputColumn]()
    for side in Side:
        for name in schemas[side].names:
            if side is Side.RIGHT and name in shared:
                continue
            suffix = suffixes[side] if suffixes and name.lower() in clashing else ""
            columns.append(OutputColumn(name + suffix, side, name))
    _refuse_doubles([column.name for column in columns], "the output")
    return tuple(columns)


def _delay(window: Within, side: Side, source: Source | None) -> int:
    if source is None:  # a join: its watermark follows from its own inputs
        return 0
    column = window.times[side][0]
    given = window.delays_us[side]
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
