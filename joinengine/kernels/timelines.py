"""Finding the tuples of a key that are close enough in event time, without looking at the others.

Why: the tuples of a key are stored in the order of u, which moves and exclusions search. A window
that is short beside what a batch brings then leaves nearly all pairs of a hot key apart: comparing
the times of each pair costs with the square of the key's tuples, and finds few.

How: the tuples of one side are sorted by group and time, in one array of packed numbers; what the
tuples of the other side ask for are stretches of that array, found by binary search. A *group* is
whatever two tuples must share: a key, or a cell of a band, at one instance.

Law: a stretch holds exactly the rows of the group whose times are between the bounds.
Cost: a sort of the n rows (40 ns a row), and 20 to 40 ns for each stretch if they are asked for in
the order of their bounds; in any order up to ten times as much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints, distinct


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rows sorted by group and time: the i-th is row `order[i]`.

    `packed` (n,): the group above the time, as its distance from `least`, in `bits` bits; or above
    the rank of the time among the distinct times `known`, if distances have too many bits. `most`:
    the greatest time.
    """

    order: Ints
    packed: Words
    bits: int
    least: int
    most: int
    known: Ints | None

    @classmethod
    def of(cls, groups: Ints, times: Ints) -> Timeline:
        """(n,) rows, at least one, by their groups (0 or more) and times.

        >>> Timeline.of(np.array([0, 0, 1]), np.array([5, 3, 4])).order.tolist()
        [1, 0, 2]
        """
        least, most, known = int(times.min()), int(times.max()), None
        # One more than the greatest distance is where the search for a later time ends.
        bits = (most - least + 1).bit_length()
        if bits + int(groups.max()).bit_length() > 63:
            known = distinct(times)
            bits = len(known).bit_length()
            offsets = np.searchsorted(known, times)
        else:
            offsets = times - least
        packed = _packed(groups, offsets, bits)
        order = np.argsort(packed)
        return cls(order, packed[order], bits, least, most, known)

    def between(self, groups: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """(m,) known groups and bounds of time, both included -> (m,) stretches: begin and length.

        >>> line = Timeline.of(np.array([0, 0, 1]), np.array([5, 3, 4]))
        >>> [some.tolist() for some in line.between(np.array([0]), np.array([4]), np.array([6]))]
        [[1], [1]]
        """
        if self.known is None:
            low = first.clip(self.least, self.most) - self.least + (first > self.most)
            high = last.clip(self.least, self.most) - self.least + (last >= self.least)
        else:
            low = np.searchsorted(self.known, first)
            high = np.searchsorted(self.known, last, side="right")
        begin = np.searchsorted(self.packed, _packed(groups, low, self.bits))
        end = np.searchsorted(self.packed, _packed(groups, high, self.bits))
        return begin, np.maximum(end - begin, 0)


def covered(rows: int, begin: Ints, lengths: Ints) -> NDArray[np.bool_]:
    """(m,) stretches of so many rows -> (rows,) which of them lie in any stretch.

    >>> covered(4, np.array([1, 2, 0]), np.array([1, 1, 0])).tolist()
    [False, True, True, False]
    """
    some = lengths > 0
    opened = np.bincount(begin[some], minlength=rows + 1)
    closed = np.bincount(begin[some] + lengths[some], minlength=rows + 1)
    return np.cumsum(opened - closed)[:rows] > 0


def _packed(groups: Ints, offsets: Ints, bits: int) -> Words:
    return groups.astype(np.uint64) << np.uint64(bits) | offsets.astype(np.uint64)
