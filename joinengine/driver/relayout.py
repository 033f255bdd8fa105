"""Decides which layout an operator has in the next batch.

Why: there are three reasons for another layout after a batch: a wish of the user (a switch, a
resize, a restart with other settings), a plan that pays, and a full instance. The first that
applies wins, in this order, and the state is treated the same way for all three. But if the
instances are full on average, no plan relieves them, and growth precedes plans.

Law: functions of the state, the counts and the wishes. No Spark, no files. A layout changes only
with a reason. There is also a reason if a plan was declined and the layout stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from joinengine.balancing.reasons import Balance, Cause, Cost, Reason
from joinengine.balancing.statistics import Interval
from joinengine.driver.layout_fit import Naming, fitted
from joinengine.layouts import Chosen
from joinengine.layouts.changing import Occasion, change, plan_between
from joinengine.layouts.layout import LayoutChoice, Plan
from joinengine.layouts.versions import MOST_VERSIONS
from joinengine.operators.base import Operator
from joinengine.routing.routes import MAX_INSTANCES
from joinengine.state.operator_state import Layouts, Move, OperatorState, Rehome
from joinengine.state.wished import Relayout

#: A layout grows only if its instances hold on average more than this part of `capacity`. If they
#: hold less and one is full, a few keys are hot, and more instances do not divide these.
FILLED_PART = 0.5


def fitted_wish(wish: Relayout, operator: Operator, operators: int, naming: Naming) -> Relayout:
    """A wish with its layout fitted to one operator of a query that has `operators` of them."""
    if wish.choice is None or not operator.policy.changes:
        return wish
    return replace(wish, choice=fitted(wish.choice, operator, operators, naming))


def check(
    operator: Operator, newest: Chosen, wishes: Sequence[Relayout], operators: int, naming: Naming
) -> None:
    """Raise InvalidRequest if wishes, granted one after another, lead to an impossible layout.

    `newest`: the layout before them. `operators`: how many the query has.
    """
    policy = operator.policy
    if not policy.changes:
        return
    choice, instances = newest.choice, newest.wanted
    for wish in [fitted_wish(wish, operator, operators, naming) for wish in wishes]:
        choice = wish.choice or choice
        instances = instances if wish.instances is None else wish.instances
        choice.check(operator.condition, instances)
        policy.check(choice)


def after_batch(
    operator: Operator,
    state: OperatorState,
    history: Sequence[Interval],
    wishes: Sequence[Relayout],
    *,
    capacity: int | None,
    lazy: bool,
) -> tuple[OperatorState, Reason | None]:
    """The state with the layout of the next batch, and why it differs, or why a plan was declined.

    `history`: the counts that the planner may see, the last batch's at the end; empty if that batch
    has no counts. `capacity`: tuples that an instance may hold; None: any number. `lazy`: moves are
    lazy, so state stays under the layout version under which it was stored.
    """
    if not operator.policy.changes:
        return state, None
    newest = state.layouts.newest
    if wishes:
        return _take(operator, state, *_wished(state, history, wishes), lazy=lazy)
    plan = None if newest.absent else _planned(state, history)
    if _must_grow(operator, state, history, plan, capacity):
        grown = _grown(state, history)
        if grown is not None:
            return _take(operator, state, *grown, lazy=lazy)
    if newest.absent:  # planners wait: no key may get a home where copies are missing
        return _refilling(state), None
    if plan is None:
        return state, None
    planned = replace(newest, layout=plan.layout)
    return _take(operator, state, planned, plan, lazy=lazy)


def as_asked(
    operator: Operator,
    state: OperatorState,
    choice: LayoutChoice,
    *,
    lazy: bool,
    sized: bool = True,
) -> tuple[OperatorState, Reason | None]:
    """The state of a checkpoint with the layout that this start of the query asks for, and why.

    If the last start asked for the same layout, or this one asks for none, the layout stays as
    batches have changed it since, and the reason is None. `sized`: this start asks for a number of
    instances; otherwise the checkpoint keeps its own, or `operator.instances` if that is more.
    """
    layouts = state.layouts
    instances = operator.instances
    if not sized:
        instances = max(instances, layouts.asked.wanted)
    if not choice.is_asked:
        choice = layouts.asked.choice
    choice = choice.going_on(layouts.asked.choice)
    if operator.policy.changes:
        choice.check(operator.condition, instances)
    asked = Chosen.start(choice, instances)
    newest = layouts.newest
    if asked.starts_like(layouts.asked) or not operator.policy.changes:
        # The settings of its planner may differ now. They do not apply if a wish has since changed
        # the form of the layout.
        if newest.starts_like(Chosen.start(choice, newest.wanted)):
            newest = replace(newest, choice=choice)
        return replace(state, layouts=replace(layouts, newest=newest, asked=asked)), None
    # Pending moves are dropped: the state still lies where it was before them.
    if isinstance(layouts.pending, Move | Rehome):
        newest = layouts.pending.before
    stands = replace(state, layouts=replace(layouts, newest=newest, asked=asked, pending=None))
    occasion = Occasion(Cause.RESTART, stands.held_under_any())
    plan = change(newest.choice, newest.layout, newest.wanted, choice, instances, occasion)
    return _take(operator, stands, Chosen(choice, plan.layout, instances), plan, lazy=lazy)


def _refilling(state: OperatorState) -> OperatorState:
    """The state with a pending refill: the next batch makes some of the lost copies again."""
    layouts = state.layouts
    layout = layouts.newest.layout
    copied, copying = layout.copied, layouts.newest.choice.copying
    assert copied is not None and copying is not None
    refill = copied.next_refill(state.shelves.rows // layout.instances, copying.refill_rows)
    return replace(state, layouts=replace(layouts, pending=refill))


def _planned(state: OperatorState, history: Sequence[Interval]) -> Plan | None:
    """The plan by which the layout changes without a wish; None: it stays."""
    newest = state.layouts.newest
    plan = _returned(state, history)
    if plan is None and history:
        plan = newest.choice.plan(newest.layout, history, newest.wanted)
    return plan


def _returned(state: OperatorState, history: Sequence[Interval]) -> Plan | None:
    """A plan that returns hashed keys to refilled instances; None: all are at their base homes."""
    layout = state.layouts.newest.layout
    copied, copying = layout.copied, state.layouts.newest.choice.copying
    if copied is None or copying is None:
        return None
    back = copied.restored()
    if back == layout:
        return None
    before, after = Balance.of(np.array(state.held_under_any())), None
    if history:
        before, after = (
            Balance.of(copying.level(compared, history)) for compared in (layout, back)
        )
    return Plan(back, Reason(Cause.REFILLED, before, after, Cost()))


def _wished(
    state: OperatorState, history: Sequence[Interval], wishes: Sequence[Relayout]
) -> tuple[Chosen, Plan]:
    """The layout that the last wish of each kind asks for, and the plan that leads to it."""
    newest = state.layouts.newest
    choices = [wish.choice for wish in wishes if wish.choice is not None]
    sizes = [wish.instances for wish in wishes if wish.instances is not None]
    choice = choices[-1] if choices else newest.choice
    instances = sizes[-1] if sizes else newest.wanted
    occasion = Occasion(Cause.SWITCH if choices else Cause.RESIZE, state.held_under_any(), history)
    plan = change(newest.choice, newest.layout, newest.wanted, choice, instances, occasion)
    return Chosen(choice, plan.layout, instances), plan


def _must_grow(
    operator: Operator,
    state: OperatorState,
    history: Sequence[Interval],
    plan: Plan | None,
    capacity: int | None,
) -> bool:
    """Whether an instance holds more than `capacity`, and only more instances relieve it."""
    if capacity is None or not operator.policy.grows:
        return False
    held, newest = state.held_per_instance(), state.layouts.newest
    mean = sum(held) / len(held)
    if max(held) <= capacity or mean <= FILLED_PART * capacity:
        return False
    if plan is not None and plan.reason.cause.is_replan:
        return mean > capacity
    # If the planner has seen too few keys, it asks for all of them and plans after the next batch.
    waits = bool(history) and not history[-1].whole and newest.choice.asks(newest.layout, history)
    return mean > capacity or not waits


def _grown(state: OperatorState, history: Sequence[Interval]) -> tuple[Chosen, Plan] | None:
    """The layout with more instances; None if it cannot have more."""
    newest, held = state.layouts.newest, state.held_per_instance()
    grown = newest.choice.grow(newest.layout, held)
    if grown is newest.layout or grown.instances > MAX_INSTANCES:
        return None
    plan = plan_between(newest.layout, grown, Occasion(Cause.CAPACITY, held, history))
    return Chosen(newest.choice, grown, grown.wanted), plan


def _take(
    operator: Operator, state: OperatorState, chosen: Chosen, plan: Plan, *, lazy: bool
) -> tuple[OperatorState, Reason]:
    """The state with `chosen` for the next batch, with the moves due before it; and the reason.

    If the state does not move as the plan says, the reason has the cost of what it does.
    """
    layouts, before = state.layouts, state.layouts.newest
    resized = chosen.layout.instances != before.layout.instances
    history = layouts.history
    if resized or chosen.choice.name != before.choice.name:
        history = ()
    after, reason = replace(layouts, newest=chosen, history=history, pending=None), plan.reason
    policy = operator.policy
    if not (plan.rehome or plan.moves):
        return replace(state, layouts=after), reason
    if not policy.follows:
        reason = reason.at_cost(Cost())
    elif lazy and policy.may_lag and len(layouts.live_versions) < MOST_VERSIONS:
        after = _left_behind(after, before, state, resized=resized)
        reason = reason.at_cost(Cost())
    elif layouts.older or before.absent:
        # `plan.moves` are word ranges of the newest version, taken from any instance that should
        # have a copy. While runs of older versions live, or copies are missing, moving ranges is
        # not enough: every tuple is re-homed.
        pending = Rehome(before, before.absent)
        after, reason = replace(after, pending=pending), reason.at_cost(None)
    else:
        moving = Move(before, plan.moves) if plan.moves else Rehome(before)
        after = replace(after, pending=moving)
    return replace(state, layouts=after), reason


def _left_behind(
    layouts: Layouts, before: Chosen, state: OperatorState, *, resized: bool
) -> Layouts:
    """The layouts under lazy moves: a new version, and the old one if it still has runs."""
    older, version = dict(layouts.older), layouts.version
    if any(run.version == version for run in state.shelves.state.values()):
        older[version] = before
    sized_at = version + 1 if resized else layouts.sized_at
    return replace(layouts, version=version + 1, older=older, sized_at=sized_at)
