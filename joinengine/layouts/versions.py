"""Several layouts at once: tuples are stored by the newest, and find the state of all.

Why: state need not follow a new layout. It may stay where it is and expire, if every tuple goes by
the older layouts' rules too, to look for what was stored under them (lazy moves). Each layout that
still has state is a *version*; a tuple probes, at an instance, only the runs of the versions that
sent it there. Probing all homes of all versions alike would find copied tuples twice.

Law: under each version alone, earlier and later tuple meet once; a tuple is stored under one.
Cost: per tuple and version one route; a tuple reaches an instance once, however many sent it.
Source: keeping the history of homes is the idea of NM-Join (J. Supercomputing 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints
from joinengine.layouts.base import Router
from joinengine.model.keys import Side
from joinengine.routing.routes import PROBE, Deliveries, Instances, flag_type, only, probe_flag

#: More versions than this cost more than moving the state: each is a route and its probe copies.
MOST_VERSIONS = 31


@dataclass(frozen=True, slots=True)
class VersionedRouter:
    """Routes for all live versions; `routers` begins with the newest."""

    routers: tuple[Router, ...]

    @property
    def instances(self) -> int:
        """How many instances any of the versions uses."""
        return max(router.instances for router in self.routers)

    @property
    def listed(self) -> Words:
        """What the newest wants counted."""
        return self.routers[0].listed

    def route(self, side: Side, words: Words) -> Deliveries:
        """Each delivery carries a probe flag per version; those of one row may stand apart."""
        newest, *older = (router.route(side, words) for router in self.routers)
        probing = (only(one, (one.flags & PROBE) > 0) for one in older)
        return _merged([newest, *probing], len(words), self.instances)

    def homes(self, side: Side, words: Words, holders: Instances) -> Deliveries:
        """Where the newest stores."""
        return self.routers[0].homes(side, words, holders)


def _merged(routed: Sequence[Deliveries], n: int, n_instances: int) -> Deliveries:
    """One delivery per row and instance, with the flags of all versions."""
    dtype = flag_type(len(routed))
    older = (np.full(len(one.rows), probe_flag(slot)) for slot, one in enumerate(routed) if slot)
    flags = [some.astype(dtype) for some in (routed[0].flags, *older)]
    # Most rows go to one and the same instance under all versions.
    alike, same = np.ones(n, bool), np.zeros(n, dtype)
    target: Instances | None = None
    for one, flag in zip(routed, flags, strict=True):
        single, firsts = _firsts(one, n)
        target = one.instances[firsts] if target is None else target
        alike &= single & (one.instances[firsts] == target)
        same |= flag[firsts]
    assert target is not None
    if alike.all():
        return Deliveries(np.arange(n), target, same)
    rest = [
        only(one._replace(flags=flag), ~alike[one.rows])
        for one, flag in zip(routed, flags, strict=True)
    ]
    rows, instances, others = (np.concatenate(column) for column in zip(*rest, strict=True))
    places = rows * n_instances + instances
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    if len(starts):
        others = np.bitwise_or.reduceat(others[order], starts)
    kept = order[starts]
    return Deliveries(
        np.concatenate([np.flatnonzero(alike), rows[kept]]),
        np.concatenate([target[alike], instances[kept]]),
        np.concatenate([same[alike], others]),
    )


def _firsts(deliveries: Deliveries, n: int) -> tuple[NDArray[np.bool_] | bool, Ints | slice]:
    """For each of n rows whether it has a single delivery, and where its first one is."""
    if len(deliveries.rows) == n:
        return True, slice(None)
    counts = np.bincount(deliveries.rows, minlength=n)
    return counts == 1, np.cumsum(counts) - counts
