"""Readj: swap or move heavy keys between two instances, the best pair first.

How: keys below sigma * mean go back to their base homes; among the others, the one exchange of a
key for a lighter key or for nothing is made that lowers the greater of two instances' loads most,
until all loads are within UL = (1 + imbalance) * mean (or the heaviest key, if that is more), or
no exchange helps. Without a sigma, the largest of 0.1, 0.01, .. 1e-5 that reaches this is taken; if
none does, the one that ends lowest.
Law: each exchange lowers the load of the more loaded of two instances; no key moves more than 5
times, so it ends.
Cost: O(candidates * log candidates) for each pair of instances looked at; after an exchange only
pairs with one of its two instances are looked at again.
Source: Gedik, VLDBJ 2014, as Fang et al. (2016 and JOS 2017) describe and run it. Ours: the best
partner of a key is found by search in the sorted loads instead of by trying all pairs; the
exchange chosen is the same.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from joinengine.balancing.llfd import ROUNDING, as_changes, whole_homes
from joinengine.balancing.loads import Loads
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Floats, Ints

SIGMAS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
MAX_MOVES = 5


def plan_readj(loads: Loads, imbalance: float, sigma: float | None = None) -> NewShares:
    """The keys to place anew."""
    best, lowest = None, np.inf
    for least in SIGMAS if sigma is None else (sigma,):
        homes, level = _readjust(loads, imbalance, least)
        if level.max() < lowest:
            best, lowest = homes, level.max()
        if level.max() <= _goal(loads, imbalance):
            break
    assert best is not None
    return as_changes(loads, best)


def _readjust(loads: Loads, imbalance: float, sigma: float) -> tuple[Ints, Floats]:
    """(K,) homes and (N,) loads after the exchanges among keys of at least `sigma` means."""
    cost = loads.spread + loads.fixed
    homes, _ = whole_homes(loads)
    n = loads.n_instances
    mean = (loads.rest.sum() + cost.sum()) / n
    homes = np.where(cost >= sigma * mean, homes, loads.homes)
    level = loads.rest + np.bincount(homes, cost, minlength=n)
    free = np.flatnonzero((cost >= sigma * mean) & (cost > 0))
    free = free[np.lexsort((loads.hashes[free], loads.held[free], cost[free]))]
    moves = np.zeros(len(cost), np.int64)
    goal = _goal(loads, imbalance)
    at = [free[homes[free] == instance] for instance in range(n)]
    pairs = _Pairs(cost, loads.held, at, level)
    while level.max() > goal:
        gain, key, partner, target = pairs.best()
        if gain[0] <= 1e-9 * mean:
            break
        source = int(homes[key])
        for moved, to in ((key, target), (partner, source)):
            if moved >= 0:
                level[homes[moved]] -= cost[moved]
                level[to] += cost[moved]
                homes[moved] = to
                moves[moved] += 1
        both = free[(homes[free] == source) | (homes[free] == target)]
        both = both[moves[both] < MAX_MOVES]
        for instance in (source, target):
            at[instance] = both[homes[both] == instance]
        pairs.renew([source, target])
    return homes, level


Exchange = tuple[tuple[float, float], int, int, int]


def _goal(loads: Loads, imbalance: float) -> float:
    """UL, or the heaviest key if that is more: no plan of whole keys goes below it."""
    cost = loads.spread + loads.fixed
    mean = (loads.rest.sum() + cost.sum()) / loads.n_instances
    return max((1 + imbalance) * float(mean), float(cost.max(initial=0.0))) * (1 + ROUNDING)


class _Pairs:
    """The best exchange of each ordered pair of instances, as far as it is known.

    `gain` (N, N): of the best exchange from one instance to another. Where it is not `known`, it is
    what no exchange exceeds: half of the gap. If the heaviest key of the source is lighter than
    that, the best exchange is to move this key.
    """

    def __init__(self, cost: Floats, held: Floats, at: list[Ints], level: Floats) -> None:
        self.cost, self.held, self.at, self.level = cost, held, at, level
        n = len(level)
        self.gain, self.moved = np.zeros((n, n)), np.zeros((n, n))
        self.known = np.zeros((n, n), bool)
        self.key, self.partner = np.full((n, n), -1), np.full((n, n), -1)
        #: the heaviest key of each instance, of equal ones that with the least state; -1: none
        self.top = np.full(n, -1)
        self.renew(range(n))

    def renew(self, changed: Iterable[int]) -> None:
        """Forget what is known of pairs with an instance that has `changed`."""
        for instance in changed:
            keys = self.at[instance]
            first = np.searchsorted(self.cost[keys], self.cost[keys[-1:]])
            self.top[instance] = keys[first][0] if len(keys) else -1
        weight = np.where(self.top < 0, 0.0, self.cost[self.top])
        state = self.held[self.top]
        for instance in changed:
            for pairs in (np.s_[instance, :], np.s_[:, instance]):
                source = pairs[0]
                half = np.maximum(self.level[source] - self.level[pairs[1]], 0.0) / 2
                self.gain[pairs] = np.minimum(half, weight[source])
                self.known[pairs] = weight[source] <= half
                self.key[pairs], self.partner[pairs] = self.top[source], -1
                self.moved[pairs] = state[source]
        self.most = self.gain.max(axis=1)

    def best(self) -> Exchange:
        """The best exchange of all pairs; of equal ones that with least state, then most gap."""
        while True:
            most = float(self.most.max())
            if most <= 0:
                return (0.0, -np.inf), -1, -1, -1
            sources = np.flatnonzero(self.most == most)
            if not any([self._looked_at(source, most) for source in sources.tolist()]):
                break
        rows, targets = np.nonzero(self.gain[sources] == most)
        sources = sources[rows]
        gaps = self.level[sources] - self.level[targets]
        first = np.lexsort((-gaps, self.moved[sources, targets]))[0]
        pair = int(sources[first]), int(targets[first])
        gain = most, -float(self.moved[pair])
        return gain, int(self.key[pair]), int(self.partner[pair]), pair[1]

    def _looked_at(self, source: int, most: float) -> bool:
        """Look at all pairs of one source that may gain as much; whether there were any."""
        unknown = np.flatnonzero((self.gain[source] == most) & ~self.known[source])
        for target in unknown.tolist():
            pair = source, target
            gain, key, partner, _ = _best_exchange(
                self.cost, self.held, self.at, self.level, source, target
            )
            self.gain[pair], self.moved[pair], self.known[pair] = gain[0], -gain[1], True
            self.key[pair], self.partner[pair] = key, partner
        self.most[source] = self.gain[source].max()
        return bool(len(unknown))


def _best_exchange(
    cost: Floats, held: Floats, at: list[Ints], level: Floats, source: int, target: int
) -> Exchange:
    """((gain, minus state moved), key, partner or -1, target) of the best from source to target."""
    nothing = (0.0, -np.inf), -1, -1, target
    gap = level[source] - level[target]
    if gap <= 0 or not len(at[source]):
        return nothing
    ours = at[source]
    # Partners are in order of load, and of state if loads are equal; "no partner" is a load of
    # 0 before them.
    partners = np.concatenate([[-1], at[target]])
    weights = np.concatenate([[0.0], cost[at[target]]])
    states = np.concatenate([[0.0], held[at[target]]])
    # The best exchange shifts half the gap, or the next possible load above or below that.
    above = np.searchsorted(weights, cost[ours] - gap / 2)
    exchanges = []
    for choice in (above - 1, above):
        row = np.clip(choice, 0, len(weights) - 1)
        row = np.searchsorted(weights, weights[row])  # the first of equal loads has least state
        shift = cost[ours] - weights[row]
        gain = np.minimum(shift, gap - shift)
        moved = held[ours] + states[row]
        best = np.lexsort((moved, -gain))[0]
        exchanges.append(
            (
                (float(gain[best]), -float(moved[best])),
                int(ours[best]),
                int(partners[row[best]]),
                target,
            )
        )
    return max(exchanges, key=lambda exchange: exchange[0])
