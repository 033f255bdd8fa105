"""Which column, or which field of a column, a name in a predicate means.

A dot stands between a side and a column (`left.a`), and between a column and a field of it
(`geo.lat`, `left.geo.lat`); a side goes before a column of the same name. A name that holds a dot
itself is written in backticks or double quotes. Rows of a stream, and results, have no sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Side
from joinengine.model.texts import quoted


class Reference(NamedTuple):
    """Column `column` of `side`, or its field at the end of `path`; `kind` is its type."""

    side: Side
    column: str
    path: tuple[str, ...]
    kind: pa.DataType


def resolve(
    names: Sequence[str], schemas: Sequence[pa.Schema], what: str, *, exact: bool
) -> Reference:
    """What a name means; `names`: its parts between dots; `exact`: whether their case matters.

    `schemas`: those of both sides, or one schema for rows without sides.

    Raises InvalidRequest, which names the argument `what`, if no side or both sides have the
    column.
    """
    written, both = ".".join(names), list(PAIR[: len(schemas)])
    sides, qualified = both, False
    if len(names) > 1 and names[0].lower() in ("left", "right") and len(both) > 1:
        qualified = True
        sides = [Side.LEFT if names[0].lower() == "left" else Side.RIGHT]
        columns = _columns(names[1], schemas, sides, exact=exact)
        if columns:
            return _inside(*columns[0], names[2:], what, exact=exact)
    columns = _columns(names[0], schemas, both, exact=exact)
    if qualified and (not columns or not pa.types.is_struct(columns[0][1].type)):
        columns = []
    if not columns:
        known = ", ".join(dict.fromkeys(name for side in sides for name in schemas[side].names))
        if qualified and known:
            known = f"the columns of the {sides[0].name.lower()} side are {known}"
        else:
            known = f"the columns are {known}" if known else "it may use columns of one side only"
        other = sides[0].other
        if qualified and _columns(names[1], schemas, [other], exact=exact):
            hint = f". The {other.name.lower()} side has {names[1]!r}"
        elif len(names) == 1:
            hint = ""
        else:
            meant = _columns(names[1], schemas, both, exact=exact)
            ways = " or ".join(
                names[1] if len(both) == 1 else f"{side.name.lower()}.{names[1]}"
                for side, _ in meant
            )
            hint = f". Write {ways or 'a name that contains a dot as `a.b`'}"
        raise InvalidRequest(f"{what}: column {quoted(written)} does not exist; {known}{hint}")
    if len(columns) > 1:
        raise InvalidRequest(
            f"{what}: column {names[0]!r} is on both sides; write left.{written} or right.{written}"
        )
    return _inside(*columns[0], names[1:], what, exact=exact)


def _columns(
    name: str, schemas: Sequence[pa.Schema], sides: Sequence[Side], *, exact: bool
) -> list[tuple[Side, pa.Field]]:
    return [
        (side, field)
        for side in sides
        for field in schemas[side]
        if _same(field.name, name, exact=exact)
    ]


def _inside(
    side: Side, column: pa.Field, path: Sequence[str], what: str, *, exact: bool
) -> Reference:
    """The field at the end of `path` in a column."""
    kind, names = column.type, list[str]()
    for name in path:
        where = ".".join([column.name, *names])
        if not pa.types.is_struct(kind):
            raise InvalidRequest(
                f"{what}: {where} is {kind}, which has no field {name!r}. If the name contains a "
                f"dot, write `{where}.{name}`"
            )
        fields = [kind.field(i) for i in range(kind.num_fields)]
        matching = [field for field in fields if _same(field.name, name, exact=exact)]
        if len(matching) != 1:
            there = ", ".join(field.name for field in fields)
            raise InvalidRequest(
                f"{what}: {where} has {len(matching) or 'no'} fields {name!r}; "
                f"its fields are {there}"
            )
        alike = [field.name for field in fields if _same(field.name, name, exact=False)]
        if len(alike) > 1:  # the evaluator would take the first
            raise InvalidRequest(
                f"{what}: {where} has fields whose names differ in case alone: {', '.join(alike)}; "
                "rename one of them where the data is written"
            )
        names.append(matching[0].name)
        kind = matching[0].type
    return Reference(side, column.name, tuple(names), kind)


def _same(name: str, other: str, *, exact: bool) -> bool:
    return name == other or (not exact and name.lower() == other.lower())
