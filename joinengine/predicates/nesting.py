"""How deep a predicate may be nested.

Why: DuckDB's parser takes minutes for thousands of parentheses if one of them is not closed. A
macro of DuckDB writes an argument out each time it uses it, so that `replace` inside `replace`
grows by a factor of three with each level.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from typing import Any

from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import quoted
from joinengine.predicates.engine import FORMS

#: Brackets inside each other. DuckDB itself serves some 1,000.
_MOST_NESTED = 500
#: How often a part may be written out; `replace` nested five times writes it 243 times.
_MOST_WRITTEN = 250
#: The setting that DuckDB names if a text is nested too deeply for it; users cannot change it.
_DEPTH_OF_DUCKDB = "max_expression_depth"
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
#: Where another form of a macro begins, for another number of arguments.
_FORM = re.compile(r", (?=\([a-z](?:, [a-z])*\) as )")


def _too_deep(what: str, text: str) -> InvalidRequest:
    """The error for `text`, the value of the argument `what`."""
    return InvalidRequest(
        f"{what}: {quoted(text)} is nested too deeply; compute parts of it before the join"
    )


@contextmanager
def shallow(what: str, text: str) -> Iterator[None]:
    """Refuse `text` if Python's stack overflows in the block."""
    try:
        yield
    except RecursionError:
        raise _too_deep(what, text) from None


def check_brackets(sql: str, what: str, text: str) -> None:
    """Refuse `text`, which DuckDB gets as `sql`, if it nests more than _MOST_NESTED brackets."""
    brackets = re.findall(r"[()\[\]]", _QUOTED.sub("", sql))
    if (
        max(accumulate(1 if bracket in "([" else -1 for bracket in brackets), default=0)
        > _MOST_NESTED
    ):
        raise _too_deep(what, text)


def check_said(said: str, what: str, text: str) -> None:
    """Refuse `text` if DuckDB has `said` that it is nested too deeply."""
    if _DEPTH_OF_DUCKDB in said:
        raise _too_deep(what, text) from None


def check_written(tree: Any, what: str, text: str) -> None:
    """Refuse `text`, with the syntax tree `tree`, if macros write a part out too often."""
    if _times_written(tree) > _MOST_WRITTEN:
        raise _too_deep(what, text)


def _times_written(tree: Any) -> int:
    """How often a part of a syntax tree is written out, at most, once macros are expanded."""
    most, left = 1, [(tree, 1)]
    while left:
        node, times = left.pop()
        if isinstance(node, dict):
            times *= _uses(str(node.get("function_name")))
            most, node = max(most, times), list(node.values())
        if isinstance(node, list):
            left += [(part, times) for part in node]
    return most


@cache
def _uses(function: str) -> int:
    """How often a function uses one of its arguments, at most.

    >>> _uses("replace"), _uses("concat"), _uses("abs")
    (3, 1, 1)
    """
    most = 1
    for form in _FORM.split(FORMS.get(function, "")):
        arguments, _, body = form.partition(" as ")
        for name in re.findall(r"\w+", arguments):
            most = max(most, len(re.findall(rf"\b{name}\b", body)))
    return most
