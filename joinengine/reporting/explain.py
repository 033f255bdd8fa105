"""The plan of a query in words: the joins, their layouts, and when a tuple leaves the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from joinengine.layouts.base import LayoutChoice
from joinengine.model.aggregates import AggregateSpec, Stage
from joinengine.model.durations import describe
from joinengine.model.keys import Side
from joinengine.model.novelty import NoveltySpec
from joinengine.model.query import FromJoin, FromSource, JoinSpec, QuerySpec
from joinengine.model.texts import condition_text, grouping_text
from joinengine.model.windows import Sliding


def explain(
    query: QuerySpec,
    choices: Sequence[LayoutChoice],
    rates: Mapping[tuple[int, Side], float] | None = None,
) -> str:
    """A few lines per join.

    `rates`: (join, side) -> copies stored per second of event time, where that has been observed;
    with it goes a forecast of how many the state will hold.
    """
    lines, seen = list[str](), rates or {}
    for join, choice in zip(query.joins, choices, strict=True):
        if isinstance(join, AggregateSpec):
            lines += _aggregate_lines(query, join, choice)
            continue
        if isinstance(join, NoveltySpec):
            (source,) = join.inputs
            assert isinstance(source, FromSource)
            lines.append(f"join {join.index}: {join.how} before, by {join.key}")
            lines.append(f"  layout {choice.label} on {join.instances} instances: {choice.summary}")
            lines.append(f"  {query.sources[source.source]}: judged when the watermark has passed")
            continue
        assert isinstance(join, JoinSpec)
        where = "" if join.predicate is None else f", where {join.predicate.text}"
        on = condition_text(join.condition)
        lines.append(f"join {join.index}: {join.how}, on {on}{where}")
        lines.append(f"  layout {choice.label} on {join.instances} instances: {choice.summary}")
        lines += [
            f"  {side.name.lower():5} {_side(query, join, side)}{_forecast(join, side, seen)}"
            for side in Side
        ]
    return "\n".join(lines)


def _forecast(join: JoinSpec, side: Side, rates: Mapping[tuple[int, Side], float]) -> str:
    """How many rows of a side the state will hold, at the rate that was seen."""
    rate = rates.get((join.index, side))
    if join.window is None or rate is None or join.passes_by(side):
        return ""
    if isinstance(join.window, Sliding):
        kept = join.window.size_us
    else:
        kept = max(join.window.last_partners(side, 0), 0)
    # The watermark is a delay behind the newest tuple, and a tuple leaves when it has passed.
    rows = rate * (kept + (join.window.delays_us[side] or 0)) / 1e6
    return f"; some {rows:,.0f} rows in the state, at {rate:,.1f} a second of event time"


def _aggregate_lines(query: QuerySpec, spec: AggregateSpec, choice: LayoutChoice) -> list[str]:
    (source,) = spec.inputs
    name = f"join {source.join}" if isinstance(source, FromJoin) else query.sources[source.source]
    if spec.stage is Stage.PARTIAL:
        time = " or ".join(spec.times(Side.LEFT))
        often = f"every {spec.merge_every} batches" if spec.merge_every > 1 else "every batch"
        return [
            f"join {spec.index}: partial results by {grouping_text(spec)}",
            f"  layout {choice.label} on {spec.instances} instances: {choice.summary}",
            f"  {name}: added up by {time}, passed on {often}; late when "
            f"{describe(spec.window.delays_us[0] or 0)} behind the newest",
        ]
    what = "merges" if spec.stage is Stage.MERGE else f"takes the top of {name}"
    return [
        f"join {spec.index}: {what} on {spec.instances} aggregators",
        "  a part leaves when the last window that holds it has ended",
    ]


def _side(query: QuerySpec, join: JoinSpec, side: Side) -> str:
    source, only = join.inputs[side], join.filters[side]
    name = f"join {source.join}" if isinstance(source, FromJoin) else query.sources[source.source]
    name += "" if only is None else f", where {only.text}"
    if join.table is side:
        return f"{name}: read whole before the first batch, and kept"
    if join.table is not None:
        return f"{name}: looks into the table, and is not kept"
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
