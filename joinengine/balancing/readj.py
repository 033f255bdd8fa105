"""Readj: swap or move heavy keys between two instances, the best pair first.

How: keys below sigma * mean go back to their base homes; among the others, the one exchange of a
key for a lighter key or for nothing is made that lowers the greater of two instances' loads most,
until all loads are within UL = (1 + imbalance) * mean (or the heaviest key, if that is more), or
no exchange helps. Without a sigma, the largest of 0.1, 0.01, .. 1e-5 that reaches this is taken; if
none does, the one that ends lowest.
Law: each exchange lowers the load of the more loaded of two instances; no key moves more than 5
times, so it ends.
Cost: an exchange looks at the pairs of instances that may gain most, and for each at the sorted
loads of both; and N * N numbers are compared some times. If the keys that go back under some sigma
already exceed the goal, that sigma is tried only if no other reaches the goal.
Source: Gedik, VLDBJ 2014, as Fang et al. (2016 and JOS 2017) describe and run it. Ours: the best
partner of a key is found by search in the sorted loads instead of by trying all pairs; the
exchange chosen is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from joinengine.balancing.llfd import ROUNDING, as_changes, whole_homes
from joinengine.balancing.loads import Loads
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Bools, Floats, Ints
from joinengine.kernels.probing import distinct, expand_ranges

SIGMAS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
MAX_MOVES = 5
#: An exchange must gain this part of the mean.
LEAST_GAIN = 1e-9


def plan_readj(loads: Loads, imbalance: float, sigma: float | None = None) -> NewShares:
    """The keys to place anew."""
    cost, goal = loads.spread + loads.fixed, _goal(loads, imbalance)
    trials = dict[int, Bools]()  # by the number of heavy keys: equal numbers mean the same keys
    for least in SIGMAS if sigma is None else (sigma,):
        heavy = cost >= least * _mean(loads)
        trials.setdefault(int(heavy.sum()), heavy)
    floors = {n: _floor(loads, heavy) for n, heavy in trials.items()}
    made = dict[int, tuple[Ints, float]]()
    for n in trials:
        if floors[n] <= goal * (1 + ROUNDING):
            made[n] = _readjusted(loads, goal, trials[n])
            if made[n][1] <= goal:
                return as_changes(loads, made[n][0])
    for n in trials:
        lowest = min((peak for _, peak in made.values()), default=np.inf)
        if n not in made and floors[n] <= lowest * (1 + ROUNDING):
            made[n] = _readjusted(loads, goal, trials[n])
    best = min((n for n in trials if n in made), key=lambda n: made[n][1])
    return as_changes(loads, made[best][0])


def _mean(loads: Loads) -> float:
    cost = loads.spread + loads.fixed
    return float((loads.rest.sum() + cost.sum()) / loads.n_instances)


def _goal(loads: Loads, imbalance: float) -> float:
    """UL, or the heaviest key if that is more: no plan of whole keys goes below it."""
    heaviest = float((loads.spread + loads.fixed).max(initial=0.0))
    return max((1 + imbalance) * _mean(loads), heaviest) * (1 + ROUNDING)


def _floor(loads: Loads, heavy: Bools) -> float:
    """A lower bound of the greatest load, if all but (K,) `heavy` keys are at their base homes."""
    cost = np.where(heavy, 0.0, loads.spread + loads.fixed)
    level = loads.rest + np.bincount(loads.homes, cost, minlength=loads.n_instances)
    heaviest = float((loads.spread + loads.fixed)[heavy].max(initial=0.0))
    return max(float(level.max()), float(level.min()) + heaviest)


def _readjusted(loads: Loads, goal: float, heavy: Bools) -> tuple[Ints, float]:
    """(K,) homes, and the greatest load, after the exchanges among (K,) `heavy` keys."""
    cost = loads.spread + loads.fixed
    homes = np.where(heavy, whole_homes(loads)[0], loads.homes)
    level = loads.rest + np.bincount(homes, cost, minlength=loads.n_instances)
    free = np.flatnonzero(heavy & (cost > 0))
    free = free[np.lexsort((loads.hashes[free], loads.held[free], cost[free]))]
    pairs = _Pairs(cost[free], loads.held[free], homes[free], level)
    least = LEAST_GAIN * _mean(loads)
    while level.max() > goal:
        exchange = pairs.best()
        if exchange is None or exchange.gain <= least:
            break
        pairs.make(exchange)
    homes[free] = pairs.homes
    return homes, float(level.max())


class Exchange(NamedTuple):
    """A key of one instance for a lighter one of another, or for nothing (-1)."""

    gain: float
    key: int
    partner: int
    source: int
    target: int


def _greatest(values: Floats, n: int) -> Ints:
    """The places of the `n` greatest values, or of all if they are fewer."""
    if len(values) <= n:
        return np.arange(len(values))
    return np.argpartition(-values, n)[:n]


class _Pairs:
    """The best exchange of each ordered pair of instances, as far as it is known.

    Keys are numbered by load, those of equal load by state; `cost`, `held` and `homes` are (F,).
    `gain` (N, N): the gain of the best exchange from one instance to another, 0 where it is not
    known; there, `bound` (N, N) is its upper bound: half of the gap. If the heaviest key of the
    source is lighter than that, the best exchange is to move this key.
    """

    def __init__(self, cost: Floats, held: Floats, homes: Ints, level: Floats) -> None:
        self.cost, self.held, self.homes, self.level = cost, held, homes, level
        n = len(level)
        self.gain, self.bound, self.moved = np.zeros((3, n, n))
        self.key, self.partner = np.full((2, n, n), -1)
        #: the greatest gain and bound of each row
        self._most_gain, self._most_bound = np.zeros((2, n))
        self._moves = np.zeros(len(cost), np.int64)
        #: (F,) the first key with the same load
        self._first = np.searchsorted(cost, cost)
        #: instance * F + key of all keys that may move, ascending; and where instances begin
        self._codes = np.sort(homes * len(cost) + np.arange(len(cost)))
        self._edges = np.arange(n + 1) * len(cost)
        self._bounds = np.searchsorted(self._codes, self._edges)
        self._renew(range(n))

    def best(self) -> Exchange | None:
        """The best exchange of all pairs; of equal ones that with least state, then most gap."""
        looked_at = 1
        while True:
            most = float(self._most_gain.max())
            rows = np.flatnonzero((self._most_bound >= most) & (self._most_bound > 0))
            if not len(rows):
                break
            # The greatest bounds first: most other pairs then need no look.
            rows = rows[_greatest(self._most_bound[rows], looked_at)]
            bounds = self.bound[rows]
            places, targets = np.nonzero((bounds >= most) & (bounds > 0))
            some = _greatest(bounds[places, targets], looked_at)
            self._look_at(rows[places[some]], targets[some])
            looked_at *= 4
        if most <= 0:
            return None
        rows = np.flatnonzero(self._most_gain == most)
        places, targets = np.nonzero(self.gain[rows] == most)
        sources = rows[places]
        gaps = self.level[sources] - self.level[targets]
        first = np.lexsort((-gaps, self.moved[sources, targets]))[0]
        pair = int(sources[first]), int(targets[first])
        return Exchange(most, int(self.key[pair]), int(self.partner[pair]), *pair)

    def make(self, exchange: Exchange) -> None:
        """Make an exchange."""
        _, key, partner, source, target = exchange
        n_keys = len(self.cost)
        for moved, to in ((key, target), (partner, source)):
            if moved < 0:
                continue
            home = int(self.homes[moved])
            self.level[home] -= self.cost[moved]
            self.level[to] += self.cost[moved]
            self.homes[moved] = to
            self._moves[moved] += 1
            place = np.searchsorted(self._codes, home * n_keys + moved)
            self._codes = np.delete(self._codes, place)
            if self._moves[moved] < MAX_MOVES:
                code = to * n_keys + moved
                self._codes = np.insert(self._codes, np.searchsorted(self._codes, code), code)
        self._bounds = np.searchsorted(self._codes, self._edges)
        self._renew([source, target])

    def _renew(self, changed: Iterable[int]) -> None:
        """Forget the gains of pairs with an instance that has `changed`."""
        any_key = np.diff(self._bounds) > 0
        top = np.full(len(self.level), -1)
        top[any_key] = self._first_alike(np.flatnonzero(any_key), self._bounds[1:][any_key] - 1)
        weight = np.where(any_key, np.append(self.cost, 0.0)[top], 0.0)
        state = np.append(self.held, 0.0)[top]
        for instance in changed:
            for pairs in (np.s_[instance, :], np.s_[:, instance]):
                source = pairs[0]
                half = np.maximum(self.level[source] - self.level[pairs[1]], 0.0) / 2
                known = weight[source] <= half
                self.gain[pairs] = np.where(known, weight[source], 0.0)
                self.bound[pairs] = np.where(known, 0.0, half)
                self.key[pairs], self.partner[pairs] = top[source], -1
                self.moved[pairs] = state[source]
        self._note_most(slice(None))

    def _note_most(self, rows: Any) -> None:
        self._most_gain[rows] = self.gain[rows].max(axis=1)
        self._most_bound[rows] = self.bound[rows].max(axis=1)

    def _first_alike(self, instances: Ints, places: Ints) -> Ints:
        """(Q,) for each instance, its first key with the same load as the key at a place."""
        n_keys = len(self.cost)
        alike = self._first[self._codes[places] % n_keys]
        firsts: Ints = self._codes[np.searchsorted(self._codes, instances * n_keys + alike)]
        return firsts % n_keys

    def _look_at(self, sources: Ints, targets: Ints) -> None:
        """Find the best exchange of each of (P,) pairs; sources have more load, and keys."""
        lengths = self._bounds[sources + 1] - self._bounds[sources]
        pair = np.repeat(np.arange(len(sources)), lengths)
        ours = self._codes[expand_ranges(self._bounds[sources], lengths)] % len(self.cost)
        gap = (self.level[sources] - self.level[targets])[pair]
        partners = self._partners(targets[pair], self.cost[ours] - gap / 2)
        # Without a partner -1, which is behind the last key.
        shift = self.cost[ours] - np.append(self.cost, 0.0)[partners]
        gain = np.minimum(shift, gap - shift)
        moved = self.held[ours] + np.append(self.held, 0.0)[partners]
        firsts = np.cumsum(lengths) - lengths
        best = np.maximum.reduceat(gain.max(axis=0), firsts)
        moved[gain < best[pair]] = np.inf
        least = np.minimum.reduceat(moved.min(axis=0), firsts)
        choices, rows = np.nonzero(moved == least[pair])
        _, chosen = np.unique(pair[rows], return_index=True)
        choices, rows = choices[chosen], rows[chosen]
        self.gain[sources, targets], self.bound[sources, targets] = best, 0.0
        self.moved[sources, targets] = least
        self.key[sources, targets] = ours[rows]
        self.partner[sources, targets] = partners[choices, rows]
        self._note_most(distinct(sources))

    def _partners(self, targets: Ints, wanted: Floats) -> Ints:
        """(2, Q) the keys of (Q,) targets whose loads are next below and next above `wanted`.

        Without a partner, the load is 0; of keys with the same load, the one with least state.
        """
        n_keys, begin = len(self.cost), self._bounds[targets]
        lighter = np.searchsorted(self.cost, wanted)
        above = np.searchsorted(self._codes, targets * n_keys + lighter) - begin + (wanted > 0)
        ranks = np.clip([above - 1, above], 0, self._bounds[targets + 1] - begin)
        partners = np.full(ranks.shape, -1)
        some = ranks > 0
        both = np.broadcast_to(targets, ranks.shape)[some]
        partners[some] = self._first_alike(both, (begin + ranks - 1)[some])
        return partners
