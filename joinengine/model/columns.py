"""Finds columns by name, and names the columns of the engine.

A column of the user may have any name. So a column of the engine that lies beside columns of the
user has no fixed name: `name_beside` gives it one that none of them has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import reduce

import pyarrow as pa

from joinengine.model.arguments import check_text
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.model.texts import quoted

#: The digits of the widest decimal.
MOST_DIGITS = 38


def require_column(
    schema: pa.Schema, name: str, what: str, *, of: str = "", exact: bool = False
) -> pa.Field:
    """The field of a column, which is found whatever its case unless `exact`.

    `of`: the side in the message. Raises InvalidRequest, with the columns that there are, if there
    is none or more than one.
    """
    check_text(name, f"{what}: a column", "'k'")
    names = [
        column
        for column in schema.names
        if column == name or (not exact and column.lower() == name.lower())
    ]
    if len(names) > 1:
        raise InvalidRequest(
            f"{what}: column {name!r}{of} is ambiguous: the columns are {', '.join(names)}; "
            "rename one, or set spark.sql.caseSensitive to true"
        )
    if not names:
        raise InvalidRequest(
            f"{what}: column {name!r}{of} does not exist; the columns{of} are "
            f"{', '.join(schema.names)}{_how_to_compute(name, schema)}"
        )
    return schema.field(names[0])


def _how_to_compute(name: str, schema: pa.Schema) -> str:
    """Advice for the end of a message, if a name is an expression over columns; else empty."""
    words = {*re.split(r"\W+", name.lower())}
    if not re.search(r"[(+*/%|]", name) or not words & {known.lower() for known in schema.names}:
        return ""
    return f". An expression must be a column first: .withColumn('key', {quoted(name)})"


def require_of(
    schemas: tuple[pa.Schema, pa.Schema], side: Side, name: str, what: str, *, exact: bool
) -> pa.Field:
    """The field of a column of one side, as `require_column`; says so if the other side has it."""
    try:
        return require_column(schemas[side], name, what, of=of_side(side), exact=exact)
    except InvalidRequest as error:
        other = side.other
        if name in schemas[other].names and name not in schemas[side].names:
            raise InvalidRequest(
                f"{error}; the {other.name.lower()} side has {name!r}. Name the column of the "
                "left side first"
            ) from None
        raise


def of_side(side: Side) -> str:
    """The end of a message that names a side.

    >>> of_side(Side.RIGHT)
    ' of the right side'
    """
    return f" of the {side.name.lower()} side"


def wider(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type in which Spark compares two types of keys; None: joinengine does not compare them.

    Two integers are compared in the wider type. A decimal is compared with a decimal or an integer
    in as many digits on each side of the point as the greater of both has, at most 38 in all. float
    and double are compared as doubles.

    >>> wider(pa.decimal128(10, 2), pa.decimal128(12, 4)), wider(pa.int32(), pa.decimal128(9, 2))
    (Decimal128Type(decimal128(12, 4)), Decimal128Type(decimal128(12, 2)))
    """
    if left == right:
        return left
    kinds = (left, right)
    if all(map(pa.types.is_integer, kinds)) or all(map(pa.types.is_floating, kinds)):
        return max(kinds, key=lambda kind: kind.bit_width)
    if not all(pa.types.is_integer(kind) or pa.types.is_decimal(kind) for kind in kinds):
        return None
    digits = [_digits(kind) for kind in kinds]
    scale = max(behind for _, behind in digits)
    precision = scale + max(before for before, _ in digits)
    return pa.decimal128(precision, scale) if precision <= MOST_DIGITS else None


def compared_fields(keys: Sequence[Sequence[str]], schemas: Sequence[pa.Schema]) -> list[pa.Field]:
    """The left key columns, in the types in which all sides are compared; there may be one side.

    `keys`: the key columns of each side.
    """
    widest = list[pa.Field]()
    for names in zip(*keys, strict=True):
        fields = [schema.field(name) for schema, name in zip(schemas, names, strict=False)]
        widest.append(fields[0].with_type(reduce(wider, (field.type for field in fields))))
    return widest


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """How many digits a decimal or an integer has before and behind the point, as in Spark."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return {8: 3, 16: 5, 32: 10}.get(kind.bit_width, 20), 0


def name_beside(names: Iterable[str], word: str) -> str:
    """`word` with enough underscores before it to differ from all `names`, ignoring case.

    >>> name_beside(["k", "__id"], "__id"), name_beside(["Reason", "_reason"], "reason")
    ('___id', '__reason')
    """
    taken = {name.lower() for name in names}
    while word.lower() in taken:
        word = f"_{word}"
    return word


def refuse_doubles(names: list[str], what: str) -> None:
    """Raise InvalidRequest if two columns of `what` have one name, ignoring case."""
    lower = [name.lower() for name in names]
    doubles = sorted({name for name in lower if lower.count(name) > 1})
    if doubles:
        raise InvalidRequest(
            f"ambiguous column names: {what} has {', '.join(doubles)} twice, ignoring "
            "case; rename one"
        )


def as_timestamp(field: pa.Field) -> str:
    """What to write so that a column becomes an instant, for errors.

    >>> as_timestamp(pa.field("at", pa.date32()))
    "write .withColumn('at', 'cast(`at` as timestamp)')"
    """
    if pa.types.is_integer(field.type):
        call = f"timestamp_seconds(`{field.name}`)"
    elif pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
        call = f"cast(`{field.name}` as timestamp)"
    else:
        return "write timestamps into the source, or cast the column in a DataFrame of Spark"
    return f"write .withColumn({field.name!r}, {call!r})"
