"""Changes from one layout to another while there is state: switches, resizes, other settings.

Why: a user, a full instance and a restart all need the same answer: the layout of the next batch,
and whether all state moves, the state of a few keys, or none.

Law: a function of its arguments. If the layout stays as it is, nothing moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from joinengine.balancing.loads import gather_loads
from joinengine.balancing.reasons import Balance, Cause, Cost, Counted, Reason, reason_of
from joinengine.balancing.statistics import Interval
from joinengine.layouts.key_based import KeyBased, Planned
from joinengine.layouts.layout import Layout, LayoutChoice, Plan
from joinengine.model.keys import Placement
from joinengine.routing.moves import plan_moves, replaced
from joinengine.routing.table import RoutingTable


@dataclass(frozen=True, slots=True)
class Occasion:
    """Why a layout changes where no planner decides.

    `held` (N,): how many tuples each instance holds. `history`: the counts that the planner of the
    layout sees, the newest last; empty: there are none.
    """

    cause: Cause
    held: Sequence[int]
    history: Sequence[Interval] = ()

    def reason(self, cost: Cost | None) -> Reason:
        """The reason of a change that is not about single keys."""
        return Reason(self.cause, Balance.of(np.array(self.held)), cost=cost)


def change(
    before: LayoutChoice,
    layout: Layout,
    wanted: int,
    choice: LayoutChoice,
    instances: int,
    occasion: Occasion,
) -> Plan:
    """The plan from `layout`, made by `before` for `wanted` instances, to `choice`."""
    # If only settings of the planner differ, the layout stays.
    if before.name == choice.name and _starts_alike(before, choice, wanted):
        after = layout if wanted == instances else choice.resized(layout, instances)
    else:
        after = _adopted(layout, choice, instances)
    return plan_between(layout, after, occasion)


def plan_between(layout: Layout, after: Layout, occasion: Occasion) -> Plan:
    """The plan that takes state from `layout` to `after`."""
    if isinstance(layout, KeyBased) and isinstance(after, KeyBased) and layout.base == after.base:
        changed = replaced(layout.table, after.table, layout.base)
        moves = plan_moves(changed)
        balance = Balance.of(np.array(occasion.held))
        counted = None
        if occasion.history:
            loads = gather_loads(occasion.history, layout.table, layout.base)
            counted = Counted(loads, occasion.history[-1])
        reason = reason_of(occasion.cause, (balance, None), changed, moves, counted)
        return Plan(after, reason if changed else reason.at_cost(Cost()), moves)
    if type(layout) is type(after) and layout.to_json() == after.to_json():
        return Plan(after, occasion.reason(Cost()))
    return Plan(after, occasion.reason(None), rehome=True)


def _adopted(layout: Layout, choice: LayoutChoice, instances: int) -> Layout:
    """The layout of `choice`: a planner takes over a routing table; other choices start anew."""
    fresh = choice.start(instances)
    if isinstance(choice, Planned) and isinstance(layout, KeyBased):
        assert isinstance(fresh, KeyBased)
        if type(layout.base) is type(fresh.base):
            return choice.resized(_whole(layout) if choice.keeps_keys_whole else layout, instances)
    return fresh


def _whole(layout: KeyBased) -> KeyBased:
    """The layout with each divided key whole again, at the instance that has most of it.

    Planners of whole keys judge only loads: while these are level, they would leave keys divided.
    """
    placements = {
        hash_: placement if len(placement.homes) == 1 else Placement.whole(_main_home(placement))
        for hash_, placement in layout.table.placements.items()
    }
    return replace(layout, table=RoutingTable(placements))


def _main_home(placement: Placement) -> int:
    """The instance with the greatest part of a key."""
    parts = Counter[int]()
    for fragment in placement.fragments:
        parts[fragment.instance] += fragment.u_upper - fragment.u_lower
    return max(parts, key=lambda home: (parts[home], -home))


def _starts_alike(choice: LayoutChoice, other: LayoutChoice, instances: int) -> bool:
    return choice.start(instances).to_json() == other.start(instances).to_json()
