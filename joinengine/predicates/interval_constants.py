"""Constants of dates, times and intervals, and what Spark makes of a date and an interval.

Spark adds whole days, weeks, months and years to a date as to a date, and everything else as to the
instant at which the date begins. DuckDB always makes a time without a zone of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import quoted
from joinengine.predicates.syntax import OF_NUMBERS, arguments_of, nodes_of, of_expression

_OF_DAYS = ("year", "month", "week", "day")
_PERIODS = (*_OF_DAYS, "hour", "minute", "second", "millisecond", "microsecond")
#: `interval 3 days` is a call of one of these, with a constant that is cast and cut.
INTERVALS = {f"to_{period}s" for period in _PERIODS}
_INTERVAL = re.compile(rf"(\s*-?\d+\s+({'|'.join(_PERIODS)})s?)+\s*", re.IGNORECASE)
_WHOLE_DAYS = re.compile(rf"(?:to_|\s*-?\d+\s+)(?:{'|'.join(_OF_DAYS)})s?\s*", re.IGNORECASE)
#: Stands for the difference of two times, which may have any length.
_DIFFERENCE = "difference"
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


def settle_sum(
    node: dict[str, Any],
    types: Sequence[pa.DataType],
    kind_of: Callable[[Any], str],
    refusal: Callable[[str], InvalidRequest],
) -> None:
    """Give a date + or - an interval the type that it has in Spark.

    `types`: of columns c0, c1, .. `kind_of`: an operand -> DuckDB's type of it. Raises `refusal` if
    Spark's type is not known.
    """
    operands = arguments_of(node)
    for other, interval in (operands, operands[::-1]) if len(operands) == 2 else ():
        # Asking for types takes longer than everything else.
        may_be = _may_be_length(interval) and _may_be_date(other, types)
        if may_be and kind_of(other) == "DATE" and kind_of(interval) == "INTERVAL":
            _settle_date(node, other, _length(interval, kind_of), refusal)
            return


def _settle_date(
    node: dict[str, Any],
    other: dict[str, Any],
    length: str | None,
    refusal: Callable[[str], InvalidRequest],
) -> None:
    """Cast the date `other`, or the whole sum, to what Spark makes of an interval of a length."""
    if length is None:
        raise refusal("a date beside an interval that is chosen or computed")
    whole = re.fullmatch(rf"(?:{_WHOLE_DAYS.pattern})+", length, re.IGNORECASE)
    turned, kind = (node, "date") if whole else (other, "timestamptz")
    cast = of_expression(f"cast(c0 as {kind})") | {"child": dict(turned)}
    turned.clear()
    turned.update(cast)


def _is_interval(node: Mapping[str, Any]) -> bool:
    """Whether it is a constant, written as a call of INTERVALS or as a cast."""
    kind = str(node.get("type_expr", {}).get("type_name", "")).upper()
    return node.get("function_name") in INTERVALS or kind == "INTERVAL"


def _may_be_date(operand: Any, types: Sequence[pa.DataType]) -> bool:
    """Whether an operand has more in it than numbers, texts and sums of them."""
    return any(
        node["class"] == "CAST"
        or (node["class"] == "FUNCTION" and node["function_name"] not in OF_NUMBERS)
        or (node["class"] == "COLUMN_REF" and not _is_plain(node, types))
        for node in nodes_of(operand)
    )


def _is_plain(column: Mapping[str, Any], types: Sequence[pa.DataType]) -> bool:
    """Whether a column has numbers or texts."""
    kind = types[int(column["column_names"][0][1:])]
    return not (pa.types.is_temporal(kind) or pa.types.is_nested(kind))


def _may_be_length(operand: Any) -> bool:
    """Whether an operand has an interval or a difference in it."""
    return any(
        _is_interval(node) or (node.get("function_name") == "-" and len(arguments_of(node)) == 2)
        for node in nodes_of(operand)
    )


def _length(operand: Mapping[str, Any], kind_of: Callable[[Any], str]) -> str | None:
    """The texts and functions of a sum of constant intervals and differences of times.

    None: it is no such sum.
    """
    if _is_interval(operand):
        return str(operand.get("function_name") or operand["child"]["literal"].get("text"))
    parts = arguments_of(operand) if operand.get("function_name") in ("+", "-") else []
    if not parts or kind_of(operand) != "INTERVAL":
        return None
    lengths = [_length(part, kind_of) for part in parts]
    if lengths == [None, None]:
        return _DIFFERENCE if kind_of(parts[0]) != "INTERVAL" else None
    return None if None in lengths else " ".join(map(str, lengths))
