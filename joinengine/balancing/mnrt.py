"""MNRT: reach balance while splitting few keys, moving little state and keeping the table small.

How (UL = (1 + imbalance) * mean of the load of the last intervals):
1. *Unload.* Instances above UL give fragments to a pool. 2. *Load.* Instances below the mean take
   from it. Both choose greedily by what a move would do: merge a split key before moving a whole
   one, go back to the base home before going elsewhere, cut last. A piece goes to one instance as a
   whole; if that was too much, the instance is unloaded again.
3. *Gather.* Split keys that fit on one instance are put together there.
4. If some instance is still above UL, it ends at the least maximum (`levelling`).

Law: if loads can be divided, no instance ends above UL, unless its immovable rest is. An instance
is then unloaded again at most once, since it ends between the mean and UL. Cost: sorting the keys
of overloaded instances, and a heap over the pool. Source: Fang et al., JOS 2017, algorithm 4 and
table 2. Ours: the low set of the unload phase is that of algorithm 3; of the keys that are not
merged or sent home, we take the one that costs fewest tuples, moved now or copied later, where the
paper weighs the state alone (10,000 keys, z = 0.85, f = 1, 15 instances: a table of 27 entries
instead of 70, 4 % less state moved, 11 % fewer copies sent); unloading again by L(d) > UL where the
print tests the key's load, which would leave an instance near twice the mean; larger pieces first
and the least loaded instance first where the paper says only "the first"; merge+out beside
merge+shift; phase 3, since a cooled key on an instance that is not overloaded would else stay
split. The paper says that a key with more load than an instance is gathered alone. Giving such keys
instances of their own was tried and left out: it drives every light key of those instances into the
table (1,000 keys, 16 instances, z = 1.2: 259 entries against 27) for as many split keys and 10
copies against 11.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from joinengine.balancing.levelling import level_out
from joinengine.balancing.loads import Loads
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Bools, Floats, Ints
from joinengine.balancing.workspace import DUST, Piece, Workspace


class Effect(IntEnum):
    """The effects of moving a fragment, best first."""

    MERGE_BACK = 0
    MERGE_ELSEWHERE = 1
    WHOLE_BACK = 2
    WHOLE_SHIFT = 3
    WHOLE_OUT = 4
    CUT_BACK = 5
    CUT_SHIFT = 6
    CUT_OUT = 7


def plan_mnrt(loads: Loads, imbalance: float) -> NewShares:
    """The keys to place anew: key number -> instance -> share. Empty if all loads are within UL."""
    work = Workspace(loads)
    mean = work.mean()
    limit = (1 + imbalance) * mean
    if not (work.level > limit).any():
        return {}
    pool = list[Piece]()
    low = _low(work, mean)
    for instance in np.flatnonzero(work.level > limit).tolist():
        pool += _unload(work, instance, mean, limit, low)
    _load(work, pool, mean, limit)
    _gather(work, limit)
    level_out(work, limit)
    return work.changed


def _low(work: Workspace, mean: float) -> Bools:
    """(N,) True below the mean; at the mean, a tolerance of 0 would take back what was cut off."""
    return np.asarray(work.level < mean * (1 - DUST))


def _unload(work: Workspace, instance: int, mean: float, limit: float, low: Bools) -> list[Piece]:
    """Bring `instance` down to `limit`: first keys that merge or go home, then the cheapest."""
    keys, shares = work.on(instance)
    loads = work.loads
    effects = _effects_of_leaving(work, keys, instance, low)
    per_load = loads.held[keys] / np.maximum(loads.spread[keys], DUST)
    order = np.lexsort((loads.hashes[keys], -loads.spread[keys] * shares, per_load, effects))
    keys, shares, effects = keys[order], shares[order], effects[order]
    taken = work.unload(instance, limit, keys[effects < Effect.WHOLE_OUT].tolist())
    out = (effects >= Effect.WHOLE_OUT) & (loads.spread[keys] > 0)
    return taken + _unload_cheapest(work, instance, mean, limit, keys[out], shares[out])


def _unload_cheapest(
    work: Workspace, instance: int, mean: float, limit: float, keys: Ints, shares: Floats
) -> list[Piece]:
    """Take from the cheapest of the keys that can bring the instance to the limit.

    After a whole key has left, the instance must be at the mean or above, or it would be filled
    again. While no key can bring it to the limit, the heaviest of the lighter keys leaves.
    """
    offers = _Offers.of(work.loads, keys, shares)
    taken, lowest = list[Piece](), float(work.level.min())
    # Keys are visited by falling load. A key that is heavier than the excess stays so, since the
    # excess only falls; so the next to leave is always the last one visited.
    order = np.argsort(-offers.load, kind="stable")
    load, divided = offers.load[order], offers.divided[order]
    ascending = -load
    most_after = np.append(np.maximum.accumulate(divided[::-1])[::-1], -1.0)
    at, passed, most_passed = 0, list[int](), -1.0
    while (excess := float(work.level[instance]) - limit) > DUST * mean:
        room = min(float(work.level[instance]) - mean, limit - lowest)
        lighter = max(at, int(np.searchsorted(ascending, -excess, side="right")))
        least = lighter - 1 if lighter > at else passed[-1] if passed else None
        if max(most_passed, most_after[at]) >= excess or (
            least is not None and load[least] <= room
        ):
            left = np.sort(order[[*passed, *range(at, len(order))]])
            taken += offers.finish(work, instance, limit, left, excess, room)
            break
        passed += range(at, lighter)
        most_passed = max([most_passed, *divided[at:lighter].tolist()])
        if lighter == len(order):
            break
        key = int(keys[order[lighter]])
        taken.append(work.take(key, instance, work.shares(key)[instance]))
        at = lighter + 1
    return taken


class _Offers(NamedTuple):
    """Keys that may leave an instance, (k,) each: their load there, and its divisible part.

    `moved`: the state that leaves with the whole key. A cut costs the part of `divisible` that
    leaves with the piece, and `extra`, the cost of one more home: the key's tuples probe it too,
    or, if the other side is copied, it stores copies now and from then on.
    """

    keys: Ints
    load: Floats
    divided: Floats
    moved: Floats
    divisible: Floats
    extra: Floats

    @classmethod
    def of(cls, loads: Loads, keys: Ints, shares: Floats) -> _Offers:
        """The costs of keys of which the instance has the parts `shares`."""
        spread, fixed, copies = loads.spread[keys], loads.fixed[keys], loads.held_fixed[keys]
        divisible = (loads.held[keys] - copies) * shares
        extra = np.where(loads.copied[keys], copies + fixed, spread)
        load = spread * shares + fixed
        return cls(keys, load, spread * shares, divisible + copies, divisible, extra)

    def finish(
        self, work: Workspace, instance: int, limit: float, rows: Ints, excess: float, room: float
    ) -> list[Piece]:
        """Of the `rows` that bring the instance to the limit, take the cheapest."""
        load, divided = self.load[rows], self.divided[rows]
        whole = np.where((load >= excess) & (load <= room), self.moved[rows], np.inf)
        part = excess / np.maximum(divided, DUST)
        costs = self.divisible[rows] * part + self.extra[rows]
        cut = np.where(divided >= excess, costs, np.inf)
        best_whole, best_cut = int(np.argmin(whole)), int(np.argmin(cut))
        if cut[best_cut] < whole[best_whole] * (1 - DUST):
            return work.unload(instance, limit, [int(self.keys[rows[best_cut]])])
        key = int(self.keys[rows[best_whole]])
        return [work.take(key, instance, work.shares(key)[instance])]


def _effects_of_leaving(work: Workspace, keys: Ints, instance: int, low: Bools) -> Ints:
    """(k,) the best effect that each key at `instance` could have by moving to a low instance."""
    homes = work.loads.homes[keys]
    away = homes != instance
    effects = np.full(len(keys), int(Effect.WHOLE_OUT))
    if low.any():
        effects[away] = Effect.WHOLE_SHIFT
    effects[away & low[homes]] = Effect.WHOLE_BACK
    for row in np.flatnonzero(work.n_homes[keys] > 1).tolist():
        others = [i for i in work.shares(int(keys[row])) if i != instance and low[i]]
        if homes[row] in others:
            effects[row] = Effect.MERGE_BACK
        elif others:
            effects[row] = Effect.MERGE_ELSEWHERE
    return effects


def _load(work: Workspace, pool: list[Piece], mean: float, limit: float) -> None:
    """Put each piece where its effect is best; only instances below the mean take any."""
    unloaded = 0
    heap = [(*_best_target(work, piece, mean), piece) for piece in pool]
    heapq.heapify(heap)
    while heap:
        *_, instance, piece = heapq.heappop(heap)
        if instance >= 0 and not _low(work, mean)[instance]:
            # The low set only shrinks, so the next best effect can only be worse.
            heapq.heappush(heap, (*_best_target(work, piece, mean), piece))
            continue
        if instance < 0:  # copies have used up all room below the mean
            work.put(piece.key, int(np.argmin(work.level)), piece.share)
            continue
        work.put(piece.key, instance, piece.share)
        # Without fixed loads N rounds are enough; with fixed loads this bound ends the loop.
        if work.level[instance] > limit and unloaded < work.loads.n_instances:
            unloaded += 1
            for cut in _unload(work, instance, mean, limit, _low(work, mean)):
                heapq.heappush(heap, (*_best_target(work, cut, mean), cut))


def _best_target(work: Workspace, piece: Piece, mean: float) -> tuple[int, float, int]:
    """(effect, minus the load, instance) of the best move for `piece`; instance -1: none is low."""
    low = _low(work, mean)
    minus_load = -piece.share * float(work.loads.spread[piece.key])
    if not low.any():
        return len(Effect), minus_load, -1
    home = int(work.loads.homes[piece.key])
    holders = [i for i in work.shares(piece.key) if low[i]]
    if home in holders:
        return Effect.MERGE_BACK, minus_load, home
    if holders:
        return Effect.MERGE_ELSEWHERE, minus_load, min(holders, key=lambda i: work.level[i])
    back, shift, out = (
        (Effect.CUT_BACK, Effect.CUT_SHIFT, Effect.CUT_OUT)
        if piece.cut
        else (Effect.WHOLE_BACK, Effect.WHOLE_SHIFT, Effect.WHOLE_OUT)
    )
    if low[home]:
        return back, minus_load, home
    return (out if piece.origin == home else shift), minus_load, _emptiest(work, piece, low)


def _emptiest(work: Workspace, piece: Piece, low: Bools) -> int:
    """The emptiest instance; for a cut piece one of a task that has no home of the key, if any."""
    hosts = work.loads.hosts
    if piece.cut and hosts:
        fresh = low.copy()
        for task in {instance % hosts for instance in work.shares(piece.key)}:
            fresh[task::hosts] = False
        low = fresh if fresh.any() else low
    return int(np.argmin(np.where(low, work.level, np.inf)))


def _gather(work: Workspace, limit: float) -> None:
    """Gather split keys, lightest first, if one instance has room for all of a key."""
    split = np.flatnonzero(work.n_homes > 1)
    spread = work.loads.spread
    for key in split[np.argsort(spread[split], kind="stable")].tolist():
        shares = work.shares(key)
        fits = [i for i in shares if _level_if_gathered(work, key, i) <= limit]
        if fits:
            home = int(work.loads.homes[key])
            target = home if home in fits else max(fits, key=lambda i: shares[i])
            for instance in [i for i in shares if i != target]:
                work.put(key, target, work.take(key, instance, shares[instance]).share)
        elif spread[key] > limit:
            break  # the following ones are heavier still


def _level_if_gathered(work: Workspace, key: int, instance: int) -> float:
    missing = 1.0 - work.shares(key)[instance]
    return float(work.level[instance] + missing * work.loads.spread[key])
