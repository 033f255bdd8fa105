"""The counts of single keys at instances in one batch: tuples that arrived, and tuples held.

Why: a planner that moves a key moves all its state, so it must know all of it, on both sides. A
side that brought no tuple in the batch still holds tuples.

Most batches are in balance, and no plan follows. So a report may be *light*: the heaviest of these
keys, and those in the routing table. What each instance stored is exact all the same.

Law: `held` of every reported key is exact on both sides after the batch; a key that is asked for is
reported at every instance that holds it or stored it in the batch.
Cost: some passes over the keys of the batch; for each reported key one binary search per side and
run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from joinengine.balancing import statistics
from joinengine.balancing.statistics import HEAVY_PART, LIGHT_PART, MOST_LIGHT, Ints, KeyCounts
from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import (
    Needles,
    distinct,
    expand_ranges,
    rows_among,
    rows_of_keys,
)
from joinengine.kernels.seating import (
    Stretch,
    find_seated,
    keys_of,
    seated_keys,
    seats_of,
)


class Done(NamedTuple):
    """What keys have done as tuples of `side`: (n,) each, by ascending seated keys `hashes`.

    `probed`: how many tuples have probed; `candidates`: pairs compared; `results`: pairs made.
    """

    side: int
    hashes: Words
    probed: Ints
    candidates: Ints
    results: Ints


class KeysAt(NamedTuple):
    """(m,) key hashes at instances, ascending by instance and hash, each once at an instance."""

    instances: Ints
    hashes: Words

    def of(self, instances: Sequence[int]) -> KeysAt:
        """Those at some instances, ascending."""
        wanted = np.asarray(instances, np.int64)
        first, last = (np.searchsorted(self.instances, edge) for edge in (wanted, wanted + 1))
        rows = expand_ranges(first, last - first)
        return KeysAt(self.instances[rows], self.hashes[rows])

    def seated(self, team: Sequence[int]) -> Words:
        """The seated keys of a team, ascending."""
        ours = self.of(team)
        return seated_keys(ours.hashes, np.searchsorted(team, ours.instances))


NO_KEYS = KeysAt(np.empty(0, np.int64), np.empty(0, np.uint64))


class Asked(NamedTuple):
    """The keys that a task counts at its instances however light they are.

    `listed`: the keys in the routing table; arrived and held tuples are counted. `recent`: keys
    whose load of earlier intervals the planner still sees; only held tuples are counted, since the
    arrivals of light keys belong to the rest of the instance. `whole`: beside these all heavy keys
    are counted, of which each has more than one in `part` of what its instance has; otherwise
    MOST_LIGHT of each side, or, if the report is sparing, those of them that a plan would gain by:
    none of a side that has brought fewer tuples than `few` (0: it is not sparing).
    """

    listed: KeysAt = NO_KEYS
    recent: KeysAt = NO_KEYS
    whole: bool = True
    few: int = 0
    part: int = HEAVY_PART

    @property
    def is_sparing(self) -> bool:
        """Whether the report is light, and tells only keys that a plan would gain by."""
        return self.few > 0 and not self.whole

    @property
    def nbytes(self) -> int:
        """Bytes of the keys."""
        return self.listed.hashes.nbytes + self.recent.hashes.nbytes


def count_keys(
    team: Sequence[int],
    arrived: Sequence[Needles],
    state: Sequence[Iterable[Stretch]],
    asked: Asked,
    done: Sequence[Done] = (),
) -> KeyCounts:
    """The counts of keys to report for the instances of a team.

    Per side `arrived` are the seated keys that were stored in the batch, and `state` the runs held
    after it; `done`: what keys have done, none twice on a side. A key is reported, on both sides,
    if it has more than one in `asked.part` of the tuples that a side stored at an instance, of the
    pairs that were compared there or of the results, or if it is `asked` for there; in a light
    report of the former only the heaviest; in a sparing one only those with more than one of them
    and 1/LIGHT_PART of all, and none where all are few.
    """
    weights = [(needles.hashes, np.diff(needles.starts), asked.few) for needles in arrived]
    for work_done in done:
        few = statistics.FEW_PAIRS
        weights += [
            (work_done.hashes, counts, few) for counts in (work_done.candidates, work_done.results)
        ]
    if asked.is_sparing:
        weights = [(hashes, counts, few) for hashes, counts, few in weights if counts.sum() >= few]
    heavy = [_heavy(hashes, counts, asked, few, len(team)) for hashes, counts, few in weights]
    chosen, recent = asked.listed.seated(team), asked.recent.seated(team)
    if heavy:
        chosen = distinct(np.concatenate([chosen, *heavy]))
    hashes = distinct(np.concatenate([chosen, recent])) if len(recent) else chosen
    if not len(hashes):
        return KeyCounts.empty()
    places = np.searchsorted(hashes, chosen)
    parts = list[KeyCounts]()
    for side, (needles, runs) in enumerate(zip(arrived, state, strict=True)):
        counts, work = np.zeros(len(hashes), np.int64), np.zeros((3, len(hashes)), np.int64)
        counts[places] = rows_of_keys(needles, chosen)
        work[:, places] = _done([part for part in done if part.side == side], chosen)
        held = _held(runs, hashes)
        rows = np.flatnonzero(counts + held + work.sum(axis=0))
        reported = hashes[rows]
        where = np.asarray(team)[seats_of(reported)], np.full(len(rows), side)
        parts.append(KeyCounts(*where, keys_of(reported), counts[rows], held[rows], *work[:, rows]))
    return KeyCounts.concat(parts)


def _heavy(hashes: Words, counts: Ints, asked: Asked, few: int, n_seats: int) -> Words:
    """The heavy ones of ascending seated keys, as far as they are `asked` for.

    `few`: if a report is sparing, none is heavy where `counts` sum up to less.
    """
    seats = seats_of(hashes) if n_seats > 1 else np.zeros(len(hashes), np.int64)
    of_seat = np.bincount(seats, counts, n_seats)
    least = of_seat / asked.part
    if asked.is_sparing:
        least = np.where(of_seat < few, np.inf, np.maximum(of_seat / LIGHT_PART, 1.0))
    heavy = np.flatnonzero(counts > least[seats])
    if asked.whole or not len(heavy):
        return hashes[heavy]
    seats = seats[heavy]
    order = np.lexsort((-counts[heavy], seats))
    rank = np.arange(len(order)) - np.searchsorted(seats, seats)
    return hashes[heavy[order[rank < MOST_LIGHT]]]


def _done(done: Sequence[Done], hashes: Words) -> Ints:
    """(3, K) per seated key what it has done; `hashes` ascending."""
    sums = np.zeros((3, len(hashes)), np.int64)
    for part in done:  # pieces of arrivals, and cells of a band
        rows, places = rows_among(hashes, part.hashes)
        for total, counts in zip(sums, part[2:], strict=True):
            total[rows] += counts[places]
    return sums


def _held(runs: Iterable[Stretch], hashes: Words) -> Ints:
    """(K,) how many live rows each seated key has; `hashes` ascending."""
    held = np.zeros(len(hashes), np.int64)
    needles = Needles(hashes, np.arange(len(hashes) + 1))
    for words, parts, gone in runs:
        hits = find_seated(words, parts, needles, gone)
        held[hits.needles] += hits.counts
    return held
