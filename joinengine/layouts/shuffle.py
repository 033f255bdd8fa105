"""Shuffle: store a tuple anywhere, by u alone, and probe everywhere.

Why: it is the yardstick of balance and serves any predicate, at the price of a message to every
instance for each tuple.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from joinengine.kernels.hashing import Words, u_of
from joinengine.layouts.layout import Layout, LayoutChoice, Router
from joinengine.model.keys import U_BITS, Side
from joinengine.routing.routes import BOTH, PROBE, STORE, Deliveries, Instances


@dataclass(frozen=True, slots=True)
class ShuffleRouter(Router):
    """Store at one instance, probe all."""

    instances: int = field()  # field(): else the protocol's property would be the default

    @override
    def route(self, side: Side, words: Words) -> Deliveries:
        """Each tuple goes to all instances, and is stored at one of them."""
        n = self.instances
        rows = np.repeat(np.arange(len(words)), n)
        targets = np.tile(np.arange(n, dtype=np.uint16), len(words))
        own = self._home(words)[rows]
        return Deliveries(rows, targets, np.where(targets == own, BOTH, PROBE))

    @override
    def homes(self, side: Side, words: Words, holders: Instances) -> Deliveries:
        """A tuple stays where it is, unless its instance is gone."""
        rows = np.arange(len(words))
        homes = np.where(holders < self.instances, holders, self._home(words))
        return Deliveries(rows, homes, np.full(len(rows), STORE))

    def _home(self, words: Words) -> Instances:
        return ((u_of(words) * np.uint64(self.instances)) >> np.uint64(U_BITS)).astype(np.uint16)


@dataclass(frozen=True, slots=True)
class Shuffled(Layout):
    """The layout state."""

    instances: int = field()  # field(): else the protocol's property would be the default

    @override
    def router(self) -> ShuffleRouter:
        return ShuffleRouter(self.instances)

    @override
    def to_json(self) -> dict[str, Any]:
        return {"instances": self.instances}


@dataclass(frozen=True)
class Shuffle(LayoutChoice):
    """Level under any input, at the price of a message to every instance."""

    name: ClassVar[str] = "shuffle"
    source: ClassVar[str] = "shuffle grouping"
    summary: ClassVar[str] = "store anywhere, probe everywhere"
    serves_theta: ClassVar[bool] = True
    keeps_keys_whole: ClassVar[bool] = False

    @override
    def start(self, instances: int) -> Shuffled:
        return Shuffled(instances)

    @override
    def restore(self, state: dict[str, Any]) -> Shuffled:
        return Shuffled(int(state["instances"]))

    @override
    def resized(self, layout: Layout, instances: int) -> Shuffled:
        return Shuffled(instances)

    @override
    def grow(self, layout: Layout, held: Sequence[int]) -> Shuffled:
        """One instance more."""
        return Shuffled(layout.instances + 1)
