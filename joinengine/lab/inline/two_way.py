"""Makes queries of one join from schemas."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from joinengine.api import column_checks as columns
from joinengine.model.conditions import Condition
from joinengine.model.keys import Side
from joinengine.model.query import FromSource, JoinType
from joinengine.model.windows import Window
from joinengine.operators import Join
from joinengine.operators.base import QuerySpec

#: Two sources, for callers that need any.
_TIME = pa.timestamp("us", "UTC")
LEFT = pa.schema([("lk", pa.int64()), ("lv", pa.int64()), ("lt", _TIME)])
RIGHT = pa.schema([("rk", pa.int64()), ("rv", pa.int64()), ("rt", _TIME)])


class Input(NamedTuple):
    """A source: its columns, and the filter, as SQL, of the tuples that are let in."""

    schema: pa.Schema
    where: str | None = None


def two_way(
    inputs: tuple[Input, Input],
    on: Condition,
    window: Window | None = None,
    instances: int = 3,
    *,
    where: str | None = None,
    how: str = "inner",
    table: Side | None = None,
) -> QuerySpec:
    """The left source joined with the right one; no column name is in both.

    The arguments are those of `StreamJoin`; `table`: the side that is a table.
    """
    schemas = inputs[0].schema, inputs[1].schema
    kind = JoinType(how)
    spec = Join(
        index=0,
        condition=on,
        window=window,
        how=kind,
        inputs=(FromSource(0), FromSource(1)),
        schemas=schemas,
        output=columns.output_columns(schemas, on, None, kind, window),
        instances=instances,
        distance=columns.check_condition(on, schemas),
        predicate=columns.check_predicate(on, where, schemas, "UTC"),
        filters=(
            columns.check_filter(inputs[0].where, Side.LEFT, schemas[0], "UTC"),
            columns.check_filter(inputs[1].where, Side.RIGHT, schemas[1], "UTC"),
        ),
        table=table,
    )
    tables = frozenset[int]() if table is None else frozenset([int(table)])
    return QuerySpec((spec,), ("left", "right"), tables)
