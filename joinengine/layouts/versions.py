"""Several layouts at once: the newest stores tuples, and each tuple probes under all of them.

Why: state need not follow a new layout. It may stay where it is and expire, if every tuple is also
routed by the older layouts, to probe the state that was stored under them (lazy moves). Each layout
that still has state is a *version*. At an instance, a tuple probes only the runs of the versions
that sent it there; if it probed the runs of all versions, it would find copied tuples twice.

Law: under each version alone, an earlier and a later tuple meet once; a tuple is stored under one.
Cost: one route per tuple and version; a tuple reaches an instance once, however many versions send
it there.
Source: keeping the history of homes is the idea of NM-Join (J. Supercomputing 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints
from joinengine.layouts.biclique import BicliqueRouter
from joinengine.layouts.choices import ChoiceRouter
from joinengine.layouts.matrix import GridRouter
from joinengine.layouts.shuffle import ShuffleRouter
from joinengine.model.keys import Side
from joinengine.routing.routes import PROBE, Deliveries, Instances, only, probe_flag, storing
from joinengine.routing.table import TableRouter

#: More versions cost more than moving the state: each adds a route and its probe copies. 64 bits do
#: not hold more, either: two flags to store, 20 x 3 for the cells that a tuple probes under each
#: version, and one to be watched take 63.
MOST_VERSIONS = 20

#: The routers of all layouts.
AnyRouter = TableRouter | GridRouter | BicliqueRouter | ChoiceRouter | ShuffleRouter


class Moving(StrEnum):
    """When state follows a new layout: at the next batch, or never, until it expires."""

    EAGER = "eager"
    LAZY = "lazy"


@dataclass(frozen=True, slots=True)
class VersionedRouter:
    """Routes for all live versions; `routers` begins with the newest."""

    routers: tuple[AnyRouter, ...]

    @property
    def instances(self) -> int:
        """How many instances any of the versions uses."""
        return max(router.instances for router in self.routers)

    def route(self, side: Side, words: Words) -> Deliveries:
        """Deliveries of tuples that probe their own word; those of a row may stand apart."""
        newest, *older = (router.route(side, words) for router in self.routers)
        if not older:
            return newest
        probing = [
            _probing(deliveries, probe_flag(slot)) for slot, deliveries in enumerate(older, start=1)
        ]
        return united([newest, *probing], len(words), self.instances)

    def route_apart(
        self, side: Side, stored: Words, probed: Sequence[tuple[Words, Ints | None]]
    ) -> Deliveries:
        """Deliveries of tuples that are stored under one word and probe others.

        `probed`: (k,) words, and which (k,) rows have them; None: all. The flag of word i and
        version v is `probe_flag(v * len(probed) + i)`.
        """
        newest = self.routers[0].route(side, stored)
        parts = [storing(newest)]
        for version, router in enumerate(self.routers):
            for i, (words, some) in enumerate(probed):
                flag = probe_flag(version * len(probed) + i)
                part = _probing(router.route(side, words), flag)
                parts.append(part if some is None else part._replace(rows=some[part.rows]))
        return united(parts, len(stored), self.instances)


def _probing(deliveries: Deliveries, flag: int) -> Deliveries:
    """The deliveries that probe, with `flag` in place of theirs."""
    probes = only(deliveries, (deliveries.flags & PROBE) > 0)
    return probes._replace(flags=np.full(len(probes.rows), flag, np.min_scalar_type(flag)))


def united(parts: Sequence[Deliveries], n: int, n_instances: int) -> Deliveries:
    """Deliveries of the same n rows -> one per row and instance, with the flags of all."""
    dtype = np.result_type(*(part.flags for part in parts))
    # Most rows go to one and the same instance in all parts.
    alike, same = np.ones(n, bool), np.zeros(n, dtype)
    target: Instances | None = None
    for part in parts:
        single, firsts = _firsts(part, n)
        if not len(part.rows):
            alike[:] = False
            continue
        target = part.instances[firsts] if target is None else target
        alike &= single & (part.instances[firsts] == target)
        same |= part.flags[firsts]
    if target is not None and alike.all():
        return Deliveries(np.arange(n), target, same)
    rest = [only(part, ~alike[part.rows]) for part in parts]
    rows, instances, flags = (np.concatenate(column) for column in zip(*rest, strict=True))
    places = rows * n_instances + instances
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    if len(starts):
        flags = np.bitwise_or.reduceat(flags[order], starts)
    kept = order[starts]
    target = np.zeros(n, np.uint16) if target is None else target
    return Deliveries(
        np.concatenate([np.flatnonzero(alike), rows[kept]]),
        np.concatenate([target[alike], instances[kept]]),
        np.concatenate([same[alike], flags]),
    )


def _firsts(deliveries: Deliveries, n: int) -> tuple[NDArray[np.bool_] | bool, Ints | slice]:
    """For each of n rows whether it has a single delivery, and where its first one is."""
    rows = deliveries.rows
    if len(rows) == n and n and rows[0] == 0 and (np.diff(rows) == 1).all():
        return True, slice(None)
    counts = np.bincount(rows, minlength=n)
    return counts == 1, np.minimum(np.cumsum(counts) - counts, max(len(rows) - 1, 0))
