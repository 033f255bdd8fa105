"""Checks that results fit the columns of a table, in the types of the table's own library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joinengine.model.errors import InvalidRequest


def check_columns(
    kind: str, table: str, ours: Mapping[str, Any], theirs: Mapping[str, tuple[Any, bool]]
) -> None:
    """Raise InvalidRequest, naming the first column, if results do not fit a table.

    `ours`: column of the results -> its type there. `theirs`: column of the table -> its type, and
    whether it must have a value. The results may lack a column of the table that may be NULL; it is
    NULL then.
    """
    for name, of_results in ours.items():
        if name not in theirs:
            raise InvalidRequest(
                f"{kind}: the table {table} has no column {name}; its columns are "
                f"{', '.join(theirs)}. Add the column to the table, rename it, or leave it out "
                "with select"
            )
        expected = theirs[name][0]
        if of_results != expected:
            raise InvalidRequest(
                f"{kind}: column {name} of the table {table} is {_shown(expected)}, but that of "
                f"the results is {_shown(of_results)}; cast it, or use another table"
            )
    for name, (_, is_required) in theirs.items():
        if is_required and name not in ours:
            raise InvalidRequest(
                f"{kind}: column {name} of the table {table} is NOT NULL, and the results have no "
                "such column; add it to the results, or allow NULL in the table"
            )


def _shown(kind: Any) -> str:
    """A type as text, without the quotes that the libraries put around it."""
    text = str(kind)
    return text.partition('"')[2].rpartition('"')[0] or text


def reason_of(error: BaseException) -> str:
    r"""The part of an error of a library that a reader understands: its first line, cut.

    >>> reason_of(ValueError("first\nsecond"))
    'first'
    """
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300].rstrip(". ")
