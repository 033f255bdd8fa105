"""Placements from shares: turns the shares that a planner gives keys into ranges of u.

Law: ranges of u stay where they are as far as the new shares allow, so that little state moves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joinengine.balancing.loads import Loads
from joinengine.model.keys import U_ONE, Fragment, Mode, Placement, Side
from joinengine.routing.table import RoutingTable

#: Key number -> instance -> share, for the keys that a plan places anew.
NewShares = dict[int, dict[int, float]]


def build_table(table: RoutingTable, loads: Loads, changed: NewShares) -> RoutingTable:
    """`table` with the keys of `changed` (key number -> instance -> share) placed anew.

    Ranges of u stay where they are as far as the new shares allow, so that little state moves.
    """
    placements = dict(table.placements)
    for key, shares in changed.items():
        hash_ = int(loads.hashes[key])
        old = table.placements.get(hash_) or Placement.whole(int(loads.homes[key]))
        fragments = reshare(old.fragments, shares) if len(shares) > 1 else ()
        if len(fragments) < 2:  # all other shares are less than u can cut off
            home = fragments[0].instance if fragments else next(iter(shares))
            if home == loads.homes[key]:
                placements.pop(hash_, None)
            else:
                placements[hash_] = Placement.whole(home)
            continue
        mode = Mode.COPIED if loads.copied[key] else Mode.SPLIT
        placements[hash_] = Placement(mode, fragments, Side(int(loads.split_sides[key])))
    return RoutingTable(placements)


def reshare(old: Sequence[Fragment], shares: dict[int, float]) -> tuple[Fragment, ...]:
    """Ranges of u in the proportions of `shares`, overlapping `old` as far as they can.

    >>> half = (Fragment(0, 0, U_ONE),)
    >>> [f.u_lower / U_ONE for f in reshare(half, {0: 0.75, 1: 0.25})]
    [0.0, 0.75]
    """
    edges = np.round(np.cumsum([0.0, *shares.values()]) / sum(shares.values()) * U_ONE)
    quota = {i: int(n) for i, n in zip(shares, np.diff(edges), strict=True) if n > 0}
    cut, free = list[Fragment](), list[tuple[int, int]]()
    for fragment in old:
        kept = min(quota.get(fragment.instance, 0), fragment.u_upper - fragment.u_lower)
        middle = fragment.u_lower + kept
        if kept:
            quota[fragment.instance] -= kept
            cut.append(Fragment(fragment.instance, fragment.u_lower, middle))
        if middle < fragment.u_upper:
            free.append((middle, fragment.u_upper))
    wanting = [(instance, units) for instance, units in quota.items() if units]
    for lower, upper in free:
        start = lower
        while start < upper:
            instance, units = wanting.pop()
            stop = min(upper, start + units)
            cut.append(Fragment(instance, start, stop))
            if stop - start < units:
                wanting.append((instance, units - (stop - start)))
            start = stop
    return _joined(sorted(cut, key=lambda f: f.u_lower))


def _joined(fragments: list[Fragment]) -> tuple[Fragment, ...]:
    joined = list[Fragment]()
    for fragment in fragments:
        if joined and joined[-1].instance == fragment.instance:
            joined[-1] = Fragment(fragment.instance, joined[-1].u_lower, fragment.u_upper)
        else:
            joined.append(fragment)
    return tuple(joined)
