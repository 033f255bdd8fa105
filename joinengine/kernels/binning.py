"""Histograms of a bounded number of bins, which merge without loss.

The bins of a histogram are cells of one grid. Its width is a power of two, and one of its edges is
0. A histogram has the finest grid on which its values lie in at most B cells. So it depends only on
its values, not on their order, nor on which of them were counted apart and merged later.
Ben-Haim and Tom-Tov's bins follow the density of values more closely, but they depend on the order
and on the parts, and here a hot key is counted in parts.

Law: the histogram of merged parts is the histogram of all their values. The number of values below
an edge is exact, and a bin is narrower than 2 R / (B - 1), where R is the distance of the extremes.
If there are at most B different values, each has its own bin, up to 53 bits of the greatest.
Cost: one sort of the values.
Source: the use of mergeable histograms, Ben-Haim and Tom-Tov, JMLR 2010; the grid is ours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.probing import Ints

Floats = NDArray[np.float64]

#: The least number of bins: on no grid do values below 0 and values from 0 on share a cell.
LEAST_BINS = 2
#: Absolute values must be below this, so that all edges are doubles.
BOUND = 2e307
#: The bits of a double's fraction, and the exponent of the least double above 0.
_BITS, _LEAST = 53, -1074
#: More bits than any two cells on one side of 0 differ in.
_APART = 64


class Bins(NamedTuple):
    """m bins, by histogram and then ascending; `histograms` (m,) has the histogram of each.

    A bin holds `counts` (m,) values in [`lowers`, `uppers`) (m,).
    """

    histograms: Ints
    lowers: Floats
    uppers: Floats
    counts: Ints


def bins_of(histograms: Ints, values: Floats, most: int) -> Bins:
    """(n,) ascending histograms, (n,) their values within BOUND -> at most `most` bins for each."""
    ones = np.ones(len(values), np.int64)
    return _binned(histograms, values, np.full(len(values), _LEAST), ones, most)


def merged(parts: Bins, most: int) -> Bins:
    """(n,) bins of several parts of each histogram -> at most `most` bins each."""
    exponents = np.frexp(parts.uppers - parts.lowers)[1].astype(np.int64) - 1
    return _binned(parts.histograms, parts.lowers, exponents, parts.counts, most)


def _binned(histograms: Ints, values: Floats, least: Ints, counts: Ints, most: int) -> Bins:
    """Bins of (n,) values, each `counts` (n,) times, on grids at least 2^`least` (n,) wide."""
    if not len(values):
        return Bins(histograms, values, values, counts)
    exponents = np.where(values == 0, _LEAST, np.frexp(values)[1].astype(np.int64) - _BITS)
    firsts = _changes(histograms)
    number = np.cumsum(firsts) - 1  # (n,) number of the histogram, from 0
    starts = np.flatnonzero(firsts)
    finest = np.maximum.reduceat(np.maximum(exponents, least), starts)
    cells = np.floor(np.ldexp(values, -finest[number])).astype(np.int64)
    cells = np.where(values < 0, np.minimum(cells, -1), cells)  # a quotient may underflow to 0
    order = np.lexsort((cells, number))
    coarser = _coarser(number[order], cells[order], len(starts), most)
    cells = cells[order] >> coarser[number]
    begins = np.flatnonzero(firsts | _changes(cells))
    places, exponents = number[begins], (finest + coarser)[number[begins]]
    lowers = np.ldexp(cells[begins].astype(np.float64), exponents)
    uppers = np.ldexp((cells[begins] + 1).astype(np.float64), exponents)
    sums = np.add.reduceat(counts[order], begins)
    return Bins(histograms[starts][places], lowers, uppers, sums)


def _coarser(number: Ints, cells: Ints, histograms: int, most: int) -> Ints:
    """(histograms,) by how many powers of two each grid must be coarser for at most `most` bins.

    Two neighbours share a cell once the grid is coarser by the bits in which they differ.
    """
    alike = number[1:] == number[:-1]
    left, right, whose = cells[:-1][alike], cells[1:][alike], number[1:][alike]
    bits = np.frexp((left ^ right).astype(np.float64))[1].astype(np.int64)
    bits = np.where((left < 0) != (right < 0), _APART, bits)
    order = np.lexsort((-bits, whose))
    starts = np.searchsorted(whose, np.arange(histograms))
    ends = np.append(starts[1:], len(whose))
    at = starts + most - 1
    coarser = np.zeros(histograms, np.int64)
    many = at < ends
    coarser[many] = bits[order][at[many]]
    return coarser


def _changes(values: Ints) -> NDArray[np.bool_]:
    """(n,) whether a value differs from the previous value; True for the first."""
    return np.concatenate([[True], values[1:] != values[:-1]])
