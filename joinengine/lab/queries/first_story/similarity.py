"""The similarity of a set of terms to the sets before it.

Cost: for a stretch of tuples one matrix product of (tuples) x (tuples and their history) x (terms);
memory is bounded by the stretch and the history.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.probing import Ints, expand_ranges

#: Tuples that are compared together.
STRETCH = 128


def best_similarities(terms: Ints, starts: Ints, first: int, history: int) -> NDArray[np.float64]:
    """Sets in order -> the greatest cosine of each, from set `first` on, to the `history` before.

    Set i is terms[starts[i]:starts[i + 1]], distinct numbers. If no set comes before, 0.

    >>> best_similarities(np.array([1, 2, 2, 3, 9]), np.array([0, 2, 4, 5]), 1, 500).tolist()
    [0.5, 0.0]
    """
    n = len(starts) - 1
    best = np.zeros(n - first)
    for begin in range(first, n, STRETCH):
        end = min(begin + STRETCH, n)
        oldest = max(begin - history, 0)
        shared = _shared(terms, starts, oldest, begin, end)
        sizes = np.diff(starts[oldest : end + 1]).astype(np.float64)
        mine, theirs = np.arange(begin, end)[:, None], np.arange(oldest, end)[None, :]
        before = (theirs < mine) & (theirs >= mine - history)
        norms = np.sqrt(sizes[begin - oldest :, None] * sizes[None, :])
        with np.errstate(invalid="ignore", divide="ignore"):
            alike = np.where(before & (norms > 0), shared / norms, 0.0)
        best[begin - first : end - first] = alike.max(axis=1, initial=0.0)
    return best


def _shared(terms: Ints, starts: Ints, oldest: int, begin: int, end: int) -> NDArray[np.float64]:
    """(end - begin, end - oldest) how many terms each pair of sets shares."""
    some = terms[starts[oldest] : starts[end]]
    _, columns = np.unique(some, return_inverse=True)
    sizes = np.diff(starts[oldest : end + 1])
    present = np.zeros((end - oldest, int(columns.max(initial=-1)) + 1), np.float32)
    present[np.repeat(np.arange(end - oldest), sizes), columns] = 1.0
    return np.asarray(present[begin - oldest :] @ present.T, np.float64)


def take_lists(offsets: Ints, values: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """(n + 1,) offsets, (m,) values -> the values of the lists `rows`, and where each begins."""
    lower, sizes = offsets[rows], offsets[rows + 1] - offsets[rows]
    return values[expand_ranges(lower, sizes)], np.append(0, np.cumsum(sizes))
