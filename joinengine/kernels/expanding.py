"""Turns "needle i meets rows lower[i]:lower[i] + counts[i]" into pairs, a chunk at a time.

Why: one hot key may have 10^8 pairs in a batch. They leave in chunks of bounded size, so memory
depends on the chunk and not on the number of matches.
Cost: about 4 ns a pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.probing import Hits, Ints, Needles, expand_ranges


def rows_of_hits(hits: Hits, needles: Needles) -> tuple[Ints, Ints, Ints]:
    """Hits by key -> hits by probing row: (rows, lower, counts), key after key."""
    first = needles.starts[hits.needles]
    sizes = needles.starts[hits.needles + 1] - first
    return (
        expand_ranges(first, sizes),
        np.repeat(hits.lower, sizes),
        np.repeat(hits.counts, sizes),
    )


_Row = TypeVar("_Row", bound=np.signedinteger[Any])


def expand_pairs(
    rows: NDArray[_Row], lower: Ints, counts: Ints, limit: int
) -> Iterator[tuple[NDArray[_Row], Ints]]:
    """(n,) rows, row i with partners from lower[i], counts[i] many -> chunks of <= `limit` pairs.

    >>> chunks = expand_pairs(np.array([7, 9]), np.array([0, 4]), np.array([3, 1]), limit=2)
    >>> [(a.tolist(), b.tolist()) for a, b in chunks]
    [([7, 7], [0, 1]), ([7, 9], [2, 4])]
    """
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, limit):
        stop = min(start + limit, total)
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop)) + 1
        part, base = counts[first:last].copy(), lower[first:last].copy()
        skipped = start - int(ends[first] - counts[first])
        part[0] -= skipped
        base[0] += skipped
        part[-1] -= ends[last - 1] - stop
        yield np.repeat(rows[first:last], part), expand_ranges(base, part)
