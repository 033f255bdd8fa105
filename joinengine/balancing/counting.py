"""The counts of single keys at one instance in one batch: tuples that arrived, and tuples held.

Why: a planner that moves a key moves all its state, so it must know all of it, on both sides. A
side that brought no tuple in the batch still holds tuples.

Most batches are in balance, and no plan follows. So a report may be *light*: the heaviest of these
keys, and those in the routing table. What each instance stored is exact all the same.

Law: `held` of every reported key is exact on both sides after the batch; a key that is asked for is
reported at every instance that holds it or stored it in the batch.
Cost: for each reported key one binary search per side and run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from joinengine.balancing.statistics import HEAVY_PART, Ints, KeyCounts
from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Exclusions, Needles, find, rows_of_keys


class Asked(NamedTuple):
    """The keys that an instance counts however light they are, as key hashes without repetition.

    `listed`: the keys in the routing table; arrived and held tuples are counted. `recent`: keys
    whose load of earlier intervals the planner still sees; only held tuples are counted, since the
    arrivals of light keys belong to the rest of the instance. `whole`: all heavy keys are counted
    beside these; otherwise MOST_LIGHT of each side.
    """

    listed: Words
    recent: Words
    whole: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes of the keys."""
        return self.listed.nbytes + self.recent.nbytes


NO_KEYS = Asked(np.empty(0, np.uint64), np.empty(0, np.uint64), whole=False)

#: As many heavy keys of each side an instance tells in a light report.
MOST_LIGHT = 32

#: The sorted words of a run, and its excluded rows.
Stretch = tuple[Words, Exclusions | None]


def count_keys(
    instance: int, arrived: Sequence[Needles], state: Sequence[Iterable[Stretch]], asked: Asked
) -> KeyCounts:
    """The counts of keys to report for one instance.

    Per side `arrived` are the keys that were stored in the batch, and `state` the runs held after
    it. A key is reported, on both sides, if it has more than 1/HEAVY_PART of the tuples that
    a side stored, or if it is `asked` for; in a light report of the former only the heaviest.
    """
    heavy = [_heavy(some, whole=asked.whole) for some in arrived]
    chosen = np.unique(np.concatenate([asked.listed, *heavy]))
    hashes = np.unique(np.concatenate([chosen, asked.recent]))
    reported = np.isin(hashes, chosen)
    parts = list[KeyCounts]()
    for side, (some, runs) in enumerate(zip(arrived, state, strict=True)):
        counts = np.where(reported, rows_of_keys(some, hashes), 0)
        held = _held(runs, hashes)
        rows = np.flatnonzero((counts > 0) | (held > 0))
        where = np.full(len(rows), instance), np.full(len(rows), side)
        parts.append(KeyCounts(*where, hashes[rows], counts[rows], held[rows]))
    return KeyCounts.concat(parts)


def _heavy(some: Needles, *, whole: bool) -> Words:
    """The keys of a side that are heavy; unless `whole` the MOST_LIGHT heaviest of them."""
    counts = np.diff(some.starts)
    heavy = np.flatnonzero(counts * HEAVY_PART > some.starts[-1])
    if not whole:
        heavy = heavy[np.argsort(-counts[heavy], kind="stable")[:MOST_LIGHT]]
    return some.hashes[heavy]


def _held(runs: Iterable[Stretch], hashes: Words) -> Ints:
    """(K,) how many live rows each key has; `hashes` ascending."""
    held = np.zeros(len(hashes), np.int64)
    needles = Needles(hashes, np.arange(len(hashes) + 1))
    for words, gone in runs:
        hits = find(words, needles, gone)
        held[hits.needles] += hits.counts
    return held
