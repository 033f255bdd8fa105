"""From one layout to another while the state lives: switches, resizes, other settings.

Why: whoever asks, the answer is the same: the layout of the next batch, and whether its state
differs by a few keys, by all, or not at all.

Law: a function of its arguments. A change that leaves the layout as it is moves nothing.
"""

from __future__ import annotations

from joinengine.layouts.base import Layout, LayoutChoice, Plan
from joinengine.layouts.key_based import KeyBased, Planned
from joinengine.routing.moves import plan_moves


def change(
    before: LayoutChoice, layout: Layout, wanted: int, choice: LayoutChoice, instances: int
) -> Plan:
    """From `layout`, which `before` made for `wanted` instances, to `choice` on `instances`."""
    # Settings that only planners read change nothing by themselves.
    if before.name == choice.name and _starts_alike(before, choice, wanted):
        after = layout if wanted == instances else choice.resize(layout, instances)
    else:
        after = _adopted(layout, choice, instances)
    return plan_between(layout, after)


def plan_between(layout: Layout, after: Layout) -> Plan:
    """What happens to state that is stored under `layout` when `after` is to be next."""
    if isinstance(layout, KeyBased) and isinstance(after, KeyBased) and layout.base == after.base:
        return Plan(after, plan_moves(layout.table, after.table, layout.base))
    unchanged = type(layout) is type(after) and layout.to_json() == after.to_json()
    return Plan(after, rehome=not unchanged)


def _adopted(layout: Layout, choice: LayoutChoice, instances: int) -> Layout:
    """A planner takes over the table of another one; whatever else starts anew."""
    fresh = choice.start(instances)
    if isinstance(choice, Planned) and isinstance(layout, KeyBased):
        assert isinstance(fresh, KeyBased)
        if type(layout.base) is type(fresh.base):
            return choice.resize(layout, instances)
    return fresh


def _starts_alike(one: LayoutChoice, other: LayoutChoice, instances: int) -> bool:
    return one.start(instances).to_json() == other.start(instances).to_json()
