"""Finds the tuples of a key that are close enough in event time, without looking at the others.

Why: the tuples of a key are stored in the order of u, because moves and exclusions search by u. If
the window is short beside the time that a batch spans, nearly all pairs of a hot key are outside
it. Comparing the times of all pairs would take time quadratic in the key's tuples, and find few.

How: the tuples of one side are sorted by group and time, in one array of packed numbers. Each tuple
of the other side asks for a stretch of that array, found by binary search. A *group* is what two
tuples must share: a key, or a cell of a band, at one instance.

Law: a stretch holds exactly the rows of the group whose times are between the bounds.
Cost: a sort of the n rows (40 ns a row), and 20 to 40 ns for each stretch if stretches are asked
for in the order of their bounds; in any other order, up to ten times as much.
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

    `packed` (n,): the group above `bits` bits of time. These hold the distance from `least`, or, if
    distances need too many bits, the rank among the distinct times `known`. `most`: the greatest
    time.
    """

    order: Ints
    packed: Words
    bits: int
    least: int
    most: int
    known: Ints | None

    @classmethod
    def of(cls, groups: Ints, times: Ints) -> Timeline:
        """(n,) groups (0 or more) and times of at least one row -> their timeline.

        >>> Timeline.of(np.array([0, 0, 1]), np.array([5, 3, 4])).order.tolist()
        [1, 0, 2]
        """
        least, most, known = int(times.min()), int(times.max()), None
        # The search for a time later than all ends at the greatest distance plus 1.
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
        """(m,) groups of the line and inclusive bounds of time -> (m,) stretches: begin and length.

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
    """(m,) stretches -> (rows,) which rows lie in any stretch.

    >>> covered(4, np.array([1, 2, 0]), np.array([1, 1, 0])).tolist()
    [False, True, True, False]
    """
    some = lengths > 0
    opened = np.bincount(begin[some], minlength=rows + 1)
    closed = np.bincount(begin[some] + lengths[some], minlength=rows + 1)
    return np.cumsum(opened - closed)[:rows] > 0


def _packed(groups: Ints, offsets: Ints, bits: int) -> Words:
    return groups.astype(np.uint64) << np.uint64(bits) | offsets.astype(np.uint64)
