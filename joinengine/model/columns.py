"""Columns by their names."""

from __future__ import annotations

import pyarrow as pa

from joinengine.model.errors import InvalidRequest


def require_column(schema: pa.Schema, name: str, what: str) -> pa.Field:
    """The field of a column. Raises InvalidRequest, with the columns that there are."""
    if name not in schema.names:
        raise InvalidRequest(
            f"{what}: column {name!r} is not there; the columns are {', '.join(schema.names)}"
        )
    return schema.field(name)


def refuse_doubles(names: list[str], what: str) -> None:
    """Raise InvalidRequest if two columns of `what` have one name, ignoring case."""
    lower = [name.lower() for name in names]
    doubles = sorted({name for name in lower if lower.count(name) > 1})
    if doubles:
        raise InvalidRequest(f"ambiguous column names: {what} has {', '.join(doubles)} twice")
