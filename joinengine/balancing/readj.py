"""Readj: swap or move heavy keys between two instances, the best pair first.

How: keys below sigma * mean go back to their base homes; among the others, the one exchange of a
key for a lighter key or for nothing is made that lowers the greater of two instances' loads most,
until all loads are within UL = (1 + imbalance) * mean (or the heaviest key, if that is more), or
no exchange helps. Without a sigma, the largest of 0.1, 0.01, .. 1e-5 that reaches this is taken; if
none does, the one that ends lowest.
Law: each exchange lowers the load of the more loaded of two instances; no key moves more than 5
times, so it ends.
Cost: one exchange is O(candidates * log candidates) for each pair of instances looked at.
Source: Gedik, VLDBJ 2014, as Fang et al. (2016 and JOS 2017) describe and run it. Ours: the best
partner of a key is found by search in the sorted loads instead of by trying all pairs; the
exchange chosen is the same.
"""

from __future__ import annotations

from itertools import pairwise

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
    while level.max() > goal:
        free = free[moves[free] < MAX_MOVES]
        by_home = free[np.argsort(homes[free], kind="stable")]
        bounds = np.searchsorted(homes[by_home], np.arange(n + 1))
        at = [by_home[first:last] for first, last in pairwise(bounds)]
        gain, key, partner, target = _best_of_all(cost, loads.held, at, level)
        if gain[0] <= 1e-9 * mean:
            break
        for moved, to in ((key, target), (partner, int(homes[key]))):
            if moved >= 0:
                level[homes[moved]] -= cost[moved]
                level[to] += cost[moved]
                homes[moved] = to
                moves[moved] += 1
    return homes, level


Exchange = tuple[tuple[float, float], int, int, int]


def _goal(loads: Loads, imbalance: float) -> float:
    """UL, or the heaviest key if that is more: no plan of whole keys goes below it."""
    cost = loads.spread + loads.fixed
    mean = (loads.rest.sum() + cost.sum()) / loads.n_instances
    return max((1 + imbalance) * float(mean), float(cost.max(initial=0.0))) * (1 + ROUNDING)


def _best_of_all(cost: Floats, held: Floats, at: list[Ints], level: Floats) -> Exchange:
    """The best exchange between any two instances.

    No exchange gains more than half of the gap between two instances, so pairs are tried by falling
    gap until half of it is less than the best gain so far.
    """
    best: Exchange = (0.0, -np.inf), -1, -1, -1
    gaps = level[:, None] - level[None, :]
    for pair in np.argsort(-gaps, axis=None, kind="stable").tolist():
        source, target = divmod(pair, len(level))
        if gaps[source, target] / 2 < best[0][0] or gaps[source, target] <= 0:
            break
        exchange = _best_exchange(cost, held, at, level, source, target)
        best = max(best, exchange, key=lambda candidate: candidate[0])
    return best


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
