"""What one instance counts of single keys in one batch: what arrived, and what is held.

Why: a planner that moves a key moves all of its state, so it must know all of it: on both sides,
whether or not they brought anything now. A side that is silent holds what it held.

Law: of every key that is reported `held` is exact on both sides after the batch; every key that is
asked for is reported wherever an instance holds any of it or stored any in the batch.
Cost: for each key that is reported one binary search per side and run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from joinengine.balancing.statistics import HEAVY_PART, Ints, KeyCounts
from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Exclusions, Needles, find, group_keys


class Asked(NamedTuple):
    """The keys that an instance counts however light they are, as key hashes without repetition.

    Of those `listed` by the layout what arrives and what is held, of the `recent` ones, whose load
    of earlier intervals the planner still sees, only what is held: what light keys bring belongs to
    the rest of the instance.
    """

    listed: Words
    recent: Words


NO_KEYS = Asked(np.empty(0, np.uint64), np.empty(0, np.uint64))

#: The sorted words of a run, and the rows that do not count.
Stretch = tuple[Words, Exclusions | None]


def count_keys(
    instance: int, stored: Sequence[Words], state: Sequence[Iterable[Stretch]], asked: Asked
) -> KeyCounts:
    """What to report of the keys at one instance.

    Per side `stored` are the words that came to be stored in the batch, sorted, and `state` what is
    held after it. Reported are the keys that bring more than 1/HEAVY_PART of what a side stored, on
    both sides, and those `asked` for.
    """
    arrived = [group_keys(words) for words in stored]
    heavy = [
        some.hashes[np.diff(some.starts) * HEAVY_PART > len(words)]
        for some, words in zip(arrived, stored, strict=True)
    ]
    chosen = np.unique(np.concatenate([asked.listed, *heavy]))
    hashes = np.unique(np.concatenate([chosen, asked.recent]))
    reported = np.isin(hashes, chosen)
    parts = list[KeyCounts]()
    for side, (some, runs) in enumerate(zip(arrived, state, strict=True)):
        counts = np.where(reported, _arrivals(some, hashes), 0)
        held = _held(runs, hashes)
        rows = np.flatnonzero((counts > 0) | (held > 0))
        where = np.full(len(rows), instance), np.full(len(rows), side)
        parts.append(KeyCounts(*where, hashes[rows], counts[rows], held[rows]))
    return KeyCounts.concat(parts)


def _arrivals(arrived: Needles, hashes: Words) -> Ints:
    """(K,) how many tuples each key has brought."""
    counts = np.zeros(len(hashes), np.int64)
    if len(arrived.hashes):
        at = np.minimum(np.searchsorted(arrived.hashes, hashes), len(arrived.hashes) - 1)
        found = arrived.hashes[at] == hashes
        counts[found] = np.diff(arrived.starts)[at[found]]
    return counts


def _held(runs: Iterable[Stretch], hashes: Words) -> Ints:
    """(K,) how many live rows each key has; `hashes` ascending."""
    held = np.zeros(len(hashes), np.int64)
    needles = Needles(hashes, np.arange(len(hashes) + 1))
    for words, gone in runs:
        hits = find(words, needles, gone)
        held[hits.needles] += hits.counts
    return held
