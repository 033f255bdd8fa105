"""Whole keys at the least maximum: the last step of their planners if the limit cannot be met.

Why: a key that is heavier than the limit fits nowhere, and planners that stop there leave light
keys beside it although they fit elsewhere.

How: keys of the busiest instance are moved to the emptiest ones, heaviest first, or exchanged for
lighter ones, as long as that lowers the greater of two loads. If that is not enough, all ways to
place the heaviest keys are tried, within a limit of steps, and the others fill the rest.

Law: the greatest load never rises. Cost: for an exchange, a search for each key of one instance in
the sorted keys of the others; O(K log N) to place the light keys.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from joinengine.balancing.statistics import Bools, Floats, Ints
from joinengine.kernels.probing import distinct

#: An exchange must lower the greatest load by this part.
LEAST_GAIN = 1e-6
#: How many heavy keys are placed in all ways, and in how many steps at most.
TRIED_KEYS, TRIED_STEPS = 14, 20_000
#: How many keys of an instance are considered for exchanges, heaviest first.
EXCHANGED = 256


def least_whole(cost: Floats, homes: Ints, rest: Floats, limit: float) -> Ints:
    """(K,) homes with a lower greatest load than (K,) `homes`, if there are any.

    `cost` (K,): the loads of whole keys. `rest` (N,): the loads that cannot be moved. The search
    stops once all loads are within `limit`.
    """
    placing = _Whole(cost, homes, rest)
    placing.lower(limit)
    if placing.peak() <= max(limit, _bound(cost, rest) * (1 + LEAST_GAIN)):
        return placing.homes
    anew = _Whole(cost, _afresh(cost, homes, rest), rest)
    anew.lower(limit)
    return anew.homes if anew.peak() < placing.peak() * (1 - LEAST_GAIN) else placing.homes


def _bound(cost: Floats, rest: Floats) -> float:
    """A lower bound of the greatest load of any plan of whole keys."""
    heaviest = float(cost.max(initial=0.0) + rest.min())
    return max(heaviest, float(rest.max()), float(rest.sum() + cost.sum()) / len(rest))


class _Whole:
    """Homes under change; `level` (N,): the load of each instance."""

    def __init__(self, cost: Floats, homes: Ints, rest: Floats) -> None:
        self.cost, self.homes = cost, homes.copy()
        n = len(rest)
        self.level = rest + np.bincount(homes, cost, minlength=n)
        order = np.argsort(-cost, kind="stable")
        order = order[cost[order] > 0]
        order = order[np.argsort(homes[order], kind="stable")]
        bounds = np.searchsorted(homes[order], np.arange(n + 1))
        self.at = [order[bounds[i] : bounds[i + 1]] for i in range(n)]

    def peak(self) -> float:
        """The greatest load."""
        return float(self.level.max())

    def lower(self, limit: float) -> None:
        """Move and exchange keys of the busiest instance until it is within `limit`, or stuck."""
        for _ in range(4 * len(self.level) + 64):
            top = int(np.argmax(self.level))
            if self.level[top] <= limit or not (self._thinned(top, limit) or self._exchanged(top)):
                return

    def _thinned(self, top: int, limit: float) -> bool:
        """Let keys of an instance leave for emptier ones, heaviest first; whether any did."""
        level, moved = self.level, list[tuple[int, int]]()
        for key in self.at[top].tolist():
            emptiest = int(np.argmin(level))
            if level[top] <= limit:
                break
            then = level[emptiest] + self.cost[key]
            if then < level[top] * (1 - LEAST_GAIN):
                level[top] -= self.cost[key]
                level[emptiest] = then
                moved.append((key, emptiest))
        self._settle(moved)
        return bool(moved)

    def _exchanged(self, top: int) -> bool:
        """Make the exchange of a key for a lighter one that lowers the greater load most."""
        ours = self.at[top][:EXCHANGED]
        best, keys = self.level[top] * LEAST_GAIN, (-1, -1)
        for other in range(len(self.level)):
            gap = float(self.level[top] - self.level[other])
            theirs = self.at[other]
            if gap / 2 <= best or not len(theirs) or not len(ours):
                continue
            # The best exchange shifts half of the gap; the loads are searched in falling order.
            wanted = self.cost[ours] - gap / 2
            above = np.searchsorted(-self.cost[theirs], -wanted)
            for place in (np.maximum(above - 1, 0), np.minimum(above, len(theirs) - 1)):
                shift = self.cost[ours] - self.cost[theirs[place]]
                gain = np.minimum(shift, gap - shift)
                row = int(np.argmax(gain))
                if gain[row] > best:
                    best, keys = float(gain[row]), (int(ours[row]), int(theirs[place[row]]))
        if keys[0] < 0:
            return False
        (key, partner), other = keys, int(self.homes[keys[1]])
        shift = self.cost[key] - self.cost[partner]
        self.level[top] -= shift
        self.level[other] += shift
        self._settle([(key, other), (partner, top)])
        return True

    def _settle(self, moved: Sequence[tuple[int, int]]) -> None:
        """Note the new homes of some keys."""
        if not moved:
            return
        keys, homes = np.array(moved, np.int64).T
        left = distinct(self.homes[keys])
        self.homes[keys] = homes
        for instance in left.tolist():
            self.at[instance] = self.at[instance][self.homes[self.at[instance]] == instance]
        order = np.lexsort((-self.cost[keys], homes))
        keys, homes = keys[order], homes[order]
        targets = distinct(homes)
        bounds = np.searchsorted(homes, [*targets, len(self.level)])
        for instance, first, last in zip(targets.tolist(), bounds[:-1], bounds[1:], strict=True):
            keys_here, come = self.at[instance], keys[first:last]
            self.at[instance] = np.insert(
                keys_here, np.searchsorted(-self.cost[keys_here], -self.cost[come]), come
            )


def _afresh(cost: Floats, homes: Ints, rest: Floats) -> Ints:
    """(K,) homes: the best of all ways for the heaviest keys, and the others around them."""
    heavy = _heaviest(cost)
    light = cost > 0
    light[heavy] = False
    placed = homes.copy()
    placed[heavy] = _in_all_ways(cost[heavy], rest, float(cost[light].sum()))
    level = rest + np.bincount(placed[heavy], cost[heavy], minlength=len(rest))
    _filled_up(cost, placed, level, light)
    return placed


def _heaviest(cost: Floats) -> Ints:
    heavy = np.arange(len(cost))
    if len(cost) > TRIED_KEYS:
        heavy = np.argpartition(-cost, TRIED_KEYS)[:TRIED_KEYS]
    heavy = heavy[np.argsort(-cost[heavy], kind="stable")]
    return np.asarray(heavy[cost[heavy] > 0])


def _filled_up(cost: Floats, homes: Ints, level: Floats, light: Bools) -> None:
    """Give light keys homes: those that fit stay where they were, the others go heaviest first."""
    keys = np.flatnonzero(light)
    keys = keys[np.argsort(cost[keys], kind="stable")]
    goal = max(float(level.max()), float(level.sum() + cost[keys].sum()) / len(level))
    by_home = keys[np.argsort(homes[keys], kind="stable")]
    bounds = np.searchsorted(homes[by_home], np.arange(len(level) + 1))
    pool = list[int]()
    for instance in range(len(level)):
        keys_here = by_home[bounds[instance] : bounds[instance + 1]]
        sums = level[instance] + np.cumsum(cost[keys_here])
        stay = int(np.searchsorted(sums, goal, side="right"))
        pool += keys_here[stay:].tolist()
        level[instance] = sums[stay - 1] if stay else level[instance]
    heap = [(float(load), instance) for instance, load in enumerate(level)]
    heapq.heapify(heap)
    for key in sorted(pool, key=lambda row: -cost[row]):
        load, instance = heap[0]
        homes[key] = instance
        heapq.heapreplace(heap, (load + float(cost[key]), instance))


def _in_all_ways(cost: Floats, rest: Floats, light: float) -> Ints:
    """(H,) homes of the least maximum for keys of (H,) `cost`, heaviest first.

    `light`: the load of all other keys, which may go anywhere. The maximum cannot be below the mean
    of all loads, so the search stops there.
    """
    level = rest.tolist()
    mean = (sum(level) + float(cost.sum()) + light) / len(level)
    costs, now = cost.tolist(), [0] * len(cost)
    best, least, steps = list(now), np.inf, 0

    def place(at: int, peak: float) -> None:
        nonlocal best, least, steps
        if at == len(costs):
            best, least = list(now), peak
            return
        tried = set[float]()
        for instance in sorted(range(len(level)), key=level.__getitem__):
            before = level[instance]
            then = max(peak, before + costs[at])
            if then >= least or (steps > TRIED_STEPS and np.isfinite(least)):
                return
            if before in tried:  # an instance with the same load gives the same way
                continue
            tried.add(before)
            steps += 1
            level[instance], now[at] = before + costs[at], instance
            place(at + 1, then)
            level[instance] = before

    place(0, max(mean, *level))
    return np.array(best, np.int64)
