"""Key-based layouts: a base function, overridden key by key in a routing table.

`hash` never changes its table. `qmmp` and `mnrt` re-plan it when an instance's load passes the
tolerance; they differ in their planner alone.

Source: Fang et al., JOS 2017 (qmmp, mnrt); key grouping everywhere (hash).
Ours: a re-plan is due only where the overload exceeds the tolerance by more than counting noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from joinengine.balancing.mnrt import plan_mnrt
from joinengine.balancing.qmmp import plan_qmmp
from joinengine.balancing.statistics import Interval, Loads, build_table, gather_loads, skew
from joinengine.layouts.base import Layout, Plan, check_instances
from joinengine.model.conditions import Condition, Equi
from joinengine.model.errors import InvalidRequest
from joinengine.routing import table as routing_table
from joinengine.routing.moves import plan_moves
from joinengine.routing.table import Router, RoutingTable

#: An instance that received n tuples by chance alone may well have received n + 3 sqrt(n).
NOISE_SIGMAS = 3.0

Planner = Callable[[Loads, float], dict[int, dict[int, float]]]


@dataclass(frozen=True)
class KeyBased:
    """The layout state: how many instances, and the keys that are not at their base home."""

    instances: int
    table: RoutingTable

    def router(self) -> Router:
        """The table as arrays."""
        return self.table.router(self.instances)

    def to_json(self) -> dict[str, Any]:
        """The state as plain values."""
        return {"instances": self.instances, "table": routing_table.to_json(self.table)}


class _KeyBasedChoice:
    """What all key-based layouts have in common."""

    name: ClassVar[str]

    def check(self, condition: Condition, how: str, instances: int) -> None:
        """Equi-joins, inner."""
        check_instances(self.name, instances)
        if not isinstance(condition, Equi):
            kind = type(condition).__name__.lower()
            raise InvalidRequest(f"layout {self.name} serves equi joins, not {kind} joins yet")
        if how != "inner":
            raise InvalidRequest(f"layout {self.name} serves inner joins, not {how!r} yet")

    def start(self, instances: int) -> KeyBased:
        """All keys at their base homes."""
        return KeyBased(instances, RoutingTable())

    def restore(self, state: dict[str, Any]) -> KeyBased:
        """The layout that `KeyBased.to_json` wrote."""
        return KeyBased(int(state["instances"]), routing_table.from_json(state["table"]))


@dataclass(frozen=True)
class Hash(_KeyBasedChoice):
    """Every key at its base home, for ever."""

    name: ClassVar[str] = "hash"
    source: ClassVar[str] = "key grouping"
    summary: ClassVar[str] = "key hash modulo instances; never changes"

    @property
    def counts_keys(self) -> bool:
        """No planner, no counts."""
        return False

    @property
    def history_intervals(self) -> int:
        """No planner, no history."""
        return 0

    def plan(self, layout: Layout, history: Sequence[Interval]) -> Plan | None:
        """Never anything."""
        return None


@dataclass(frozen=True)
class _Planned(_KeyBasedChoice):
    """A key-based layout whose planner runs when load skew passes 1 + `imbalance`.

    `intervals`: over how many of the last intervals the load is taken.
    """

    imbalance: float = 0.05
    intervals: int = 4

    planner: ClassVar[Planner]

    def __post_init__(self) -> None:
        if not self.imbalance >= 0:
            raise InvalidRequest(
                f"{self.name}: imbalance {self.imbalance} must be 0 or more (0.05: 5 % above mean)"
            )
        if self.intervals < 1:
            raise InvalidRequest(f"{self.name}: intervals {self.intervals} must be at least 1")

    @property
    def counts_keys(self) -> bool:
        """The planner moves keys by their counts."""
        return True

    @property
    def history_intervals(self) -> int:
        """As many as the load is taken over."""
        return self.intervals

    def plan(self, layout: Layout, history: Sequence[Interval]) -> Plan | None:
        """A new table and its moves, where an instance's load is above tolerance and noise."""
        assert isinstance(layout, KeyBased)
        loads = gather_loads(history, layout.table, layout.instances)
        level = loads.per_instance()
        limit = (1 + self.imbalance) * level.mean()
        if level.max() <= limit + NOISE_SIGMAS * math.sqrt(limit):
            return None
        changed = type(self).planner(loads, self.imbalance)
        new = build_table(layout.table, loads, changed)
        if new.placements == layout.table.placements:
            return None
        moves = plan_moves(layout.table, new, layout.instances)
        return Plan(KeyBased(layout.instances, new), moves, skew(level))


@dataclass(frozen=True)
class Qmmp(_Planned):
    """Quickly made plans: cut keys wherever the target load falls."""

    name: ClassVar[str] = "qmmp"
    source: ClassVar[str] = "Fang et al., JOS 2017, algorithm 3"
    summary: ClassVar[str] = "splits keys freely; plans fastest"
    planner: ClassVar[Planner] = staticmethod(plan_qmmp)


@dataclass(frozen=True)
class Mnrt(_Planned):
    """Split on demand, merge back, move little, keep the table small."""

    name: ClassVar[str] = "mnrt"
    source: ClassVar[str] = "Fang et al., JOS 2017, algorithm 4"
    summary: ClassVar[str] = "splits keys on demand and merges them back"
    planner: ClassVar[Planner] = staticmethod(plan_mnrt)
