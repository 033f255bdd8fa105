"""Keys for planners of whole keys: one by one, or gathered into records of keys that are alike.

Why: a planner that looks at a million keys one by one is slow. For light keys it is enough to know
how many there are of each kind. A *record* counts the keys with the same present home, base home,
load and state, where load and state are rounded to few values: (next home, home, base home, load,
state, number) are the six dimensions of the paper, of which the next home is the planner's answer.
The plan then chooses single keys again, those of greatest priority first.

How values are rounded: the *representatives* are the multiples of R = 2^degree, and below R the
powers of two, so light keys keep their size relatively and heavy keys absolutely. Each value
becomes one of the two representatives next to it: the one that brings the sum of all differences so
far nearer to zero. There is one such sum per instance. With one sum for all, as in the paper, the
differences cancel in total but not on an instance (3.5 % off for R = 256 where ours is 0.01 %).

Law: an instance's rounded loads sum to its loads up to about R. Degree 0 rounds to whole numbers.
Cost: some sorts of the keys to gather the records, and about a microsecond for each value at each
instance; the cost of planning then follows the number of records.
Source: Fang et al., 2016 (arXiv 1610.05121), section 4: compact representation and HLHE. There
tasks report records; here tasks report key by key and the planner gathers the records, which saves
time only if one gathering serves many trials (`mixed`, `mixed-bf`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joinengine.balancing.loads import Loads
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Floats, Ints
from joinengine.kernels.probing import distinct, expand_ranges


@dataclass(frozen=True)
class Items:
    """The input of planners of whole keys: I kinds of keys, `counts` (I,) of each.

    `cost` and `state` (I,): load and state of one such key; `now` and `base` (I,): its present home
    and its base home.
    `members` (K,) are the keys, kind by kind; those of kind i begin at starts[i].
    """

    cost: Floats
    state: Floats
    now: Ints
    base: Ints
    counts: Ints
    members: Ints
    starts: Ints


@dataclass(frozen=True)
class Spots:
    """Where items are: `counts` (P,) keys of kind items[p] are at instances[p]."""

    items: Ints
    instances: Ints
    counts: Ints


def single_keys(loads: Loads, homes: Ints) -> Items:
    """Every key on its own; `homes` (K,): the home of each."""
    n = len(loads.hashes)
    every = np.arange(n)
    cost = loads.spread + loads.fixed
    return Items(cost, loads.held, homes, loads.homes, np.ones(n, np.int64), every, every)


def records(loads: Loads, homes: Ints, priority: Floats, degree: int) -> Items:
    """Keys that are alike once rounded by R = 2^`degree`; greatest priority first."""
    n = loads.n_instances
    codes, values = homes * n + loads.homes, list[Floats]()
    for exact in (loads.spread + loads.fixed, loads.held):
        rounded = discretise(exact, homes, degree)
        kinds = distinct(rounded)
        codes = codes * len(kinds) + np.searchsorted(kinds, rounded)
        values.append(rounded.astype(float))
    members = np.lexsort((-priority, codes))
    starts = np.flatnonzero(np.diff(codes[members], prepend=-1))
    first = members[starts]
    counts = np.diff(starts, append=len(members))
    cost, state = (rounded[first] for rounded in values)
    return Items(cost, state, homes[first], loads.homes[first], counts, members, starts)


def discretise(values: Floats, groups: Ints, degree: int) -> Ints:
    """(K,) values and their groups -> (K,) representatives, with nearly the same sum per group.

    >>> discretise(np.array([8, 7, 6, 5, 3, 3, 2, 1, 1, 1.0]), np.zeros(10, int), 2).tolist()
    [8, 4, 8, 8, 2, 2, 2, 1, 1, 1]
    """
    whole = np.rint(values).astype(np.int64)
    kinds = distinct(whole)
    kind = np.searchsorted(kinds, whole)
    lower, upper = neighbours(kinds, degree)
    order = np.lexsort((kind, groups))
    cells = (groups * len(kinds) + kind)[order]
    firsts = np.flatnonzero(np.diff(cells, prepend=-1))
    counts = np.diff(firsts, append=len(cells))
    uppers = _uppers(groups[order[firsts]], kinds, (lower, upper), kind[order[firsts]], counts)
    rank = np.arange(len(cells)) - np.repeat(firsts, counts)
    raised = order[rank < np.repeat(uppers, counts)]
    rounded: Ints = lower[kind]
    rounded[raised] = upper[kind[raised]]
    return rounded


def _uppers(
    groups: Ints, kinds: Ints, around: tuple[Ints, Ints], kind: Ints, counts: Ints
) -> list[int]:
    """(C,) how many values of each cell are rounded up; a cell is equal values in one group.

    Cells are by group, and by ascending `kind`; `around`: the representatives next to (V,) `kinds`.
    """
    below, width = (kinds - around[0])[kind].tolist(), (around[1] - around[0])[kind].tolist()
    uppers, deviation, before = [0] * len(below), 0, -1
    cells = zip(groups.tolist(), below, width, counts.tolist(), strict=True)
    for cell, (group, over, gap, count) in reversed(list(enumerate(cells))):
        # The closed form of rounding `count` equal values one at a time: down while the
        # running deviation is at most 0, up while it is above. It ends in (over - gap, over].
        deviation = over * count + (deviation if group == before else 0)
        if gap:
            uppers[cell] = min(max(-((over - deviation) // gap), 0), count)
        deviation -= gap * uppers[cell]
        before = group
    return uppers


def neighbours(values: Ints, degree: int) -> tuple[Ints, Ints]:
    """(V,) ascending whole numbers -> the two representatives next to each, equal if it is one.

    >>> [side.tolist() for side in neighbours(np.array([0, 1, 3, 6, 8, 11]), 2)]
    [[0, 1, 2, 4, 8, 8], [0, 1, 4, 8, 8, 8]]
    """
    step = 1 << degree
    exponents = np.frexp(np.maximum(values, 1).astype(float))[1] - 1
    lower = np.where(values >= step, values // step * step, np.minimum(values, 1 << exponents))
    upper = np.where(values >= step, lower + step, np.minimum(2 * lower, step))
    greatest = lower[-1] if len(lower) else 0
    return lower, np.where((lower == values) | (upper > greatest), lower, upper)


def placed_anew(items: Items, spots: Spots, whole: np.ndarray) -> NewShares:
    """The keys whose home changes, or that are not `whole` (K,) at their home."""
    moved = spots.instances != items.now[spots.items]
    order = np.flatnonzero(moved)[np.argsort(spots.items[moved], kind="stable")]
    kinds, counts = spots.items[order], spots.counts[order]
    before = np.cumsum(counts) - counts
    firsts = np.searchsorted(kinds, kinds)  # where a kind's spots begin
    offsets = before - before[firsts] if len(order) else before
    keys = items.members[expand_ranges(items.starts[kinds] + offsets, counts)]
    homes = np.repeat(spots.instances[order], counts)
    changes = {
        int(k): {int(home): 1.0} for k, home in zip(keys.tolist(), homes.tolist(), strict=True)
    }
    if not whole.all():
        kind = np.empty(len(items.members), np.int64)
        kind[items.members] = np.repeat(np.arange(len(items.counts)), items.counts)
        for key in np.flatnonzero(~whole).tolist():
            changes.setdefault(key, {int(items.now[kind[key]]): 1.0})
    return changes
