"""DLB and LPTF: whole keys, judged by the spread of the loads instead of by the greatest.

How: the score is 100 * standard deviation / mean of the loads. *DLB* moves one key at a time from
the most loaded instance to the least loaded one, if that lowers the score, else tries the next
most loaded; DLB-H takes the heaviest key that lowers it, DLB-L the lightest. *LPTF* forgets where
keys are: heaviest first, each to the least loaded instance; keys without load stay where they are.
Law: each move of DLB lowers the score, so DLB ends. Cost: DLB sorts the keys once and then takes
some microseconds a move; LPTF O(K log N).
Source: Zacheilas et al., DAIS 2016, algorithm 1 and sections 3.2 and 5: "the heaviest key" is the
heaviest that lowers the score, as section 3.2 has it. Ours: the trial loads are set back after a
refused try, which algorithm 1 forgets.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator

import numpy as np

from joinengine.balancing.llfd import ROUNDING, as_changes, whole_homes
from joinengine.balancing.loads import Loads
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Floats, Ints, noise


def score(level: Floats) -> float:
    """100 * standard deviation / mean; 0 if there is no load.

    >>> score(np.array([1.0, 3.0]))
    50.0
    """
    mean = float(level.mean())
    return 100 * float(level.std()) / mean if mean else 0.0


def chance(level: Floats) -> float:
    """By how much counting noise may raise the square of the score.

    The variance of a count is its mean, so the sum of squared deviations over the mean is a
    chi-square of as many degrees as there are loads, about.

    >>> chance(np.full(2, 100.0))
    400.0
    """
    mean = float(level.mean())
    return 1e4 / mean * (1 + noise(2 * len(level)) / len(level)) if mean else 0.0


def plan_dlb_heavy(loads: Loads, threshold: float) -> NewShares:
    """Move the heaviest keys that help until the score is `threshold` (per cent) or less."""
    return _plan(loads, threshold, lightest=False)


def plan_dlb_light(loads: Loads, threshold: float) -> NewShares:
    """Move the lightest keys until the score is `threshold` (per cent) or less."""
    return _plan(loads, threshold, lightest=True)


def plan_lptf(loads: Loads, threshold: float) -> NewShares:
    """If the score is above `threshold`, place all keys anew, longest processing time first."""
    cost = loads.spread + loads.fixed
    if score(loads.per_instance()) <= threshold:
        return {}
    homes, _ = whole_homes(loads)
    heap = [(float(rest), instance) for instance, rest in enumerate(loads.rest)]
    heapq.heapify(heap)
    order = np.lexsort((loads.hashes, -cost))
    for key in order[cost[order] > 0].tolist():  # a key without load would move for nothing
        level, instance = heap[0]
        homes[key] = instance
        heapq.heapreplace(heap, (level + float(cost[key]), instance))
    return as_changes(loads, homes)


def _plan(loads: Loads, threshold: float, *, lightest: bool) -> NewShares:
    homes, _ = whole_homes(loads)
    cost = loads.spread + loads.fixed
    level = loads.rest + np.bincount(homes, cost, minlength=loads.n_instances)
    mean = float(level.mean())
    shelves = _Shelves(loads, cost, homes)
    # The score is within the threshold if the squared deviations add up to no more than this. A
    # move changes that sum in O(1), the score only by all instances.
    allowed = (threshold / 100 * mean) ** 2 * len(level)
    squares = float(((level - mean) ** 2).sum())
    while squares > allowed:
        move = _next_move(shelves, level, lightest=lightest)
        if move is None:
            break
        key, weight, source, target = move
        squares -= 2 * weight * (level[source] - level[target] - weight)
        level[source] -= weight
        level[target] += weight
        homes[key] = target
        shelves.put(target, weight, key)
    return as_changes(loads, homes)


class _Shelves:
    """Per instance its keys by ascending load; sorted when they are first needed."""

    def __init__(self, loads: Loads, cost: Floats, homes: Ints) -> None:
        order = np.lexsort((loads.hashes, cost))
        order = order[cost[order] > 0]
        by_home = order[np.argsort(homes[order], kind="stable")]
        self._bounds = np.searchsorted(homes[by_home], np.arange(loads.n_instances + 1))
        self._keys = by_home
        self._cost = cost
        self._open: dict[int, list[tuple[float, int]]] = {}

    def at(self, instance: int) -> list[tuple[float, int]]:
        """(load, key) of an instance's keys, lightest first; removed keys are not in it."""
        if instance not in self._open:
            keys = self._keys[self._bounds[instance] : self._bounds[instance + 1]]
            pairs = zip(self._cost[keys].tolist(), keys.tolist(), strict=True)
            self._open[instance] = list(pairs)
        return self._open[instance]

    def put(self, instance: int, weight: float, key: int) -> None:
        """Add a key to an instance."""
        insort(self.at(instance), (weight, key))


def _next_move(
    shelves: _Shelves, level: Floats, *, lightest: bool
) -> tuple[int, float, int, int] | None:
    """(key, load, from, to) of a move that lowers the score; the most loaded instances first."""
    target = int(np.argmin(level))
    for source in _by_load(level):
        if source == target:
            return None
        # The sum of squares falls if the key weighs less than the gap, by more than what rounding
        # the loads may make of it.
        gap = float(level[source] * (1 - ROUNDING) - level[target])
        keys = shelves.at(source)
        number = 0 if lightest else bisect_left(keys, (gap, -1)) - 1
        if 0 <= number < len(keys) and keys[number][0] < gap:
            weight, key = keys.pop(number)
            return key, weight, source, target
    return None


def _by_load(level: Floats) -> Iterator[int]:
    """Instances, most loaded first; the first without sorting, since the first is mostly enough."""
    yield int(np.argmax(level))
    yield from np.argsort(-level, kind="stable").tolist()[1:]
