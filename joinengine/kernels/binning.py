"""Histograms of a bounded number of bins, which merge without loss.

The bins of a histogram are cells of one grid, whose width is a power of two and one of whose edges
is 0. Of the grids on which its values lie in at most B cells, a histogram has the finest. So it
follows from its values alone: in which order they came, and which of them were counted apart and
merged later, changes nothing. Ben-Haim and Tom-Tov's bins follow the density of values more
closely, but depend on the order and on the parts, as that of values from a hot key would here.

Law: the histogram of merged parts is the histogram of all their values. The number of values below
an edge is exact, and a bin is narrower than 2 R / (B - 1), where R is the distance of the extremes;
if there are at most B different values, bins tell them apart, up to 53 bits of the greatest.
Cost: one sort of the values.
Source: the use of mergeable histograms, Ben-Haim and Tom-Tov, JMLR 2010; the grid is ours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.probing import Ints

Floats = NDArray[np.float64]

#: The least number of bins: those below 0 and those from 0 are on no grid in one cell.
LEAST_BINS = 2
#: Values are below this, so that all edges are doubles.
BOUND = 2e307
#: The bits of a double's fraction, and the exponent of the least double above 0.
_BITS, _LEAST = 53, -1074
#: More than any distance of two cells on one side of 0.
_APART = 64


class Bins(NamedTuple):
    """Bins of histograms, by histogram and then ascending: `histograms` (m,) says whose each is.

    A bin holds `counts` (m,) values from `lowers` (m,) to below `uppers` (m,).
    """

    histograms: Ints
    lowers: Floats
    uppers: Floats
    counts: Ints


def bins_of(histograms: Ints, values: Floats, most: int) -> Bins:
    """(n,) values within BOUND, and the histogram of each, ascending -> `most` bins at most."""
    ones = np.ones(len(values), np.int64)
    return _binned(histograms, values, np.full(len(values), _LEAST), ones, most)


def merged(parts: Bins, most: int) -> Bins:
    """(n,) bins of several parts of each histogram -> at most `most` bins each."""
    exponents = np.frexp(parts.uppers - parts.lowers)[1].astype(np.int64) - 1
    return _binned(parts.histograms, parts.lowers, exponents, parts.counts, most)


def _binned(histograms: Ints, values: Floats, least: Ints, counts: Ints, most: int) -> Bins:
    """Values on grids that are at least 2^`least` (n,) wide, each `counts` (n,) times."""
    if not len(values):
        return Bins(histograms, values, values, counts)
    exponents = np.where(values == 0, _LEAST, np.frexp(values)[1].astype(np.int64) - _BITS)
    firsts = _changes(histograms)
    number = np.cumsum(firsts) - 1  # (n,) of the histogram, from 0
    starts = np.flatnonzero(firsts)
    finest = np.maximum.reduceat(np.maximum(exponents, least), starts)
    cells = np.floor(np.ldexp(values, -finest[number])).astype(np.int64)
    cells = np.where(values < 0, np.minimum(cells, -1), cells)  # a quotient may be too small
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
    """By how many powers of two each histogram needs a coarser grid to have at most `most` bins.

    Two neighbours are in one cell as soon as the grid is coarser by the bits in which they differ.
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
    """(n,) whether a value differs from the one before; the first does."""
    return np.concatenate([[True], values[1:] != values[:-1]])
