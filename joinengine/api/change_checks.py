"""Checks joins of changes: which column says that rows come or go, and which joins cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from joinengine.model.columns import of_side, refuse_doubles, require_of
from joinengine.model.conditions import AsOf, Band, Condition, Predicate, equality
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Side
from joinengine.model.query import CHANGE, JoinType, OutputColumn
from joinengine.model.texts import quoted
from joinengine.model.windows import Window
from joinengine.spark.sources.own_streams import OwnStream

#: Per side the column that says how many rows come or go; None: rows only come.
Told = tuple[str | None, str | None]
Schemas = tuple[pa.Schema, pa.Schema]
#: Given in place of a column: the topic has envelopes of Debezium, which say so themselves.
DEBEZIUM = "debezium"
#: Columns of a change data feed that belong to the change: they differ when the row goes.
_OF_COMMITS = ("_commit_version", "_commit_timestamp")


def told_by(changes: Any, schemas: Schemas, *, exact: bool) -> Told:
    """The columns that `changes` names. Refuses other arguments, and columns of other types."""
    pair = changes if isinstance(changes, tuple) else (changes, changes)
    if len(pair) != len(PAIR) or not any(pair):
        raise InvalidRequest(
            f"changes: expected a column of both sides, or (left, right) with None for a side "
            f"whose rows only come, found {quoted(str(changes))}"
        )
    left, right = (
        None if name is None else _column(side, name, schemas, exact=exact)
        for side, name in zip(PAIR, pair, strict=True)
    )
    return left, right


def _column(side: Side, name: str, schemas: Schemas, *, exact: bool) -> str:
    if name == DEBEZIUM and DEBEZIUM not in schemas[side].names:
        if CHANGE not in schemas[side].names:
            raise InvalidRequest(
                f"changes: 'debezium' is of streams that kafka_stream(.., changes=True) reads, "
                f"whose changes are in {CHANGE}, and the {side.name.lower()} side has none; read "
                f"it so, or name the column that tells its changes"
            )
        name = CHANGE
    field = require_of(schemas, side, name, "changes", exact=exact)
    kind = field.type
    whole = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    if not (whole or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InvalidRequest(
            f"changes: {field.name}{of_side(side)} is {kind}; it must be an integer, +1 for a row "
            f"that comes and -1 for one that goes, or a text such as 'insert'. Compute it with "
            f"withColumn"
        )
    return str(field.name)


def without(names: Told | None, schemas: Schemas) -> Schemas:
    """The columns of both sides without those of their changes."""
    if names is None:
        return schemas
    left, right = (
        pa.schema([field for field in schema if field.name != name])
        for schema, name in zip(schemas, names, strict=True)
    )
    return left, right


def check_changes(on: Condition, how: JoinType, most: int | None) -> None:
    """Refuse joins whose results cannot be taken back. `most`: the cap on the pairs of a key."""
    if isinstance(on, AsOf):
        raise InvalidRequest(
            "changes: which row is nearest cannot be taken back; leave changes out, or mark "
            "deleted rows by latest(.., deleted=..)"
        )
    if how is not JoinType.INNER:
        raise InvalidRequest(
            f"how: {how.value!r} of changes is not supported: a row without a match may get one, "
            f"and lose it again, for ever. Use 'inner'"
        )
    if most is not None:
        raise InvalidRequest(
            "max_pairs_per_key: a pair that is left out may be one that another was to take back; "
            "leave it out beside changes"
        )


def check_told(side: Side, names: Told | None, *, takes_one: bool) -> None:
    """Refuse a join of changes on a side whose rows are taken to stay.

    `takes_one`: the join takes one right row for each left one.
    """
    if takes_one:
        raise InvalidRequest(
            f"changes: the {side.name.lower()} side is a join of changes, and which row is "
            "nearest, or newest, cannot be taken back when one of them goes; join it with the "
            f"changelog itself (changes={CHANGE!r}), or do this join first"
        )
    if names is None or names[side] != CHANGE:
        raise InvalidRequest(
            f"changes: the {side.name.lower()} side is a join of changes, whose column {CHANGE} "
            f"says which results come and go; give changes={CHANGE!r}, or a pair (left, right)"
        )


def check_lasting(
    columns: Iterable[tuple[Side | None, str]], names: Told, sides: Sequence[Any], instead: str
) -> None:
    """Refuse columns that may differ between a row's coming and its going; `instead`: advice."""
    for side, column in columns:
        if side is None or names[side] is None:
            continue
        source = sides[side]
        passing = source.passing if isinstance(source, OwnStream) else ()
        if column in (*_OF_COMMITS, *passing):
            raise InvalidRequest(
                f"changes: {column}{of_side(side)} is of one change, and another one when the row "
                f"goes; {instead}"
            )


def matching(
    on: Condition, where: Predicate | None, window: Window | None
) -> Iterator[tuple[Side, str]]:
    """The columns by which rows match: a row that goes must match as it did when it came."""
    keys = equality(on)
    times = ((), ()) if window is None else window.times
    for side, equal in zip(PAIR, (keys.left, keys.right), strict=True):
        yield from ((side, name) for name in (*equal, *times[side]))
    if isinstance(on, Band):
        yield from ((Side.LEFT, on.left), (Side.RIGHT, on.right))
    yield from () if where is None else where.columns


def with_change(
    output: tuple[OutputColumn, ...], names: Told, sides: Sequence[Any]
) -> tuple[OutputColumn, ...]:
    """The columns of the results, with the column of their changes at the end.

    Refuses columns that may differ between a row's coming and its going.
    """
    shown = ((column.side, column.column) for column in output)
    check_lasting(shown, names, sides, "leave it out with select")
    refuse_doubles([*(column.name for column in output), CHANGE], "the output")
    return (*output, OutputColumn(CHANGE, None, CHANGE))
