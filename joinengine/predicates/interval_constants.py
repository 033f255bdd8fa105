"""Constants of dates, times and intervals, and what Spark makes of a date and an interval.

Spark adds whole days, weeks, months and years to a date as to a date, and everything else as to the
instant at which the date begins. DuckDB always makes a time without a zone of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any

from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import quoted
from joinengine.predicates.syntax import arguments_of, of_expression

_OF_DAYS = ("year", "month", "week", "day")
_PERIODS = (*_OF_DAYS, "hour", "minute", "second", "millisecond", "microsecond")
#: `interval 3 days` is a call of one of these, with a constant that is cast and cut.
INTERVALS = {f"to_{period}s" for period in _PERIODS}
_INTERVAL = re.compile(rf"(\s*-?\d+\s+({'|'.join(_PERIODS)})s?)+\s*", re.IGNORECASE)
_WHOLE_DAYS = re.compile(rf"(?:to_|\s*-?\d+\s+)(?:{'|'.join(_OF_DAYS)})s?\s*", re.IGNORECASE)
_EXAMPLES = {"DATE": ("date", "2024-02-29"), "INTERVAL": ("interval", "90 minutes")}


def check_constant(written: str, target: str, what: str) -> None:
    """Refuse a constant that is not a date, time or interval: it would stop the query later."""
    try:
        if target == "DATE":
            date.fromisoformat(written)
        elif target != "INTERVAL":
            datetime.fromisoformat(written)
        elif not _INTERVAL.fullmatch(written):
            raise ValueError
    except ValueError:
        name, example = _EXAMPLES.get(target, ("timestamp", "2024-02-29 12:00:00"))
        raise InvalidRequest(
            f"{what}: {quoted(written)} is not a valid {name}; write for example {name} {example!r}"
        ) from None


def settle_sum(node: dict[str, Any], kind_of: Callable[[Any], str]) -> None:
    """Give a date + or - an interval of constants the type that it has in Spark.

    `kind_of`: an operand -> DuckDB's type of it.
    """
    operands = arguments_of(node)
    lengths = [_length(operand) for operand in operands]
    if len(operands) != 2 or lengths.count(None) != 1:
        return
    (length,) = (length for length in lengths if length is not None)
    other = operands[lengths.index(None)]
    if kind_of(other) == "DATE":
        whole = re.fullmatch(rf"(?:{_WHOLE_DAYS.pattern})+", length, re.IGNORECASE)
        turned, kind = (node, "date") if whole else (other, "timestamptz")
        cast = of_expression(f"cast(c0 as {kind})") | {"child": dict(turned)}
        turned.clear()
        turned.update(cast)


def _length(operand: Mapping[str, Any]) -> str | None:
    """The texts and functions that make an interval of constants alone; None: it is none."""
    name = operand.get("function_name")
    if name in ("+", "-"):
        parts = list(map(_length, arguments_of(operand)))
        return None if None in parts else " ".join(map(str, parts))
    if name in INTERVALS:
        return str(name)
    child = operand.get("child") or {}
    is_interval = operand.get("type_expr", {}).get("type_name", "").upper() == "INTERVAL"
    return str(child["literal"].get("text")) if is_interval and "literal" in child else None
