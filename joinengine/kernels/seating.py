"""Sorts and searches the rows of several instances at once.

Why: an array operation costs some microseconds, however few rows it has. A task that hosts
hundreds of instances with some hundred rows each would pay that for each instance and run. So the
instances of a task work as *teams*: the rows of a team are sorted by instance and word, and
searched together.

How: an instance has a *seat* in its team, a number from 0 on. A *seated key* is the seat above the
40 bits of a key hash; in a team of one it is the key hash itself.

Law: a seated key finds the live rows of its key hash at its instance, and no rows of another
instance.
Cost: that of `joinengine.kernels.probing`, plus 3 ns for each row of the searched parts if these
are small, or 8 us for each part if they are large.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words, key_hash
from joinengine.kernels.probing import (
    Exclusions,
    Hits,
    Ints,
    Needles,
    expand_ranges,
    find,
    live_rank,
    sort_order,
)
from joinengine.model.keys import U_BITS

#: (n,) the seat of each row; None: the team is one instance, which has all rows.
Seats = NDArray[np.uint16] | None

_KEY_BITS = 64 - U_BITS
_KEY_MASK = np.uint64((1 << _KEY_BITS) - 1)
#: The most instances that a team has.
MOST_SEATS = 1 << 16
#: Parts with fewer rows than this, on average, are searched in one go.
_SMALL_PART = 1024


class Parts(NamedTuple):
    """The rows of p instances in an array of words: part i has the rows starts[i]:stops[i].

    `seats` (p,): the seat of each part, ascending, each once.
    """

    seats: Ints
    starts: Ints
    stops: Ints


#: Words in parts, each sorted, and the excluded rows among them.
Stretch = tuple[Words, Parts, Exclusions | None]


def seated_keys(hashes: Words, seats: NDArray[np.integer] | None) -> Words:
    """(n,) key hashes, (n,) seats -> (n,) seated keys."""
    if seats is None:
        return hashes
    return hashes | seats.astype(np.uint64) << np.uint64(_KEY_BITS)


def seats_of(seated: Words) -> Ints:
    """(n,) seated keys -> (n,) seats."""
    return (seated >> np.uint64(_KEY_BITS)).astype(np.int64)


def keys_of(seated: Words) -> Words:
    """(n,) seated keys -> (n,) key hashes."""
    return seated & _KEY_MASK


def seat_bounds(seated: Words, seats: int) -> Ints:
    """(n,) ascending seated keys -> (seats + 1,) where the keys of each seat begin, and the end."""
    firsts = np.arange(seats, dtype=np.uint64) << np.uint64(_KEY_BITS)
    return np.append(np.searchsorted(seated, firsts), len(seated))


def row_bounds(sorted_seats: Seats, rows: int, seats: int) -> Ints:
    """(n,) ascending seats -> (seats + 1,) where the rows of each seat begin, and the end."""
    if sorted_seats is None:
        return np.array([0, rows])
    return np.searchsorted(sorted_seats, np.arange(seats + 1))


def seated_order(words: Words, seats: Seats) -> NDArray[np.intp]:
    """(n,) words, (n,) seats -> the row order that sorts them by seat and word."""
    order = sort_order(words)
    return order if seats is None else order[np.argsort(seats[order], kind="stable")]


def group_seated(sorted_words: Words, sorted_seats: Seats) -> Needles:
    """(n,) words sorted by seat and word -> their distinct seated keys, and where each begins."""
    seated = seated_keys(key_hash(sorted_words), sorted_seats)
    heads = np.ones(len(seated), bool)
    np.not_equal(seated[1:], seated[:-1], out=heads[1:])
    first = np.flatnonzero(heads)
    return Needles(seated[first], np.append(first, len(seated)))


def find_seated(
    words: Words, parts: Parts, needles: Needles, exclusions: Exclusions | None = None
) -> Hits:
    """(m,) words in parts, (k,) seated needles -> the needles with live rows, and these rows."""
    firsts = parts.seats.astype(np.uint64) << np.uint64(_KEY_BITS)
    begin = np.searchsorted(needles.hashes, firsts)
    end = np.searchsorted(needles.hashes, firsts | _KEY_MASK, side="right")
    if len(parts.seats) == 1:
        hits = _in_one(words, parts, needles, slice(int(begin[0]), int(end[0])))
    elif int((parts.stops - parts.starts).sum()) < _SMALL_PART * len(parts.seats):
        hits = _in_small(words, parts, needles, expand_ranges(begin, end - begin))
    else:
        hits = _in_large(words, parts, needles, begin, end)
    if exclusions is None or not len(hits.needles):
        return hits
    lower = live_rank(exclusions, hits.lower)
    counts = live_rank(exclusions, hits.lower + hits.counts) - lower
    some = counts > 0
    return Hits(hits.needles[some], lower[some], counts[some])


def _in_one(words: Words, parts: Parts, needles: Needles, ours: slice) -> Hits:
    """Search the part of the only seat; `ours`: its needles."""
    start, stop = int(parts.starts[0]), int(parts.stops[0])
    keys = keys_of(needles.hashes[ours])
    met, lower, counts = find(words[start:stop], Needles(keys, needles.starts[ours]))
    return Hits(met + ours.start, lower + start, counts)


def _in_small(words: Words, parts: Parts, needles: Needles, ours: Ints) -> Hits:
    """Search all parts at once, by seated keys of their rows; `ours`: the needles of all seats."""
    sizes = parts.stops - parts.starts
    rows = expand_ranges(parts.starts, sizes)
    seated = seated_keys(key_hash(words[rows]), np.repeat(parts.seats, sizes))
    wanted = needles.hashes[ours]
    lower = np.searchsorted(seated, wanted)
    met = np.flatnonzero(seated[np.minimum(lower, len(seated) - 1)] == wanted)
    lower, wanted = lower[met], wanted[met]
    # The rows of a seated key are in one part, so their numbers have no gaps.
    counts = np.searchsorted(seated, wanted, side="right") - lower
    return Hits(ours[met], rows[lower], counts)


def _in_large(words: Words, parts: Parts, needles: Needles, begin: Ints, end: Ints) -> Hits:
    """Search each part by itself, part i for the needles begin[i]:end[i]."""
    parts_met = list[Hits]()
    for i in np.flatnonzero(end > begin).tolist():
        part = Parts(*(column[i : i + 1] for column in parts))
        parts_met.append(_in_one(words, part, needles, slice(int(begin[i]), int(end[i]))))
    if not parts_met:
        return Hits(*(np.empty(0, np.int64) for _ in range(3)))
    return Hits(*(np.concatenate(columns) for columns in zip(*parts_met, strict=True)))
