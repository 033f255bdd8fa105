"""Readj by definition: after each exchange, it tries all pairs of instances again.

Of exchanges with equal gain, it takes the one with the least state; then the one between the
instances whose loads are furthest apart; then one without a partner, or which shifts more than half
of the gap.
"""

from __future__ import annotations

import numpy as np

from joinengine.balancing.llfd import ROUNDING, as_changes, whole_homes
from joinengine.balancing.readj import MAX_MOVES, SIGMAS


def plan(loads, imbalance, sigma=None):
    """The keys to place anew, with the first sigma that reaches the goal, else with the best."""
    cost = loads.spread + loads.fixed
    mean = (loads.rest.sum() + cost.sum()) / loads.n_instances
    goal = max((1 + imbalance) * mean, cost.max(initial=0.0)) * (1 + ROUNDING)
    best, lowest = None, np.inf
    for least in SIGMAS if sigma is None else (sigma,):
        homes, peak = _readjusted(loads, goal, cost >= least * mean, mean)
        if peak < lowest:
            best, lowest = homes, peak
        if peak <= goal:
            break
    return as_changes(loads, best)


def _readjusted(loads, goal, heavy, mean):
    cost, held, n = loads.spread + loads.fixed, loads.held, loads.n_instances
    homes = np.where(heavy, whole_homes(loads)[0], loads.homes)
    level = loads.rest + np.bincount(homes, cost, minlength=n)
    free = np.flatnonzero(heavy & (cost > 0))
    free = free[np.lexsort((loads.hashes[free], held[free], cost[free]))].tolist()
    moves = dict.fromkeys(free, 0)
    while level.max() > goal:
        at = [[k for k in free if homes[k] == i and moves[k] < MAX_MOVES] for i in range(n)]
        pairs = [(i, j) for i in range(n) for j in range(n) if level[i] > level[j]]
        exchanges = [
            exchange
            for i, j in pairs
            if (exchange := _best(cost, held, (at[i], at[j]), (i, j), level[i] - level[j]))
        ]
        if not exchanges:
            break
        gain, _, _, key, partner, (source, target) = max(exchanges, key=lambda some: some[:3])
        if gain <= 1e-9 * mean:
            break
        for moved, to in ((key, target), (partner, source)):
            if moved is not None:
                level[homes[moved]] -= cost[moved]
                level[to] += cost[moved]
                homes[moved] = to
                moves[moved] += 1
    return homes, level.max()


def _best(cost, held, keys, pair, gap):
    """(gain, minus state, gap, key, partner, pair) of the best exchange of two instances."""
    ours, theirs = keys
    exchanges = []
    for key in ours:
        for partner in (None, *theirs):
            weight, state = (0.0, 0.0) if partner is None else (cost[partner], held[partner])
            shift = cost[key] - weight
            first = partner is None or weight < cost[key] - gap / 2
            moved = held[key] + state
            exchanges.append((min(shift, gap - shift), -moved, first, key, partner))
    if not exchanges:
        return None
    gain, minus_state, _, key, partner = max(exchanges, key=lambda some: some[:3])
    return gain, minus_state, gap, key, partner, pair
