"""Applies the options `recovery` and `durability` to the layouts of a query, and checks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joinengine.driver.settings import Settings
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.errors import InvalidRequest
from joinengine.model.recovery import Durability, Recovery
from joinengine.operators.base import Operator
from joinengine.state.operator_state import OperatorState
from joinengine.state.wished import Relayout

_HINT = "to read lost state again from a store, use recovery=store"


def as_recovered(choice: LayoutChoice, recovery: Recovery, executors: int = 0) -> LayoutChoice:
    """The layout choice as the way of recovery needs it: under `taskb`, with standbys.

    `executors`: the number of executors on which tasks have fixed places, so that copies lie on
    several of them; 0: tasks have no fixed places. Raises InvalidRequest under `taskb` for a layout
    that cannot have standbys.
    """
    if recovery is Recovery.TASKB:
        if choice.copying is None:
            raise InvalidRequest(
                f"recovery: taskb needs standby instances, which layout {choice.label} does not "
                "have; use layout ftlb, or recovery store"
            )
        choice = choice.copying.with_standbys()
    if executors and choice.copying is not None:
        choice = choice.copying.across(executors)
    return choice


def standing_by(
    operators: Sequence[Operator],
    choices: Sequence[LayoutChoice],
    settings: Settings,
    executors: int = 0,
) -> tuple[list[LayoutChoice], Settings]:
    """The layout choices and the settings as recovery and durability need them.

    `executors`: as in `as_recovered`. Raises InvalidRequest as `as_recovered` and
    `check_durability`, and if a layout has too many instances together with its standbys.
    """
    settings = replace(settings, executors=executors)
    able = [as_recovered(choice, settings.recovery, executors) for choice in choices]
    for operator, choice in zip(operators, able, strict=True):
        if operator.policy.changes:
            choice.check(operator.condition, operator.instances)
    schedule = {
        batch: [wish_recovered(wish, settings) for wish in wishes]
        for batch, wishes in settings.schedule.items()
    }
    check_durability(operators, able, settings)
    return able, replace(settings, schedule=schedule)


def wish_recovered(wish: Relayout, settings: Settings) -> Relayout:
    """The wish with its layout as the way of recovery needs it; raises as `as_recovered`."""
    if wish.choice is None:
        return wish
    choice = as_recovered(wish.choice, settings.recovery, settings.executors)
    return replace(wish, choice=choice)


def check_copies(what: str, operator: Operator, choice: LayoutChoice) -> None:
    """Raise InvalidRequest if copies do not cover all state of an operator that has no store."""
    if not survives(operator):
        raise InvalidRequest(
            f"{what}: copies of keys protect inner joins only, because outer, semi and anti joins "
            f"and aggregates hold state without copies; {_HINT}"
        )
    if choice.copying is None:
        raise InvalidRequest(
            f"{what}: layout {choice.label} keeps no copies of keys, so a lost instance cannot "
            f"recover; use layout ftlb; {_HINT}"
        )


def survives(operator: Operator) -> bool:
    """Whether copies cover all state of an operator, provided that its layout keeps copies.

    They do not cover the state of watchers and aggregators.
    """
    return operator.policy.copies and not operator.watched


def has_copies(operator: Operator, state: OperatorState) -> bool:
    """Whether copies cover all state of an operator under its present layout."""
    return survives(operator) and state.layouts.newest.layout.copied is not None


def domains_of(operator: Operator, state: OperatorState) -> int | None:
    """The number of failure domains of an operator; None: some copies are missing or never made."""
    chosen = state.layouts.newest
    if not has_copies(operator, state) or chosen.absent or state.layouts.older:
        return None
    return None if chosen.choice.copying is None else chosen.choice.copying.domains


def check_durability(
    operators: Sequence[Operator], choices: Sequence[LayoutChoice], settings: Settings
) -> None:
    """Raise InvalidRequest if durability `replicas` does not fit the query.

    Under `replicas`, a batch may be committed before its files are in the store.
    """
    if settings.durability is Durability.BATCH:
        return
    if settings.recovery is Recovery.STORE:
        raise InvalidRequest(
            "durability: 'replicas' needs copies of keys, which recovery 'store' does not use; "
            "use recovery 'replicas' or 'taskb', or durability 'batch'"
        )
    if settings.lazy:
        raise InvalidRequest(
            "durability: 'replicas' needs copies of all state, and moves 'lazy' leaves state "
            "under older layouts; use moves 'eager', or durability 'batch'"
        )
    for operator, choice in zip(operators, choices, strict=True):
        what = f"durability: join {operator.index}"
        check_copies(what, operator, choice)
        copying = choice.copying
        if copying is None:
            continue
        n = copying.domains or 1
        if n < 2:
            raise InvalidRequest(
                "durability: 'replicas' needs at least two executors with a disk each, and the "
                f"session has {n}; use a cluster (to try it, --master 'local-cluster[3,1,2048]'), "
                "or durability 'batch'"
            )
        if copying.standby and operator.instances % n == 0:
            raise InvalidRequest(
                f"{what}: with {n} executors, each of {operator.instances} instances shares its "
                f"executor with its own standby; give {operator.instances - 1} or "
                f"{operator.instances + 1} instances, or recovery 'replicas'"
            )
