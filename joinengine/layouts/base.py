"""What a layout is: how it starts, how it routes, what it asks to change after an interval.

A layout comes as a triple. The *choice* is what the user writes (`Mnrt(imbalance=0.05)`); the
*layout* is its state at one batch, kept in the manifest; the *router* is what tasks use.

Law (meet once): for each pair of equal keys there is exactly one instance where the earlier tuple
is stored and the later one probes, whatever the layout did between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from joinengine.balancing.statistics import Interval
from joinengine.kernels.hashing import Words
from joinengine.model.conditions import Condition
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.routing.moves import Moves
from joinengine.routing.routes import MAX_INSTANCES, Deliveries
from joinengine.routing.table import RoutingTable


class Router(Protocol):
    """Carried to the tasks; says where tuples go."""

    @property
    def instances(self) -> int:
        """How many instances there are."""

    @property
    def listed(self) -> Words:
        """The key hashes that the layout wants counted, however light; ascending."""

    def route(self, side: Side, words: Words) -> Deliveries:
        """(n,) words of one side -> deliveries; a function of its arguments alone."""


class Layout(Protocol):
    """The state of a layout at one batch."""

    @property
    def instances(self) -> int:
        """How many instances there are."""

    @property
    def table(self) -> RoutingTable:
        """The keys that do not live at their base home; empty where keys do not decide."""

    def router(self) -> Router:
        """What tasks need to route."""

    def to_json(self) -> dict[str, Any]:
        """The state as plain values; `LayoutChoice.restore` reads it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A re-layout: the layout of the next batch, and the state that must move before it."""

    layout: Layout
    moves: Moves
    skew_before: float


class LayoutChoice(Protocol):
    """A layout as a user chooses it, with its settings."""

    name: ClassVar[str]
    source: ClassVar[str]
    summary: ClassVar[str]

    @property
    def counts_keys(self) -> bool:
        """Whether tasks must count keys for the planner."""

    def check(self, condition: Condition, how: str, instances: int) -> None:
        """Raise InvalidRequest, naming the layout, for a join that it cannot serve."""

    def start(self, instances: int) -> Layout:
        """The layout of batch 0."""

    def restore(self, state: dict[str, Any]) -> Layout:
        """A layout from the manifest."""

    def plan(self, layout: Layout, history: Sequence[Interval]) -> Plan | None:
        """What to change after an interval; `history` ends with it. None: nothing."""

    @property
    def history_intervals(self) -> int:
        """How many intervals `plan` wants to see."""


def check_instances(name: str, instances: int, least: int = 1) -> None:
    """Raise InvalidRequest where a layout cannot have so many instances."""
    if not least <= instances <= MAX_INSTANCES:
        raise InvalidRequest(
            f"instances: layout {name} cannot have {instances}; "
            f"give a number from {least} to {MAX_INSTANCES}"
        )
