"""The plan of a query in words: its operators, their layouts, and when a tuple leaves the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from joinengine.layouts.base import LayoutChoice
from joinengine.model.keys import Side
from joinengine.model.query import FromOperator, Input
from joinengine.operators.base import QuerySpec


def explain(
    query: QuerySpec,
    choices: Sequence[LayoutChoice],
    rates: Mapping[tuple[int, Side], float] | None = None,
) -> str:
    """A few lines for each operator.

    `rates`: (operator, side) -> copies stored per second of event time, for the sides that have
    been measured. The lines of these sides forecast how many rows the state will hold.
    """
    lines, seen = list[str](), rates or {}
    for operator, choice in zip(query.operators, choices, strict=True):
        inputs = [_name(query, source) for source in operator.inputs]
        ours = {side: rate for (number, side), rate in seen.items() if number == operator.index}
        lines += operator.lines(inputs, choice, ours)
    return "\n".join(lines)


def _name(query: QuerySpec, source: Input) -> str:
    if isinstance(source, FromOperator):
        return f"operator {source.operator}"
    return query.sources[source.source]
