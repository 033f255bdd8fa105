"""A histogram by definition: ever coarser grids, until the values lie in few enough cells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

#: (lower, upper, number of values) of each bin, ascending.
Histogram = tuple[tuple[float, float, int], ...]


def in_bins(values: Sequence[float], most: int) -> Histogram:
    """The bins of finite values on the finest grid with at most `most` of them.

    >>> in_bins([1.0, 2.0, 3.0, 9.0], 2)
    ((0.0, 4.0, 3), (8.0, 12.0, 1))
    """
    exponent = max((math.frexp(v)[1] - 53 for v in values if v), default=-1074)
    exponent = max(exponent, -1074)
    while True:
        width = Fraction(2) ** exponent
        cells = Counter(math.floor(Fraction(value) / width) for value in values)
        if len(cells) <= most:
            return tuple(
                (float(at * width), float((at + 1) * width), n) for at, n in sorted(cells.items())
            )
        exponent += 1
