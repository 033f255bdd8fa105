"""From one layout to another while the state lives: switches, resizes, other settings.

Why: the user, a full instance and a restart ask for the same: the layout of the next batch, and
whether the state of a few keys moves, all state, or none.

Law: a function of its arguments. If the layout stays as it is, nothing moves.
"""

from __future__ import annotations

from joinengine.layouts.base import Layout, LayoutChoice, Plan
from joinengine.layouts.key_based import KeyBased, Planned
from joinengine.routing.moves import plan_moves


def change(
    before: LayoutChoice, layout: Layout, wanted: int, choice: LayoutChoice, instances: int
) -> Plan:
    """From `layout`, which `before` made for `wanted` instances, to `choice` on `instances`."""
    # If only settings of the planner differ, the layout stays.
    if before.name == choice.name and _starts_alike(before, choice, wanted):
        after = layout if wanted == instances else choice.resize(layout, instances)
    else:
        after = _adopted(layout, choice, instances)
    return plan_between(layout, after)


def plan_between(layout: Layout, after: Layout) -> Plan:
    """The plan that takes state from `layout` to `after`."""
    if isinstance(layout, KeyBased) and isinstance(after, KeyBased) and layout.base == after.base:
        return Plan(after, plan_moves(layout.table, after.table, layout.base))
    unchanged = type(layout) is type(after) and layout.to_json() == after.to_json()
    return Plan(after, rehome=not unchanged)


def _adopted(layout: Layout, choice: LayoutChoice, instances: int) -> Layout:
    """The layout of `choice`: a planner takes over the table of another; others start anew."""
    fresh = choice.start(instances)
    if isinstance(choice, Planned) and isinstance(layout, KeyBased):
        assert isinstance(fresh, KeyBased)
        if type(layout.base) is type(fresh.base):
            return choice.resize(layout, instances)
    return fresh


def _starts_alike(one: LayoutChoice, other: LayoutChoice, instances: int) -> bool:
    return one.start(instances).to_json() == other.start(instances).to_json()
