"""The planners' working copy of the fragments: take a share from an instance, put it on another.

Why: a plan changes few of a million keys. The fragments stay in their arrays; only a key that a
planner changes gets a dictionary of its own.
Cost: sorting the fragments by instance once; after that it follows the keys that are changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from joinengine.balancing.loads import Loads
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Floats, Ints

#: Shares below this are rounding dust; u itself is exact to 6e-8.
DUST = 1e-9


class Piece(NamedTuple):
    """A share of a key in the pool: the instance it came from, and whether it was cut off."""

    key: int
    share: float
    origin: int
    cut: bool


class Workspace:
    """Fragments under change; `level` (N,) is the load of each instance as it stands."""

    def __init__(self, loads: Loads) -> None:
        self.loads = loads
        self.level = loads.as_planned()
        self.changed: NewShares = {}
        self._guests: list[set[int]] = [set() for _ in range(loads.n_instances)]
        self._order = np.argsort(loads.instances, kind="stable")
        self._bounds = np.searchsorted(
            loads.instances[self._order], np.arange(loads.n_instances + 1)
        )
        self._touched = np.zeros(len(loads.hashes), bool)
        by_key = np.argsort(loads.keys, kind="stable")
        self._by_key = by_key
        self._key_bounds = np.searchsorted(loads.keys[by_key], np.arange(len(loads.hashes) + 1))
        self.n_homes = np.diff(self._key_bounds)

    def mean(self) -> float:
        """The mean load of an instance."""
        return float(self.level.mean())

    def on(self, instance: int) -> tuple[Ints, Floats]:
        """The keys at `instance` and their shares."""
        ours = self._order[self._bounds[instance] : self._bounds[instance + 1]]
        ours = ours[~self._touched[self.loads.keys[ours]]]
        guests = sorted(self._guests[instance])
        keys = np.concatenate([self.loads.keys[ours], np.array(guests, np.int64)])
        shares = [self.changed[key][instance] for key in guests]
        return keys, np.concatenate([self.loads.shares[ours], np.array(shares)])

    def shares(self, key: int) -> dict[int, float]:
        """The homes of `key` and their shares, without pieces in the pool."""
        if key not in self.changed:
            ours = self._by_key[self._key_bounds[key] : self._key_bounds[key + 1]]
            homes = self.loads.instances[ours].tolist()
            self.changed[key] = dict(zip(homes, self.loads.shares[ours].tolist(), strict=True))
            self._touched[key] = True
            for home in homes:
                self._guests[home].add(key)
        return self.changed[key]

    def take(self, key: int, instance: int, share: float) -> Piece:
        """Remove a share of `key` from `instance`; all of it if only dust would stay."""
        shares = self.shares(key)
        cut = share < shares[instance] - DUST
        if cut:
            shares[instance] -= share
            self.level[instance] -= share * self.loads.spread[key]
        else:
            share = shares.pop(instance)
            self._guests[instance].discard(key)
            self.level[instance] -= share * self.loads.spread[key] + self.loads.fixed[key]
            self.n_homes[key] -= 1
        return Piece(key, share, instance, cut)

    def put(self, key: int, instance: int, share: float) -> None:
        """Add a share of `key` to `instance`."""
        shares = self.shares(key)
        if instance not in shares:
            self._guests[instance].add(key)
            self.level[instance] += self.loads.fixed[key]
            self.n_homes[key] += 1
        shares[instance] = shares.get(instance, 0.0) + share
        self.level[instance] += share * self.loads.spread[key]

    def cost_to_put(self, key: int, instance: int, share: float) -> float:
        """By how much `put` would raise the instance's load."""
        fixed = 0.0 if instance in self.shares(key) else self.loads.fixed[key]
        return float(share * self.loads.spread[key] + fixed)

    def unload(self, instance: int, down_to: float, keys: Iterable[int]) -> list[Piece]:
        """Take keys in the order given, the last in part, until the load is `down_to` or less."""
        taken = list[Piece]()
        for key in keys:
            excess = self.level[instance] - down_to
            if excess <= 0:
                break
            spread = self.loads.spread[key] * self.shares(key)[instance]
            share = self.shares(key)[instance]
            taken.append(
                self.take(key, instance, share if spread <= excess else share * excess / spread)
            )
        return taken
