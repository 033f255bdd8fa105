"""The counts of single keys at instances in one batch: tuples that arrived, and tuples held.

Why: a planner that moves a key moves all its state, so it must know all of it, on both sides. A
side that brought no tuple in the batch still holds tuples.

Most batches are in balance, and no plan follows. So a report may be *light*: it lists the heaviest
of these keys, and those in the routing table. The total that each instance stored is always exact.

Law: `held` of every reported key is exact on both sides after the batch; a key in `Asked` is
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
    """The work of the tuples of `side`, per key: (n,) arrays, by ascending seated keys `hashes`.

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
        """The keys at some instances, ascending."""
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
    """Which keys a task reports: some however light they are, and the heavy ones.

    `listed`: the keys in the routing table; their arrived and held tuples are counted. `recent`:
    keys whose load of earlier intervals the planner still sees; only held tuples are counted, since
    the arrivals of light keys belong to the rest of the instance. `whole`: all heavy keys are
    reported, which have more than 1/`part` of what their instance has. Otherwise, the MOST_LIGHT
    heaviest of each side are. `few`: if above 0, a light report is sparing: it omits keys by which
    no plan would gain, and all keys of a side with fewer tuples than `few`.
    """

    listed: KeysAt = NO_KEYS
    recent: KeysAt = NO_KEYS
    whole: bool = True
    few: int = 0
    part: int = HEAVY_PART

    @property
    def is_sparing(self) -> bool:
        """Whether the report is light, and lists only keys by which a plan would gain."""
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

    `arrived`: per side, the seated keys that were stored in the batch. `state`: per side, the runs
    held after it. `done`: the work of keys, no key twice on a side.

    A key is reported, on both sides, if `asked` lists it at the instance, or if it is heavy there:
    if it has more than 1/`asked.part` of the tuples that a side stored, of the pairs compared or of
    the results. A light report has only the heaviest of the heavy keys. A sparing report has only
    those with more than one tuple or pair, and more than 1/LIGHT_PART of all; it has none where an
    instance has few in all.
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
    """The heavy keys among ascending seated keys, as far as `asked` wants them.

    `few`: in a sparing report, an instance whose `counts` sum up to less has no heavy key.
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
    """(3, K) the tuples that probed, the candidates and the results of seated keys, ascending."""
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
