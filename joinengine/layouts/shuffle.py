"""Shuffle: store a tuple anywhere, by u alone, and probe everywhere.

Why: the yardstick of balance, at the price of a message to every instance; any predicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from joinengine.kernels.hashing import Words, u_of
from joinengine.layouts.base import Layout, LayoutChoice
from joinengine.model.keys import U_BITS, Placement, Side
from joinengine.routing.routes import BOTH, PROBE, STORE, Deliveries, Instances
from joinengine.routing.table import RoutingTable


@dataclass(frozen=True)
class ShuffleRouter:
    """Store at one instance, probe all."""

    instances: int
    listed: Words = field(default_factory=lambda: np.empty(0, np.uint64))

    def route(self, side: Side, words: Words) -> Deliveries:
        """Each tuple goes to all instances, and is stored at one of them."""
        n = self.instances
        rows = np.repeat(np.arange(len(words)), n)
        targets = np.tile(np.arange(n, dtype=np.uint16), len(words))
        own = self._home(words)[rows]
        return Deliveries(rows, targets, np.where(targets == own, BOTH, PROBE))

    def homes(self, side: Side, words: Words, holders: Instances) -> Deliveries:
        """A tuple stays where it is, unless its instance is gone."""
        rows = np.arange(len(words))
        homes = np.where(holders < self.instances, holders, self._home(words))
        return Deliveries(rows, homes, np.full(len(rows), STORE))

    def _home(self, words: Words) -> Instances:
        return ((u_of(words) * np.uint64(self.instances)) >> np.uint64(U_BITS)).astype(np.uint16)


@dataclass(frozen=True)
class Shuffled:
    """The layout state."""

    instances: int
    table: RoutingTable = field(default_factory=RoutingTable)

    def router(self) -> ShuffleRouter:
        """What tasks need to route."""
        return ShuffleRouter(self.instances)

    def place(self, hash_: int) -> Placement | None:
        """Keys do not decide."""
        return None

    def to_json(self) -> dict[str, Any]:
        """The state as plain values."""
        return {"instances": self.instances}


@dataclass(frozen=True)
class Shuffle(LayoutChoice):
    """Level under any input, at the price of a message to every instance."""

    name: ClassVar[str] = "shuffle"
    source: ClassVar[str] = "shuffle grouping"
    summary: ClassVar[str] = "store anywhere, probe everywhere"
    serves_theta: ClassVar[bool] = True
    keeps_keys_whole: ClassVar[bool] = False

    def start(self, instances: int) -> Shuffled:
        """All alike."""
        return Shuffled(instances)

    def restore(self, state: dict[str, Any]) -> Shuffled:
        """The layout that `Shuffled.to_json` wrote."""
        return Shuffled(int(state["instances"]))

    def resize(self, layout: Layout, instances: int) -> Shuffled:
        """More or fewer, all alike."""
        return Shuffled(instances)

    def grow(self, layout: Layout, held: Sequence[int]) -> Shuffled:
        """One instance more."""
        return Shuffled(layout.instances + 1)
