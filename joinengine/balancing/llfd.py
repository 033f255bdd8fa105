"""LLFD: place keys heaviest first on the least loaded instance, exchanging lighter ones.

Why: whole keys are an assignment problem; a key that does not fit anywhere may still fit where a
few lighter ones make room, which are then placed in turn.
How: a pool of keys without a home. The heaviest goes to the least loaded instance that takes it
under UL = (1 + imbalance) * mean, if need be after *Adjust* has put lighter keys of that instance
into the pool, those of greatest priority first.
Law: it ends, since each exchange replaces a key of the pool by lighter ones.
Cost: O(|pool| log |pool|) without exchanges; one costs a pass over an instance's keys.
Source: Fang et al., 2016 (arXiv 1610.05121), algorithm 1. Ours: a key that fits nowhere goes to
the least loaded instance, and all lighter keys leave it (the paper leaves it open).
"""

from __future__ import annotations

import heapq
from itertools import pairwise

import numpy as np

from joinengine.balancing.statistics import Floats, Ints, Loads

#: Loads are sums of counts; below this share of the mean a difference is rounding.
ROUNDING = 1e-9
NOWHERE = -1


def as_changes(loads: Loads, homes: Ints) -> dict[int, dict[int, float]]:
    """The keys that must be placed anew so that each has all of itself at `homes[key]`."""
    before, whole = whole_homes(loads)
    moved = np.flatnonzero((before != homes) | ~whole)
    return {key: {int(homes[key]): 1.0} for key in moved.tolist()}


def whole_homes(loads: Loads) -> tuple[Ints, np.ndarray]:
    """(K,) the instance that has most of each key, and (K,) whether it has all of it."""
    order = np.argsort(loads.shares, kind="stable")  # the greatest share is written last
    homes = np.empty(len(loads.hashes), np.int64)
    homes[loads.keys[order]] = loads.instances[order]
    return homes, np.bincount(loads.keys, minlength=len(homes)) == 1


class Assignment:
    """Keys and their homes under change.

    `cost` (K,) load of a key, `homes` (K,) instance or NOWHERE, `level` (N,) load per instance.
    Keys at one instance are taken by `priority` (K,), greatest first.
    """

    def __init__(self, loads: Loads, homes: Ints, priority: Floats, imbalance: float) -> None:
        self.cost = loads.spread + loads.fixed
        self.homes = homes.copy()
        n = loads.n_instances
        self.level = loads.rest + np.bincount(homes, self.cost, minlength=n)
        self.mean = float(self.level.mean())
        self.limit = (1 + imbalance) * self.mean * (1 + ROUNDING)
        self._priority = priority
        order = np.lexsort((loads.hashes, -priority))
        by_home = order[np.argsort(homes[order], kind="stable")]
        bounds = np.searchsorted(homes[by_home], np.arange(n + 1))
        self._natives = [by_home[first:last] for first, last in pairwise(bounds)]
        self._guests: list[list[int]] = [[] for _ in range(n)]

    def on(self, instance: int) -> Ints:
        """The keys at an instance, greatest priority first."""
        keys = self._natives[instance]
        if self._guests[instance]:
            guests = np.unique(self._guests[instance])
            keys = np.concatenate([np.setdiff1d(keys, guests, assume_unique=True), guests])
            keys = keys[np.argsort(-self._priority[keys], kind="stable")]
        here: Ints = keys[self.homes[keys] == instance]
        return here

    def take(self, keys: Ints) -> None:
        """Leave the keys without a home; they are all at one instance."""
        if len(keys):
            self.level[self.homes[keys[0]]] -= self.cost[keys].sum()
            self.homes[keys] = NOWHERE

    def put(self, key: int, instance: int) -> None:
        """Give a key a home."""
        self.homes[key] = instance
        self.level[instance] += self.cost[key]
        self._guests[instance].append(key)

    def unload(self) -> list[int]:
        """From each instance above the limit take keys until it is not; the keys."""
        pool = list[int]()
        for instance in np.flatnonzero(self.level > self.limit).tolist():
            keys = self.on(instance)
            keys = keys[self.cost[keys] > 0]
            taken = keys[: self._until(keys, self.level[instance] - self.limit)]
            self.take(taken)
            pool += taken.tolist()
        return pool

    def room_for(self, key: int, instance: int) -> tuple[Ints, bool]:
        """The lighter keys to exchange for `key`, and whether it then fits."""
        keys = self.on(instance)
        keys = keys[(self.cost[keys] < self.cost[key]) & (self.cost[keys] > 0)]
        needed = self.level[instance] + self.cost[key] - self.limit
        exchanged = keys[: self._until(keys, needed)]
        return exchanged, bool(self.cost[exchanged].sum() >= needed)

    def _until(self, keys: Ints, needed: float) -> int:
        """How many of the first keys weigh `needed` together."""
        return int(np.searchsorted(np.cumsum(self.cost[keys]), needed)) + 1


def place(assignment: Assignment, pool: list[int]) -> None:
    """Give every key of the pool a home: LLFD with Adjust."""
    cost, level = assignment.cost, assignment.level
    heap = [(-float(cost[key]), key) for key in pool]
    heapq.heapify(heap)
    while heap:
        weight, key = heapq.heappop(heap)
        target = int(np.argmin(level))
        if level[target] - weight > assignment.limit:
            target, exchanged = _exchange(assignment, key)
            assignment.take(exchanged)
            for lighter in exchanged.tolist():
                heapq.heappush(heap, (-float(cost[lighter]), lighter))
        assignment.put(key, target)


def _exchange(assignment: Assignment, key: int) -> tuple[int, Ints]:
    """Where `key` goes, and the keys that leave for it."""
    order = np.argsort(assignment.level, kind="stable").tolist()
    for instance in order:
        exchanged, fits = assignment.room_for(key, instance)
        if fits:
            return instance, exchanged
    return order[0], assignment.room_for(key, order[0])[0]
