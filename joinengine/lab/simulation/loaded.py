"""Simulated tasks of one stream of keys, whose instances get tuples as the layout says.

In every batch the stream brings the tuples of one interval, and the other side of the join as many.
A key's tuples are stored at its homes under the layout that the driver has routed the batch by;
the tasks report the counts that real ones would (joinengine.balancing.counting), so the driver's
planner decides on the loads that its own plans have made.

Cost: some microseconds for each key and batch, which are not the driver's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from typing_extensions import override

from joinengine.balancing.counting import Asked
from joinengine.balancing.loads import gather_loads as gathered
from joinengine.balancing.statistics import (
    LIGHT_PART,
    MOST_LIGHT,
    Floats,
    Interval,
    Ints,
    KeyCounts,
)
from joinengine.kernels.hashing import Words
from joinengine.lab.simulation.planning import Other, Sizes, counts_of, probe_copies
from joinengine.lab.simulation.simulated_tasks import SimulatedJobs, Worked
from joinengine.layouts.key_based import KeyBased
from joinengine.model.keys import PAIR


@dataclass(frozen=True)
class _Spread:
    """The tuples of an interval by instance: F fragments, sorted by instance, at bounds (N + 1,).

    `hashes` (F,) their keys; `stored` and `held` (2, F) tuples of the interval, and of the state.
    """

    hashes: Words
    stored: Ints
    held: Ints
    bounds: Ints
    probes: Ints

    @classmethod
    def of(cls, interval: Interval, layout: KeyBased) -> _Spread:
        """The interval under a layout."""
        table, base = layout.table, layout.base
        loads = gathered([interval], table, base)
        copied = np.zeros(len(loads.hashes), bool)
        split = np.zeros(len(loads.hashes), np.int64)
        rows, places = table.columns.rows_in(loads.hashes)
        copied[places], split[places] = table.columns.copied[rows], table.columns.split_sides[rows]
        keys, shares = loads.keys, loads.shares
        # Of a key whose other side is copied, every home stores all of that side.
        whole = copied[keys] & (split[keys] == [[1], [0]])
        parts = np.where(whole, 1.0, shares)
        known = np.searchsorted(interval.hashes, loads.hashes)
        order = np.lexsort((loads.hashes[keys], loads.instances))
        amounts = (interval.arrived[:, known], interval.held[:, known])
        stored, held = (_whole((amount[:, keys] * parts)[:, order]) for amount in amounts)
        bounds = np.searchsorted(loads.instances[order], np.arange(base.instances + 1))
        probes = probe_copies(table, interval, base.instances).round().astype(np.int64)
        return cls(loads.hashes[keys][order], stored, held, bounds, probes)

    @property
    def received(self) -> Floats:
        """(N,) deliveries: tuples that are stored, and those that only probe."""
        sums = np.append(0, np.cumsum(self.stored.sum(axis=0)))
        return np.asarray(np.diff(sums[self.bounds]) + self.probes, float)


def _whole(amounts: Floats) -> Ints:
    """(2, F) amounts in whole tuples; the sums of both sides stay."""
    ends = np.floor(np.cumsum(amounts, axis=1) + 0.5).astype(np.int64)
    return np.diff(ends, axis=1, prepend=0)


@dataclass
class LoadedJobs(SimulatedJobs):
    """Tasks that get the tuples of `stream`: keys and their tuples, interval by interval.

    The state holds the last `window` intervals. `begin` comes before each batch.
    """

    stream: Iterator[tuple[Words, Floats]] = field(default_factory=lambda: iter(()))
    window: int = 1
    other: Other = Other.EVEN

    def __post_init__(self) -> None:
        self._sizes = Sizes(self.instances, 1, self.window, other=self.other)
        self._recent = deque[tuple[Words, Floats]](maxlen=self.window)

    def begin(self, layout: KeyBased) -> None:
        """Take the next interval, and route it by `layout`."""
        self._recent.append(next(self.stream))
        self.interval = counts_of(self._recent, self._sizes)
        self._spread = _Spread.of(self.interval, layout)

    @property
    def received(self) -> Floats:
        """(N,) deliveries to each instance in the batch."""
        return self._spread.received

    @property
    def stored(self) -> int:
        """The most tuples that an instance stores in the batch."""
        sums = np.append(0, np.cumsum(self._spread.stored.sum(axis=0)))
        return int(np.diff(sums[self._spread.bounds]).max())

    @override
    def routed_rows(self) -> tuple[int, int]:
        left, right = self.interval.arrived.sum(axis=1).tolist()
        return round(left), round(right)

    @override
    def worked(self, instance: int, asked: Asked | None) -> Worked:
        spread = self._spread
        mine = slice(spread.bounds[instance], spread.bounds[instance + 1])
        hashes, stored, held = spread.hashes[mine], spread.stored[:, mine], spread.held[:, mine]
        left, right = stored.sum(axis=1).tolist()
        probes = int(spread.probes[instance])
        counts = None if asked is None else _counts(instance, asked, hashes, stored, held)
        return Worked((left + probes, right), (left, right), (left, right), counts)


def _counts(instance: int, asked: Asked, hashes: Words, stored: Ints, held: Ints) -> KeyCounts:
    """As `counting.count_keys`: (K,) keys of the instance -> the counts that it reports."""
    chosen = np.isin(hashes, asked.listed.hashes)
    for side in PAIR:
        heavy = np.flatnonzero(stored[side] * asked.part > stored[side].sum())
        if not asked.whole:
            if asked.is_sparing:
                total = stored[side].sum()
                least = np.inf if total < asked.few else max(total / LIGHT_PART, 1)
                heavy = heavy[stored[side][heavy] > least]
            heavy = heavy[np.argsort(-stored[side][heavy], kind="stable")[:MOST_LIGHT]]
        chosen[heavy] = True
    is_told = chosen | np.isin(hashes, asked.recent.hashes)
    parts = list[KeyCounts]()
    for side in PAIR:
        arrived = np.where(chosen, stored[side], 0)
        rows = np.flatnonzero(is_told & ((arrived > 0) | (held[side] > 0)))
        where = np.full(len(rows), instance), np.full(len(rows), int(side))
        parts.append(KeyCounts(*where, hashes[rows], arrived[rows], held[side][rows]))
    return KeyCounts.concat(parts)
