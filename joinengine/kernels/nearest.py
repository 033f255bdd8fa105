"""Finds, for each left tuple, the right tuple of its group that is nearest in time.

Law: `before` takes the latest right tuple that is not after the left one; `after` takes the
earliest that is not before it. Of several right tuples of that time, the last one read is taken.
Cost: one sort of both sides together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints

#: In place of a row: no tuple.
NONE = -1
#: In place of a distance: greater than that of any two times.
ENDLESS = np.uint64((1 << 64) - 1)


class Moments(NamedTuple):
    """(n,) tuples of one side: their groups and times."""

    groups: Words
    times: Ints

    def only(self, rows: Ints) -> Moments:
        """The tuples at `rows`."""
        return Moments(self.groups[rows], self.times[rows])


def before(left: Moments, right: Moments, numbers: Words, *, strict: bool) -> Ints:
    """(n,) the row of the latest right tuple that is not after each left one, or NONE.

    `numbers` (m,): ascending in the order of reading. `strict`: a tuple of the same time does not
    count.

    >>> left = Moments(np.zeros(2, np.uint64), np.array([1, 5]))
    >>> right = Moments(np.zeros(2, np.uint64), np.array([2, 5]))
    >>> before(left, right, np.array([0, 1], np.uint64), strict=False).tolist()
    [-1, 1]
    """
    order, is_right = _ordered(left, right, numbers, right_first=not strict)
    last = np.maximum.accumulate(np.where(is_right, np.arange(len(order)), NONE))
    return _taken(left, right, order, last)


def after(left: Moments, right: Moments, numbers: Words, *, strict: bool) -> Ints:
    """(n,) the row of the earliest right tuple that is not before each left one, or NONE.

    Arguments as in `before`.

    >>> left = Moments(np.zeros(2, np.uint64), np.array([1, 5]))
    >>> right = Moments(np.zeros(2, np.uint64), np.array([2, 5]))
    >>> after(left, right, np.array([0, 1], np.uint64), strict=True).tolist()
    [0, -1]
    """
    # Of equal times, the last tuple read comes first, and is found first.
    order, is_right = _ordered(left, right, ~numbers, right_first=strict)
    places = np.where(is_right, np.arange(len(order)), len(order))
    next_ = np.minimum.accumulate(places[::-1])[::-1]
    return _taken(left, right, order, np.where(next_ < len(order), next_, NONE))


def _ordered(
    left: Moments, right: Moments, numbers: Words, *, right_first: bool
) -> tuple[Ints, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """The order of both sides by group and time, and which rows of it are right ones.

    At equal times, left rows precede right rows unless `right_first`; right rows are in the order
    of `numbers`.
    """
    n, m = len(left.times), len(right.times)
    sides = np.repeat(np.array([1, 0] if right_first else [0, 1], np.uint8), [n, m])
    order = np.lexsort(
        (
            np.concatenate([np.zeros(n, np.uint64), numbers]),
            sides,
            np.concatenate([left.times, right.times]),
            np.concatenate([left.groups, right.groups]),
        )
    )
    return order, order >= n


def _taken(left: Moments, right: Moments, order: Ints, places: Ints) -> Ints:
    """(n,) the right row at the place found for each left row, or NONE if its group differs."""
    n = len(left.times)
    ours = np.flatnonzero(order < n)
    rows, places = order[ours], places[ours]
    partners = np.full(n, NONE)
    some = places != NONE
    rights = order[places[some]] - n
    same = right.groups[rights] == left.groups[rows[some]]
    partners[rows[some][same]] = rights[same]
    return partners


def distances(earlier: Ints, later: Ints) -> Words:
    """(n,) distances of times, exact even if the difference has more than 63 bits."""
    return np.asarray(later.view(np.uint64) - earlier.view(np.uint64))
