"""DLB and LPTF: whole keys, judged by the spread of the loads instead of by the greatest.

How: the score is 100 * standard deviation / mean of the loads. *DLB* moves one key at a time from
the most loaded instance to the least loaded one, if that lowers the score, else tries the next
most loaded; DLB-H takes the heaviest key that lowers it, DLB-L the lightest. *LPTF* forgets where
keys are: heaviest first, each to the least loaded instance.
Law: each move of DLB lowers the score, so it ends. Cost: DLB a search among an instance's keys per
move; LPTF O(K log N).
Source: Zacheilas et al., 2017, algorithm 1 and section 5. Ours: "the heaviest key" is the heaviest
that lowers the score, since an instance's heaviest key is often one that nobody could take; the
trial loads are set back after a refused try, which algorithm 1 forgets.
"""

from __future__ import annotations

import heapq

import numpy as np

from joinengine.balancing.llfd import ROUNDING, Assignment, as_changes, whole_homes
from joinengine.balancing.statistics import Floats, Loads

Changes = dict[int, dict[int, float]]


def score(level: Floats) -> float:
    """100 * standard deviation / mean; 0 where there is no load.

    >>> score(np.array([1.0, 3.0]))
    50.0
    """
    mean = float(level.mean())
    return 100 * float(level.std()) / mean if mean else 0.0


def plan_dlb_heavy(loads: Loads, threshold: float) -> Changes:
    """Move the heaviest keys that help until the score is `threshold` (per cent) or less."""
    return _plan(loads, threshold, lightest=False)


def plan_dlb_light(loads: Loads, threshold: float) -> Changes:
    """Move the lightest keys until the score is `threshold` (per cent) or less."""
    return _plan(loads, threshold, lightest=True)


def plan_lptf(loads: Loads, threshold: float) -> Changes:
    """Longest processing time first, from nothing, where the score is above `threshold`."""
    cost = loads.spread + loads.fixed
    if score(loads.per_instance()) <= threshold:
        return {}
    homes = np.empty(len(cost), np.int64)
    heap = [(float(rest), instance) for instance, rest in enumerate(loads.rest)]
    heapq.heapify(heap)
    for key in np.lexsort((loads.hashes, -cost)).tolist():
        level, instance = heap[0]
        homes[key] = instance
        heapq.heapreplace(heap, (level + float(cost[key]), instance))
    return as_changes(loads, homes)


def _plan(loads: Loads, threshold: float, *, lightest: bool) -> Changes:
    homes, _ = whole_homes(loads)
    cost = loads.spread + loads.fixed
    work = Assignment(loads, homes, -cost if lightest else cost, imbalance=0.0)
    while score(work.level) > threshold and _move_one(work, lightest=lightest):
        pass
    return as_changes(loads, work.homes)


def _move_one(work: Assignment, *, lightest: bool) -> bool:
    """Move one key that lowers the score, from the most loaded instance that has one."""
    target = int(np.argmin(work.level))
    for source in np.argsort(-work.level, kind="stable").tolist():
        if source == target:
            return False
        # The sum of squares falls where a key weighs less than the gap.
        gap = (work.level[source] - work.level[target]) * (1 - ROUNDING)
        keys = work.on(source)
        keys = keys[work.cost[keys] > 0]
        keys = keys[:1] if lightest else keys
        helps = keys[work.cost[keys] < gap]
        if len(helps):
            work.take(helps[:1])
            work.put(int(helps[0]), target)
            return True
    return False
