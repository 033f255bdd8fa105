"""The plan of a query in words: the joins, their layouts, and when a tuple leaves the state."""

from __future__ import annotations

from collections.abc import Sequence

from joinengine.layouts.base import LayoutChoice
from joinengine.model.conditions import Band, Condition, Equi
from joinengine.model.durations import describe
from joinengine.model.keys import Side
from joinengine.model.query import FromJoin, JoinSpec, QuerySpec
from joinengine.model.windows import Sliding


def explain(query: QuerySpec, choices: Sequence[LayoutChoice]) -> str:
    """A few lines per join."""
    lines = list[str]()
    for join, choice in zip(query.joins, choices, strict=True):
        where = "" if join.predicate is None else f", where {join.predicate.text}"
        on = condition_text(join.condition)
        lines.append(f"join {join.index}: {join.how}, on {on}{where}")
        lines.append(f"  layout {choice.label} on {join.instances} instances: {choice.summary}")
        lines += [f"  {side.name.lower():5} {_side(query, join, side)}" for side in Side]
    return "\n".join(lines)


def condition_text(condition: Condition) -> str:
    """The condition as SQL.

    >>> condition_text(Equi(("a",), ("b",)))
    'a = b'
    """
    if isinstance(condition, Equi):
        pairs = zip(condition.left, condition.right, strict=True)
        return " and ".join(f"{left} = {right}" for left, right in pairs)
    if isinstance(condition, Band):
        low = "" if condition.lower is None else f"{condition.lower} <= "
        high = "" if condition.upper is None else f" <= {condition.upper}"
        text = f"{low}{condition.right} - {condition.left}{high}"
        return text if condition.equal is None else f"{condition_text(condition.equal)} and {text}"
    return condition.predicate


def _side(query: QuerySpec, join: JoinSpec, side: Side) -> str:
    source, only = join.inputs[side], join.filters[side]
    name = f"join {source.join}" if isinstance(source, FromJoin) else query.sources[source.source]
    name += "" if only is None else f", where {only.text}"
    if join.window is None:
        return f"{name}: kept for ever (full history)"
    time = " or ".join(join.window.times[side])
    time = f"the latest of {time}" if len(join.window.times[side]) > 1 else time
    delay = join.window.delays_us[side] or 0
    if isinstance(join.window, Sliding):
        leaves = f"leaves when the last window that holds {time} has ended"
    else:
        kept = describe(join.window.last_partners(side, 0))
        leaves = f"leaves when the watermark passes {time} + {kept}"
    if isinstance(source, FromJoin):
        return f"{name}: {leaves}"
    return f"{name}: {leaves}; late when {describe(delay)} behind the newest"
