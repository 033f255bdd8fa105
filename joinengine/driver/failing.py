"""Instances that a user makes fail, to see what follows, and which operators survive it."""

from __future__ import annotations

from collections.abc import Sequence

from joinengine.driver.settings import Settings
from joinengine.layouts.replicas import Ftlb
from joinengine.model.errors import InvalidRequest
from joinengine.operators.base import Operator
from joinengine.state.operator_state import OperatorState


def check_losses(
    operators: Sequence[Operator], states: Sequence[OperatorState], settings: Settings
) -> None:
    """Raise InvalidRequest if instances are to be lost that could not be recovered."""
    for batch, instances in settings.losses.items():
        for operator, state in zip(operators, states, strict=True):
            newest = state.layouts.newest
            earlier = [
                wish for at, some in settings.schedule.items() if at <= batch for wish in some
            ]
            choices = [newest.choice, *(one.choice for one in earlier if one.choice is not None)]
            sizes = [
                newest.wanted,
                *(one.instances for one in earlier if one.instances is not None),
            ]
            what = f"fail: batch {batch}: join {operator.index}"
            if not survives(operator):
                raise InvalidRequest(
                    f"{what}: what watchers and aggregators hold has no copies; only inner and "
                    f"left semi joins survive the loss of an instance"
                )
            if not any(isinstance(choice, Ftlb) for choice in choices):
                raise InvalidRequest(
                    f"{what}: layout {newest.choice.label} keeps no copies of keys, so a lost "
                    f"instance cannot be recovered; use layout ftlb"
                )
            for instance in instances:
                if not 0 <= instance < max(sizes):
                    raise InvalidRequest(
                        f"{what}: instance {instance} is not there; give one from 0 to "
                        f"{max(sizes) - 1}"
                    )


def survives(operator: Operator) -> bool:
    """Whether all that instances of an operator hold has copies, under a layout that keeps some.

    Watchers and aggregators keep none.
    """
    return operator.policy.copies and not operator.watched
