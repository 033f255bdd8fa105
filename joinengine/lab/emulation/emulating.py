"""What a run emulates, as a trial of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from typing_extensions import override

from joinengine.driver.recovery.demands import check_copies
from joinengine.driver.settings import Settings
from joinengine.driver.trial import Trial
from joinengine.lab.emulation.slow_operator import NO_WORK, Work, slowed
from joinengine.lab.emulation.slow_store import SlowStore
from joinengine.model.errors import InvalidRequest
from joinengine.model.speeds import Speed
from joinengine.operators import Aggregation
from joinengine.operators.base import Operator
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.operator_state import OperatorState
from joinengine.state.store import Store
from joinengine.state.wished import Relayout
from joinengine.world.storage import Storage


@dataclass(frozen=True)
class Emulation(Trial):
    """Instances that work longer, or fail, and a store that is slow.

    `losses`: batch -> the instances that lose their state before it. `speed`: the speed of the
    store; None: its real speed.
    """

    work: Work = NO_WORK
    losses: Mapping[int, Sequence[int]] = field(default_factory=dict)
    speed: Speed | None = None

    @property
    @override
    def keeps_store(self) -> bool:
        return self.speed is not None

    @override
    def carried(self, operator: Operator) -> Operator:
        """The operator with emulated work; later stages of an aggregation have none for tuples."""
        later = isinstance(operator, Aggregation) and not operator.stage.is_first
        work = replace(self.work, per_tuple_s=0.0) if later else self.work
        return slowed(operator, work, self.losses) if work != NO_WORK or self.losses else operator

    @override
    def store(self, checkpoint: Checkpoint, copies: Storage) -> Store:
        if self.speed is None:
            return super().store(checkpoint, copies)
        return SlowStore(checkpoint, copies, self.speed)

    @property
    @override
    def planned(self) -> Sequence[tuple[int, str]]:
        return [
            (batch, f"the loss of instance {instance}")
            for batch, instances in self.losses.items()
            for instance in instances
        ]

    @override
    def check(
        self, operators: Sequence[Operator], states: Sequence[OperatorState], settings: Settings
    ) -> None:
        """Raise InvalidRequest if instances are to be lost that could not be recovered."""
        for batch, instances in self.losses.items():
            due = [wish for at, some in settings.schedule.items() if at <= batch for wish in some]
            for operator, state in zip(operators, states, strict=True):
                what = f"fail: batch {batch}: join {operator.index}"
                if not settings.keeps_store:
                    asked = [wish.choice for wish in due if wish.choice is not None]
                    check_copies(what, operator, [state.layouts.newest.choice, *asked][-1])
                last = _most_instances(state, due)
                for instance in instances:
                    if not 0 <= instance < last:
                        raise InvalidRequest(
                            f"{what}: instance {instance} does not exist; give one from 0 to "
                            f"{last - 1}"
                        )


def _most_instances(state: OperatorState, wishes: Sequence[Relayout]) -> int:
    """How many instances an operator may have once wishes are granted, standbys included."""
    newest = state.layouts.newest
    choices = [newest.choice, *(wish.choice for wish in wishes if wish.choice is not None)]
    sizes = [newest.wanted, *(wish.instances for wish in wishes if wish.instances is not None)]
    return max(sizes) * max(choice.group_size for choice in choices)
