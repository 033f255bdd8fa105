"""Finds the stored rows that share a key hash with the rows of a batch.

Why: a run is sorted by word, so the rows of a key are one range, found by binary search. The
*needles* are the distinct keys of the batch, in order, so that neighbours share cache lines. The
upper end is searched only for keys that the run has.

Law: a needle finds exactly the live rows of its key hash, as one range of *live ranks*: row numbers
that skip the excluded rows.
Cost: about 20 ns a distinct key and run, 5 ns more if the key is present.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words, first_word, key_hash

Ints = NDArray[np.int64]
#: Numbers of rows, 32 or 64 bits wide.
Rows = NDArray[np.signedinteger[Any]]
_Number = TypeVar("_Number", bound=np.number[Any])

_RADIX_FROM = 4096


class Needles(NamedTuple):
    """The distinct key hashes of a sorted batch; key i has the rows starts[i]:starts[i + 1]."""

    hashes: Words
    starts: Ints


class Hits(NamedTuple):
    """Needle needles[i] has the live ranks lower[i]:lower[i] + counts[i]."""

    needles: Ints
    lower: Ints
    counts: Ints


class Exclusions(NamedTuple):
    """The excluded rows of a run, as disjoint ranges in order, and the numbering of the live rows.

    The live rows fall into stretches: stretch j begins at live rank ranks[j] and at row
    ranks[j] + shifts[j].
    """

    starts: Ints
    stops: Ints
    ranks: Ints
    shifts: Ints

    @property
    def rows(self) -> int:
        """How many rows are excluded."""
        return int(self.shifts[-1])


def sort_order(words: Words) -> NDArray[np.intp]:
    """(n,) words -> the row order that sorts them. Rows of equal words are in any order.

    A radix sort by 16 bits at a time, lowest first. At 60,000 words it takes two thirds of the time
    of NumPy's comparison sort; below some thousand words it is slower.
    """
    if len(words) < _RADIX_FROM:
        return np.argsort(words)
    order = np.argsort(words.astype(np.uint16), kind="stable")
    for shift in (16, 32, 48):
        digits = (words >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def group_keys(sorted_words: Words) -> Needles:
    """(n,) sorted words -> their distinct key hashes, and where each begins."""
    hashes = key_hash(sorted_words)
    heads = np.ones(len(hashes), bool)
    np.not_equal(hashes[1:], hashes[:-1], out=heads[1:])
    first = np.flatnonzero(heads)
    return Needles(hashes[first], np.append(first, len(hashes)))


def rows_of_keys(needles: Needles, hashes: Words) -> Ints:
    """(K,) key hashes -> how many rows of the batch each has."""
    rows = np.zeros(len(hashes), np.int64)
    if len(needles.hashes):
        at = np.minimum(np.searchsorted(needles.hashes, hashes), len(needles.hashes) - 1)
        is_there = needles.hashes[at] == hashes
        rows[is_there] = np.diff(needles.starts)[at[is_there]]
    return rows


def exclude(run_words: Words, lower: Words, upper: Words) -> Exclusions | None:
    """Disjoint word ranges [lower, upper) in order -> the rows of the run that fall into them.

    An `upper` of 0 means 2^64. None: no row lies in any range.
    """
    starts, stops = _row_ranges(run_words, lower, upper)
    some = stops > starts
    if not some.any():
        return None
    starts, stops = starts[some], stops[some]
    shifts = np.concatenate([[0], np.cumsum(stops - starts)])
    return Exclusions(starts, stops, np.concatenate([[0], stops]) - shifts, shifts)


def rows_between(
    run_words: Words, lower: Words, upper: Words, exclusions: Exclusions | None
) -> Ints:
    """Word ranges [lower, upper) in order -> the live rows of the run that fall into them.

    An `upper` of 0 means 2^64.
    """
    starts, stops = _row_ranges(run_words, lower, upper)
    if exclusions is None:
        return expand_ranges(starts, stops - starts)
    starts, stops = live_rank(exclusions, starts), live_rank(exclusions, stops)
    return live_rows(exclusions, expand_ranges(starts, stops - starts))


def _row_ranges(run_words: Words, lower: Words, upper: Words) -> tuple[Ints, Ints]:
    stops = np.where(upper == 0, len(run_words), np.searchsorted(run_words, upper))
    return np.searchsorted(run_words, lower), stops


def find(run_words: Words, needles: Needles, exclusions: Exclusions | None = None) -> Hits:
    """(m,) sorted run words, (k,) needles -> the needles that have live rows, and these rows."""
    if not len(run_words) or not len(needles.hashes):
        return Hits(*(np.empty(0, np.int64) for _ in range(3)))
    ends = key_hash(run_words[[0, -1]])
    # Search only needles inside the run's range of hashes; a run may cover a small part of them.
    first = int(np.searchsorted(needles.hashes, ends[0]))
    last = int(np.searchsorted(needles.hashes, ends[1], side="right"))
    hashes = needles.hashes[first:last]
    lower = np.searchsorted(run_words, first_word(hashes))
    present = np.flatnonzero(key_hash(run_words[lower]) == hashes)
    lower, hashes = lower[present], hashes[present]
    upper = np.searchsorted(run_words, first_word(hashes + np.uint64(1)))
    # Each key is present, so a range is empty only if the next hash has wrapped to word 0.
    upper[upper <= lower] = len(run_words)
    if exclusions is not None:
        lower, upper = live_rank(exclusions, lower), live_rank(exclusions, upper)
        some = upper > lower
        present, lower, upper = present[some], lower[some], upper[some]
    return Hits(present + first, lower, upper - lower)


def live_rank(exclusions: Exclusions, rows: Ints) -> Ints:
    """Row numbers -> how many live rows precede each."""
    before = np.searchsorted(exclusions.starts, rows, side="right")
    inside = np.zeros(len(rows), np.int64)
    last = np.maximum(before - 1, 0)
    some = before > 0
    inside[some] = np.minimum(rows, exclusions.stops[last])[some] - exclusions.starts[last][some]
    ended = np.where(some, exclusions.shifts[last], 0)
    return rows - ended - inside


def live_rows(exclusions: Exclusions, ranks: Ints) -> Ints:
    """Live ranks -> row numbers."""
    stretch = np.searchsorted(exclusions.ranks, ranks, side="right") - 1
    return ranks + exclusions.shifts[stretch]


def distinct(values: NDArray[_Number]) -> NDArray[_Number]:
    """(n,) numbers -> (m,) the distinct ones, ascending.

    NumPy's `unique` hashes numbers before it sorts them, and takes several times as long.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ascending = np.sort(values)
    first = np.ones(len(ascending), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=first[1:])
    return ascending[first]


def numbered(values: Words) -> tuple[Words, Ints]:
    """(n,) numbers -> (m,) the distinct ones, ascending, and (n,) the place of each among them.

    The sort is faster the longer the stretches that are already ascending.

    >>> numbered(np.array([3, 1, 3], np.uint64))
    (array([1, 3], dtype=uint64), array([1, 0, 1]))
    """
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    first = np.ones(len(ascending), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=first[1:])
    numbers = np.empty(len(values), np.int64)
    numbers[order] = np.cumsum(first) - 1
    return ascending[first], numbers


def rows_among(values: Words, known: Words) -> tuple[Ints, Ints]:
    """(n,) values -> the rows of those among (m,) ascending `known`, and their places there.

    >>> rows_among(np.array([7, 9, 8], np.uint64), np.array([8, 9], np.uint64))
    (array([1, 2]), array([1, 0]))
    """
    if not len(known):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    places = np.searchsorted(known, values)
    places[places == len(known)] = 0
    rows = np.flatnonzero(known[places] == values)
    return rows, places[rows]


def expand_ranges(lower: Ints, counts: Ints) -> Ints:
    """(n,) ranges lower[i]:lower[i] + counts[i] -> all their numbers, range after range.

    >>> expand_ranges(np.array([5, 0]), np.array([2, 1])).tolist()
    [5, 6, 0]
    """
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(np.arange(total) + np.repeat(lower - (ends - counts), counts))
