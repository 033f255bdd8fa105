"""The interface through which the laboratory takes part in the run of a query.

Why: slow instances and planned failures are no concern of the engine. It calls these methods
instead, and the methods below answer for a query on which nothing is tried.
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
    """The trial that changes nothing; the laboratory overrides its methods."""

    @property
    def keeps_store(self) -> bool:
        """Whether the trial needs second copies of run files."""
        return False

    def carried(self, operator: Operator) -> Operator:
        """The operator as its tasks carry it out."""
        return operator

    def store(self, checkpoint: Checkpoint, copies: Storage) -> Store:
        """The store over `copies`, where the query keeps second copies of run files."""
        return Store(checkpoint, copies)

    @property
    def planned(self) -> Sequence[tuple[int, str]]:
        """The planned events, each as (the batch before which it happens, the event in words)."""
        return ()

    def check(
        self,
        operators: Sequence[Operator],
        states: Sequence[OperatorState],
        settings: Settings,
    ) -> None:
        """Raise InvalidRequest if a planned event is impossible; `states`: at the start."""
