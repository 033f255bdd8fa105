"""What is tried on a query beside running it: the seam at which a laboratory takes part in a run.

Why: that instances are slow, or fail when a plan says so, is no business of the engine. It asks
these questions instead, and a trial that is none has the answers below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joinengine.operators.base import Operator
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.operator_state import OperatorState
from joinengine.state.store import Store
from joinengine.world.storage import Storage

if TYPE_CHECKING:
    from joinengine.driver.settings import Settings


@dataclass(frozen=True)
class Trial:
    """Nothing is tried: what a trial may change, as it is by itself."""

    @property
    def keeps_store(self) -> bool:
        """Whether it needs second copies of run files."""
        return False

    def carried(self, operator: Operator) -> Operator:
        """An operator as its tasks carry it out."""
        return operator

    def store(self, checkpoint: Checkpoint, copies: Storage) -> Store:
        """What keeps the second copies of run files, if the query has any."""
        return Store(checkpoint, copies)

    @property
    def planned(self) -> Sequence[tuple[int, str]]:
        """What is to happen before a batch: its number, and what, in words."""
        return ()

    def check(
        self,
        operators: Sequence[Operator],
        states: Sequence[OperatorState],
        settings: Settings,
    ) -> None:
        """Raise InvalidRequest if what is planned cannot be; `states`: those of the start."""
