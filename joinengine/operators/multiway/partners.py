"""Combines arrived tuples with the stored tuples of all other sides.

Why: a chain of joins stores the results of its first joins, only to join them further. Here the
stored tuples that share a key with arrived ones are gathered once for each side. Combinations of
them are row numbers until they become results.

Law: each combination of one tuple per side with equal keys and near times is made once.
Cost: per arrived key one search in each run; per stored tuple of these keys one gather, and a sort
by time if there is one; per combination, including those of only some sides, a few numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.comparing import equal_at
from joinengine.kernels.expanding import expand_pairs
from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Hits, Ints, Needles, expand_ranges, find, live_rows
from joinengine.kernels.widths import fitting, widths_at
from joinengine.model.keys import Side
from joinengine.operators.multiway.multiway_spec import MultiwayShelf, MultiwaySpec
from joinengine.state.run import OpenRun

#: The most combinations that are made at a time.
COMBINED = 1 << 17

Bools = NDArray[np.bool_]


class Found(NamedTuple):
    """Where the runs of one side have tuples of K keys.

    `hits`: per run, by the places of keys. `counts` (K,): tuples of each key.
    """

    runs: Sequence[OpenRun]
    hits: Sequence[Hits]
    counts: Ints

    def only(self, some: Ints) -> Found:
        """The same for the keys at ascending places `some`."""
        of_place = np.full(len(self.counts), -1)
        of_place[some] = np.arange(len(some))
        hits = list[Hits]()
        for places, lower, counts in self.hits:
            kept = of_place[places] >= 0
            hits.append(Hits(of_place[places[kept]], lower[kept], counts[kept]))
        return Found(self.runs, hits, self.counts[some])

    @property
    def row_bytes(self) -> float:
        """The mean bytes of a tuple."""
        rows = sum(run.run.rows for run in self.runs)
        return sum(run.run.size_bytes for run in self.runs) / max(rows, 1)


def found_in(runs: Sequence[OpenRun], hashes: Words) -> Found:
    """Where runs have tuples of (K,) ascending key hashes."""
    needles = Needles(hashes, np.arange(len(hashes) + 1))
    hits = [find(run.words, needles, run.gone) for run in runs]
    counts = np.zeros(len(hashes), np.int64)
    for hit in hits:
        counts[hit.needles] += hit.counts
    return Found(runs, hits, counts)


class Tuples(NamedTuple):
    """n tuples of one side, each of the key at the place `of_key`; `times` None: no windows."""

    of_key: Ints
    columns: pa.RecordBatch
    times: Ints | None

    def take(self, rows: Ints) -> Tuples:
        """The tuples at `rows`, in this order."""
        times = None if self.times is None else self.times[rows]
        return Tuples(self.of_key[rows], self.columns.take(pa.array(rows)), times)

    def only(self, some: Bools) -> Tuples:
        """The tuples for which `some` is true."""
        return self if some.all() else self.take(np.flatnonzero(some))


class Chosen(NamedTuple):
    """n rows of a run, each of the key at the place `of_key`."""

    run: OpenRun
    rows: Ints
    of_key: Ints

    def widths(self) -> list[Ints | None]:
        """Per column, (n,) bytes, or None if its width is fixed; all numbers come last."""
        columns = self.run.columns.columns
        numbers = np.full(len(self.rows), 8 * len(columns))
        return [*(widths_at(column, self.rows) for column in columns), numbers]


def chosen(
    spec: MultiwaySpec, side: Side, met: Found, keys: slice, between: tuple[int, int] | None
) -> Iterator[Chosen]:
    """The rows with tuples of the keys at the places `keys`, run by run.

    `between`: only those from the first to the last of these times; None: all.
    """
    shelf = MultiwayShelf(spec)
    for run, (places, lower, counts) in zip(met.runs, met.hits, strict=True):
        start, stop = np.searchsorted(places, [keys.start, keys.stop])
        ranks = expand_ranges(lower[start:stop], counts[start:stop])
        if not len(ranks):
            continue
        rows = ranks if run.gone is None else live_rows(run.gone, ranks)
        of_key = np.repeat(places[start:stop] - keys.start, counts[start:stop])
        if between is not None:
            times = shelf.times(side, run.columns.select(spec.times(side)).take(pa.array(rows)))
            assert times is not None
            near = (times >= between[0]) & (times <= between[1])
            rows, of_key = rows[near], of_key[near]
        if len(rows):
            yield Chosen(run, rows, of_key)


def blocks_of(tuples: Iterable[Chosen], most_bytes: int) -> list[list[Chosen]]:
    """Tuples in blocks that fit; there are several if a key has very many or wide tuples."""
    blocks, left = list[list[Chosen]](), 0
    for run, rows, of_key in tuples:
        widths = Chosen(run, rows, of_key).widths()
        size = sum(int(width.sum()) for width in widths if width is not None)
        parts = fitting(widths, len(rows), most_bytes)
        if size > left:
            blocks += [[Chosen(run, rows[part], of_key[part])] for part in parts]
            left = max(most_bytes - size, 0)
        else:
            blocks[-1].append(Chosen(run, rows, of_key))
            left -= size
    return blocks


def gathered(spec: MultiwaySpec, side: Side, block: Sequence[Chosen]) -> Tuples:
    """The tuples of a block, by key and time."""
    columns = pa.concat_batches([run.columns.take(pa.array(rows)) for run, rows, _ in block])
    of_key = np.concatenate([of_key for *_, of_key in block])
    times = MultiwayShelf(spec).times(side, columns)
    tuples = Tuples(of_key, columns, times)
    if times is None and len(block) == 1:
        return tuples
    order = np.argsort(of_key, kind="stable") if times is None else np.lexsort((times, of_key))
    return tuples.take(order)


def apart(
    spec: MultiwaySpec, side: Side, arrived: Tuples, stored: Mapping[Side, Tuples], n_keys: int
) -> Iterator[Combining]:
    """Combines tuples `arrived` on `side` with `stored` ones; splits keys that share a hash."""
    while len(arrived.of_key):
        firsts = np.searchsorted(arrived.of_key, np.arange(n_keys))
        firsts = np.minimum(firsts, len(arrived.of_key) - 1)
        heads = arrived.columns.select(spec.keys(side)).take(pa.array(firsts))
        same = _has_key(arrived, spec.keys(side), heads)
        meeting = {
            other: tuples.only(_has_key(tuples, spec.keys(other), heads))
            for other, tuples in stored.items()
        }
        yield Combining(spec, {side: arrived.only(same), **meeting}, n_keys)
        arrived = arrived.only(~same)


def _has_key(tuples: Tuples, names: Sequence[str], heads: pa.RecordBatch) -> Bools:
    """(n,) whether the key of each tuple equals the one at its place in (K,) `heads`."""
    same, rows = np.ones(len(tuples.of_key), bool), np.arange(len(tuples.of_key))
    for name, head in zip(names, heads.columns, strict=True):
        same &= equal_at(tuples.columns.column(name), rows, head, tuples.of_key)
    return same


class _Places(NamedTuple):
    """The rows of the tuples of K keys: starts[k]:starts[k + 1], with an index of their times.

    `moments` (m,): all times, ascending; `ranked` (n,): key and rank of the time of each tuple.
    """

    starts: Ints
    moments: Ints | None
    ranked: Ints

    @classmethod
    def of(cls, tuples: Tuples, n_keys: int) -> _Places:
        starts = np.searchsorted(tuples.of_key, np.arange(n_keys + 1))
        if tuples.times is None:
            return cls(starts, None, tuples.of_key)
        moments = np.unique(tuples.times)
        ranks = np.searchsorted(moments, tuples.times)
        return cls(starts, moments, tuples.of_key * (len(moments) + 1) + ranks)

    def between(self, keys: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """(n,) keys -> (n,) first rows and (n,) end rows of their tuples in [first, last]."""
        assert self.moments is not None
        width = len(self.moments) + 1
        lower = keys * width + np.searchsorted(self.moments, first)
        upper = keys * width + np.searchsorted(self.moments, last, side="right")
        return np.searchsorted(self.ranked, lower), np.searchsorted(self.ranked, upper)


class Combining:
    """Combines arrived tuples of one side with those of all others, key by key.

    `tuples`: per side, all of K keys. After `combined`, `candidates` and `results` (K,) count the
    combinations that were looked at and made.
    """

    def __init__(self, spec: MultiwaySpec, tuples: Mapping[Side, Tuples], n_keys: int) -> None:
        self._spec = spec
        self.tuples = tuples
        self._places = {side: _Places.of(stream, n_keys) for side, stream in tuples.items()}
        self.candidates = np.zeros(n_keys, np.int64)
        self.results = np.zeros(n_keys, np.int64)

    def combined(self, arrived: Side) -> Iterator[Mapping[Side, Ints]]:
        """All combinations, some at a time: side -> (n,) rows of its tuples."""
        of_key = self.tuples[arrived].of_key
        others = [side for side in self.tuples if side is not arrived]
        others.sort(key=lambda side: len(self.tuples[side].of_key))  # the fewest first
        yield from self._extended({arrived: np.arange(len(of_key))}, of_key, others)

    def _extended(
        self, rows: Mapping[Side, Ints], of_key: Ints, others: Sequence[Side]
    ) -> Iterator[Mapping[Side, Ints]]:
        """Combinations of `rows` with tuples of `others`, one side after the other."""
        if not others:
            self.results += np.bincount(of_key, minlength=len(self.results))
            yield rows
            return
        side, *later = others
        lower, upper = self._partners(rows, of_key, side)
        counts = np.maximum(upper - lower, 0)
        looked_at = np.bincount(of_key, counts, minlength=len(self.candidates))
        self.candidates += looked_at.astype(np.int64)
        for owners, partners in expand_pairs(np.arange(len(of_key)), lower, counts, COMBINED):
            longer = {stream: places[owners] for stream, places in rows.items()} | {side: partners}
            yield from self._extended(longer, of_key[owners], later)

    def _partners(self, rows: Mapping[Side, Ints], of_key: Ints, side: Side) -> tuple[Ints, Ints]:
        """(n,) combinations -> (n,) first and (n,) end row of the tuples of `side` near each."""
        places, nearness = self._places[side], self._spec.nearness
        if nearness is None:
            return places.starts[of_key], places.starts[of_key + 1]
        times = dict[Side, Ints]()
        for other, stream_rows in rows.items():
            of_other = self.tuples[other].times
            assert of_other is not None
            times[other] = of_other[stream_rows]
        return places.between(of_key, *nearness.near(times, side))
