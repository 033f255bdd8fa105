"""LLFD: place keys heaviest first on the least loaded instance, exchanging lighter ones.

Why: placing whole keys is an assignment problem. A key that fits nowhere may still fit if a few
lighter keys of an instance make room; these are then placed in turn.
How: a pool of keys without a home. The heaviest goes to the least loaded instance that takes it
under UL = (1 + imbalance) * mean, if need be after *Adjust* has put lighter keys of that instance
into the pool, those of greatest priority first. Keys of one kind (`compact.Items`) go together: as
many as bring the instance to the mean, at least one. If each key is its own kind, this is LLFD key
by key.
Law: it ends, since each exchange replaces a key of the pool by lighter ones.
Cost: O(|pool| log |pool|) without exchanges; one costs a pass over an instance's kinds of keys.
Source: Fang et al., 2016 (arXiv 1610.05121), algorithm 1. Ours: a key that fits nowhere goes to the
instance with the least load once all lighter keys have left it; it goes back to its old home unless
that instance is better by more than the tolerance (the paper leaves it open; a key above UL would
move, and others for it, for nothing). Keys that were placed a moment ago may be exchanged too; the
paper names only the keys that were at the instance before.
"""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from joinengine.balancing.compact import Items, Spots
from joinengine.balancing.loads import Loads
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Floats, Ints

#: Loads are sums of counts; below this share of the mean a difference is rounding.
ROUNDING = 1e-9
GUEST = -1


def as_changes(loads: Loads, homes: Ints) -> NewShares:
    """The keys that must be placed anew so that each is whole at `homes[key]`."""
    before, whole = whole_homes(loads)
    moved = np.flatnonzero((before != homes) | ~whole)
    return {key: {int(homes[key]): 1.0} for key in moved.tolist()}


def whole_homes(loads: Loads) -> tuple[Ints, np.ndarray]:
    """(K,) the instance with the greatest share of each key, and (K,) whether the key is whole."""
    order = np.argsort(loads.shares, kind="stable")  # the greatest share is written last
    homes = np.empty(len(loads.hashes), np.int64)
    homes[loads.keys[order]] = loads.instances[order]
    return homes, np.bincount(loads.keys, minlength=len(homes)) == 1


def homes_after(loads: Loads, changed: NewShares) -> Ints:
    """(K,) the homes of whole keys once those of `changed` are placed anew."""
    homes, _ = whole_homes(loads)
    for key, shares in changed.items():
        (homes[key],) = shares
    return homes


class Some(NamedTuple):
    """Keys at one instance: `counts` of kinds `items`; `spots`: where they began, or GUEST."""

    items: Ints
    counts: Ints
    spots: Ints


class Assignment:
    """A working copy of items and their instances; `level` (N,): the load of each instance.

    Keys at one instance are taken by `priority` (I,), greatest first.
    """

    def __init__(
        self, items: Items, spots: Spots, rest: Floats, priority: Floats | Ints, imbalance: float
    ) -> None:
        self.cost = items.cost
        n = len(rest)
        weights = items.cost[spots.items] * spots.counts
        self.level = rest + np.bincount(spots.instances, weights, minlength=n)
        self.mean = float(self.level.mean())
        self.limit = (1 + imbalance) * self.mean * (1 + ROUNDING)
        self._origins = dict[int, int]()
        self._priority = priority
        order = np.argsort(-priority[spots.items], kind="stable")
        order = order[np.argsort(spots.instances[order].astype(np.uint16), kind="stable")]
        bounds = np.searchsorted(spots.instances[order], np.arange(n + 1))
        self._native = [np.arange(first, last) for first, last in pairwise(bounds)]
        self._items, self._instances = spots.items[order], spots.instances[order]
        self._left = spots.counts[order].copy()
        self._guests: list[Counter[int]] = [Counter() for _ in range(n)]

    def on(self, instance: int) -> Some:
        """The keys at an instance, greatest priority first."""
        spots = self._native[instance]
        spots = spots[self._left[spots] > 0]
        items, counts = self._items[spots], self._left[spots]
        guests = sorted(self._guests[instance])
        if guests:
            staying = [self._guests[instance][item] for item in guests]
            items = np.concatenate([items, guests])
            counts = np.concatenate([counts, staying])
            spots = np.concatenate([spots, np.full(len(guests), GUEST)])
            order = np.argsort(-self._priority[items], kind="stable")
            items, counts, spots = items[order], counts[order], spots[order]
        return Some(items, counts, spots)

    def take(self, some: Some, instance: int) -> None:
        """Leave keys of an instance without a home."""
        self.level[instance] -= (self.cost[some.items] * some.counts).sum()
        native = some.spots != GUEST
        self._left[some.spots[native]] -= some.counts[native]
        self._origins.update(dict.fromkeys(some.items[native].tolist(), instance))
        guests = self._guests[instance]
        for item, count in zip(
            some.items[~native].tolist(), some.counts[~native].tolist(), strict=True
        ):
            guests[item] -= count
            if not guests[item]:
                del guests[item]

    def put(self, item: int, instance: int, count: int = 1) -> None:
        """Give keys of one kind a home."""
        self._guests[instance][item] += count
        self.level[instance] += count * self.cost[item]

    def unload(self) -> Counter[int]:
        """Take keys from each instance above the limit until it is not; how many of each kind."""
        pool = Counter[int]()
        for instance in np.flatnonzero(self.level > self.limit).tolist():
            some = self._weighing(self.on(instance), self.level[instance] - self.limit)
            self.take(some, instance)
            _add(pool, some)
        return pool

    def room_for(self, item: int, instance: int) -> tuple[Some, bool]:
        """The lighter keys to exchange for one of `item`, and whether it then fits."""
        some = self.on(instance)
        lighter = self.cost[some.items] < self.cost[item]
        needed = self.level[instance] + self.cost[item] - self.limit
        exchanged = self._weighing(Some(*(column[lighter] for column in some)), needed)
        return exchanged, bool((self.cost[exchanged.items] * exchanged.counts).sum() >= needed)

    def least_bad(self, item: int) -> int:
        """The instance for a key that fits nowhere, once all lighter keys have left it."""
        floors = np.empty(len(self.level))
        for instance in range(len(floors)):
            some = self.on(instance)
            lighter = self.cost[some.items] < self.cost[item]
            leaving = (self.cost[some.items] * some.counts)[lighter].sum()
            floors[instance] = self.level[instance] - leaving
        best = int(np.argmin(floors))
        origin = self._origins.get(item, best)
        return origin if floors[origin] <= floors[best] + self.limit - self.mean else best

    def spots(self) -> Spots:
        """The instances of all keys that have a home."""
        is_left = self._left > 0
        guests = [(k, i, n) for i, held in enumerate(self._guests) for k, n in held.items()]
        columns = np.array(guests, np.int64).reshape(-1, 3).T
        natives = self._items[is_left], self._instances[is_left], self._left[is_left]
        return Spots(*(np.concatenate(pair) for pair in zip(natives, columns, strict=True)))

    def _weighing(self, some: Some, needed: float) -> Some:
        """The first keys with a load, as many as weigh `needed` together."""
        some = Some(*(column[self.cost[some.items] > 0] for column in some))
        sums = np.cumsum(self.cost[some.items] * some.counts)
        last = int(np.searchsorted(sums, needed))
        counts = some.counts[: last + 1].copy()
        if last < len(sums):
            cost = self.cost[some.items[last]]
            before = sums[last] - cost * counts[last]
            counts[last] = min(counts[last], max(1, int(np.ceil((needed - before) / cost))))
        return Some(some.items[: last + 1], counts, some.spots[: last + 1])


def place(assignment: Assignment, pool: Counter[int]) -> None:
    """Give every key of the pool a home: LLFD with Adjust."""
    cost, level = assignment.cost, assignment.level
    heap = [(-float(cost[item]), item) for item in pool]
    heapq.heapify(heap)
    while heap:
        weight, item = heapq.heappop(heap)
        count = pool.pop(item)
        while count:
            target, fitting = int(np.argmin(level)), 1
            if level[target] - weight <= assignment.limit:
                fitting = min(count, max(1, int((assignment.mean - level[target]) / -weight)))
            else:
                target, exchanged = _exchange(assignment, item)
                assignment.take(exchanged, target)
                for lighter in _add(pool, exchanged):
                    heapq.heappush(heap, (-float(cost[lighter]), lighter))
            assignment.put(item, target, fitting)
            count -= fitting


def _add(pool: Counter[int], some: Some) -> list[int]:
    """Add keys to the pool; the kinds that were not in it."""
    new = list[int]()
    for item, count in zip(some.items.tolist(), some.counts.tolist(), strict=True):
        if item not in pool:
            new.append(item)
        pool[item] += count
    return new


def _exchange(assignment: Assignment, item: int) -> tuple[int, Some]:
    """The instance for one key of `item`, and the keys that leave it to make room."""
    # A key above the limit does not even fit alone.
    if assignment.cost[item] <= assignment.limit * (1 + ROUNDING):
        for instance in np.argsort(assignment.level, kind="stable").tolist():
            exchanged, fits = assignment.room_for(item, instance)
            if fits:
                return instance, exchanged
    instance = assignment.least_bad(item)
    return instance, assignment.room_for(item, instance)[0]
