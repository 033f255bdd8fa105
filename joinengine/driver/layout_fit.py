"""Fits the choice of a layout to the operator that it is for.

Why: a user writes service levels in values and SQL, but planners and tasks need key hashes and
compiled predicates. `auto` needs to know whether the operator has keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinengine.kernels.hashing import key_hash, make_words
from joinengine.layouts.layout import LayoutChoice
from joinengine.layouts.service_levels import Key, Level
from joinengine.model.columns import compared_fields
from joinengine.model.conditions import Predicate
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.operators.base import Operator
from joinengine.predicates.dialect import compile_predicate


@dataclass(frozen=True, slots=True)
class Naming:
    """How predicates are read. `zone`: of the dates and hours of instants; `exact`: case counts."""

    zone: str = "UTC"
    exact: bool = False


def fitted(
    choice: LayoutChoice, operator: Operator, operators: int, naming: Naming
) -> LayoutChoice:
    """The choice as it serves an operator of a query that has `operators`.

    Raises InvalidRequest, with the name of the level, for service levels that do not fit.
    """
    choice = choice.serving(operator.condition)
    copying = choice.copying
    if copying is None or not copying.levels:
        return choice
    levels = list[Level]()
    for level in copying.levels:
        if level.join is not None and not level.join < operators:
            raise InvalidRequest(
                f"level {level.name}: join {level.join} does not exist; give one from 0 to "
                f"{operators - 1}"
            )
        if level.join in (None, operator.index):
            levels.append(_fitted(level, operator, naming))
    return copying.with_levels(tuple(levels))


def _fitted(level: Level, operator: Operator, naming: Naming) -> Level:
    if level.top is not None or level.hashes is not None or level.predicate is not None:
        return level
    what = f"level {level.name}: join {operator.index}"
    keying = operator.admission(Side.LEFT).keying
    if keying.distance is not None:
        raise InvalidRequest(
            f"{what} is a band join, which stores rows by cells of values and not by single keys; "
            "name keys by top, or name another join"
        )
    fields = compared_fields(keying.keys, operator.schemas)
    if level.keys is None:
        return replace(level, predicate=_predicate(level, what, fields, keying.keys, naming))
    columns = [
        pa.concat_arrays([_value(key, place, fields, what) for key in level.keys])
        for place in range(len(fields))
    ]
    hashes = key_hash(make_words(keying.hashes(columns), np.zeros(len(level.keys), np.uint64)))
    return replace(level, hashes=tuple(sorted({*hashes.tolist()})))


def _predicate(
    level: Level,
    what: str,
    fields: Sequence[pa.Field],
    keys: Sequence[Sequence[str]],
    naming: Naming,
) -> Predicate:
    """The predicate of a level over the key columns, by the names that they have on any side."""
    others = [field.with_name(name) for field, name in zip(fields, keys[-1], strict=True)]
    known = {field.name for field in fields}
    schema = pa.schema([*fields, *(field for field in others if field.name not in known)])
    assert level.where is not None
    none = pa.schema([])
    try:
        return compile_predicate(
            level.where, (schema, none), "where", naming.zone, exact=naming.exact
        )
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{what}: {error} (a level may use the key columns only: {', '.join(schema.names)})"
        ) from None


def _value(key: Key, place: int, fields: Sequence[pa.Field], what: str) -> pa.Array:
    """A part of a key as an array of its column's type; InvalidRequest if it does not fit."""
    if len(key) != len(fields):
        names = ", ".join(field.name for field in fields)
        raise InvalidRequest(
            f"{what}: key {_text(key)} has {len(key)} parts, but the key columns are {names}"
        )
    field, part = fields[place], key[place]
    with suppress(pa.ArrowException, OverflowError):
        if _may_be(part, field.type):
            return pc.cast(pa.array([part]), field.type)
    raise InvalidRequest(
        f"{what}: key {_text(key)} is not a value of column {field.name}, whose type is "
        f"{field.type}"
    )


def _may_be(part: Any, kind: pa.DataType) -> bool:
    """Whether a value is written as `kind` requires; times and decimals may be texts."""
    types = pa.types
    if isinstance(part, bool) or types.is_boolean(kind):
        return isinstance(part, bool) and types.is_boolean(kind)
    number = types.is_integer(kind) or types.is_floating(kind)
    return isinstance(part, str) is not number or types.is_decimal(kind)


def _text(key: Key) -> str:
    return repr(key[0] if len(key) == 1 else list(key))
