"""QMMP: reach balance fast, by cutting keys wherever the target load falls.

How: every instance above UL = (1 + imbalance) * mean gives its excess to a pool, key after key, the
last one cut; the pool then fills the instances below the mean up to the mean, cutting again.
Law: if loads can be divided (`fixed` = 0), no instance ends above UL, at any tolerance, unless its
immovable rest is.
Cost: O(K) after sorting.
Source: Fang et al., JOS 2017, algorithm 3. The outcome depends on the order of the keys, which the
paper leaves open: here it is the order of key hashes. Ours: `fixed` loads (copies of the smaller
side); if they use up the room below the mean, the pool fills instances up to UL, then the least
loaded instance; if that is above UL then, the least maximum (`levelling`).
"""

from __future__ import annotations

import numpy as np

from joinengine.balancing.levelling import level_out
from joinengine.balancing.loads import Loads
from joinengine.balancing.shares import NewShares
from joinengine.balancing.workspace import Piece, Workspace


def plan_qmmp(loads: Loads, imbalance: float) -> NewShares:
    """The keys to place anew: key number -> instance -> share. Empty if all loads are within UL."""
    work = Workspace(loads)
    mean = work.mean()
    limit = (1 + imbalance) * mean
    pool = list[Piece]()
    for instance in np.flatnonzero(work.level > limit).tolist():
        keys, _ = work.on(instance)
        order = np.argsort(loads.hashes[keys], kind="stable")
        pool += work.unload(instance, limit, keys[order].tolist())
    pool.sort(key=lambda piece: piece.key)
    for target in (mean, limit):
        pool = _fill(work, pool, target)
    for piece in pool:
        work.put(piece.key, int(np.argmin(work.level)), piece.share)
    level_out(work, limit)
    if work.level.max() <= limit or not loads.fixed.any():
        return work.changed
    anew = Workspace(loads)  # cuts that cost copies may be in the way
    level_out(anew, limit)
    return min(work, anew, key=lambda planned: float(planned.level.max())).changed


def _fill(work: Workspace, pool: list[Piece], target: float) -> list[Piece]:
    """Fill instances up to `target`, in order, cutting the last piece of each; the pieces left."""
    waiting = pool[::-1]
    for instance in range(work.loads.n_instances):
        while waiting and work.level[instance] < target:
            piece = waiting.pop()
            room = target - work.level[instance]
            cost = work.cost_to_put(piece.key, instance, piece.share)
            if cost <= room:
                work.put(piece.key, instance, piece.share)
                continue
            spread = piece.share * work.loads.spread[piece.key]
            share = piece.share * (1 - (cost - room) / spread) if spread else 0.0
            if share <= 0:  # the fixed load alone is more than the room
                waiting.append(piece)
                break
            work.put(piece.key, instance, share)
            waiting.append(piece._replace(share=piece.share - share, cut=True))
            break
    return waiting[::-1]
