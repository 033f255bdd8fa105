"""Instances that a user makes fail, to see what follows, and which operators survive it."""

from __future__ import annotations

from collections.abc import Sequence

from joinengine.driver.relayout import Relayout
from joinengine.driver.settings import Settings
from joinengine.layouts.key_based import has_backups
from joinengine.layouts.replicas import Ftlb
from joinengine.model.errors import InvalidRequest
from joinengine.operators.base import Operator
from joinengine.state.operator_state import OperatorState

_HINT = "to have lost state read again from a store, use --recovery store"


def check_losses(
    operators: Sequence[Operator], states: Sequence[OperatorState], settings: Settings
) -> None:
    """Raise InvalidRequest if instances are to be lost that could not be recovered."""
    for batch, instances in settings.losses.items():
        wishes = [wish for at, some in settings.schedule.items() if at <= batch for wish in some]
        for operator, state in zip(operators, states, strict=True):
            what = f"fail: batch {batch}: join {operator.index}"
            if settings.kept_store is None:
                _check_copies(what, operator, state, wishes)
            last = max(
                state.layouts.newest.wanted,
                *(one.instances for one in wishes if one.instances is not None),
                0,
            )
            for instance in instances:
                if not 0 <= instance < last:
                    raise InvalidRequest(
                        f"{what}: instance {instance} is not there; give one from 0 to {last - 1}"
                    )


def _check_copies(
    what: str, operator: Operator, state: OperatorState, wishes: Sequence[Relayout]
) -> None:
    """Raise InvalidRequest if what an operator holds has no copies. There is no store."""
    newest = state.layouts.newest
    choices = [newest.choice, *(one.choice for one in wishes)]
    if not survives(operator):
        raise InvalidRequest(
            f"{what}: what watchers and aggregators hold has no copies; only inner and "
            f"left semi joins survive the loss of an instance by copies of keys; {_HINT}"
        )
    if not any(isinstance(choice, Ftlb) for choice in choices):
        raise InvalidRequest(
            f"{what}: layout {newest.choice.label} keeps no copies of keys, so a lost instance "
            f"cannot be recovered; use layout ftlb; {_HINT}"
        )


def survives(operator: Operator) -> bool:
    """Whether all that instances of an operator hold has copies, under a layout that keeps some.

    Watchers and aggregators keep none.
    """
    return operator.policy.copies and not operator.watched


def has_copies(operator: Operator, state: OperatorState) -> bool:
    """Whether all that instances of an operator hold has copies under its present layout."""
    return survives(operator) and has_backups(state.layouts.newest.layout)
