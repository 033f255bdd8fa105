"""Columns by their names.

A column of the user may have any name. So a column of the engine that lies beside columns of the
user has no fixed name: `name_beside` gives it one that none of them has.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from joinengine.model.errors import InvalidRequest


def require_column(schema: pa.Schema, name: str, what: str) -> pa.Field:
    """The field of a column. Raises InvalidRequest, with the columns that there are."""
    if name not in schema.names:
        raise InvalidRequest(
            f"{what}: column {name!r} is not there; the columns are {', '.join(schema.names)}"
        )
    return schema.field(name)


def name_beside(names: Iterable[str], word: str) -> str:
    """`word`, behind so many underscores that no name of `names` is equal, whatever its case.

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
        raise InvalidRequest(f"ambiguous column names: {what} has {', '.join(doubles)} twice")
