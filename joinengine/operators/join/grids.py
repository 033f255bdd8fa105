"""Evaluates predicates on rectangles of candidate pairs: neighbouring stored by arrived tuples.

Why: tuples of a key that are neighbours in time meet nearly the same arrived tuples. So a predicate
is evaluated on a rectangle, some stored tuples by a stretch of arrived ones. It reads the values of
each tuple once, and pairs are not listed one by one. A list takes 12 ns a pair and more, and the
tasks of one machine compete for its memory.

Law: the pairs found are those that meet and fulfil the predicate.
Cost: 2 ns a pair, and some 20 us a rectangle; at most SPARE of its pairs are outside the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from joinengine.kernels.bands import Bools
from joinengine.kernels.probing import Ints
from joinengine.model.conditions import Predicate
from joinengine.model.keys import Side
from joinengine.predicates.theta import Grid, Sided, columns_of

#: The most pairs of a rectangle, and the most arrived rows: so its arrays stay in the CPU cache.
CELLS, WIDTH = 1 << 17, 1 << 13
#: With fewer pairs than this, a rectangle costs more than a list of pairs.
FEW = 1 << 12
#: The most that pairs that do not meet may make up of a rectangle; half of it is the target.
SPARE = 0.4


@dataclass(frozen=True)
class Line:
    """Rows of a batch of `side`, in an order in which other tuples meet stretches of them.

    `groups`: the group of the tally that counts the pairs of each row; None: the tally knows it.
    """

    predicate: Predicate | None
    side: Side
    columns: pa.RecordBatch
    rows: Ints
    groups: Ints | None = None

    @cached_property
    def asked(self) -> Sided | None:
        """The rows as the predicate reads them; None: it must be evaluated pair by pair."""
        if self.predicate is None:
            return None
        return columns_of(self.predicate, self.side, self.columns, self.rows)


class Blocks(NamedTuple):
    """Blocks of rows: the rows first[i]:last[i] meet nothing outside low[i]:high[i]."""

    first: Ints
    last: Ints
    low: Ints
    high: Ints


def blocks_of(groups: Ints, begin: Ints, lengths: Ints) -> tuple[Blocks, Bools]:
    """(rows,) row i meets begin[i]:begin[i] + lengths[i] -> blocks; and (rows,) which are in none.

    `groups` (rows,): the rows of one group are adjacent, and meet nearly the same rows.

    >>> one = np.full(4, 3000)
    >>> blocks, others = blocks_of(np.array([0, 0, 1, 1]), np.array([0, 9, 70, 9000]), one)
    >>> [column.tolist() for column in blocks], others.tolist()
    ([[0], [2], [0], [3009]], [False, False, True, True])
    """
    rows = np.arange(len(groups))
    heads = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    sizes = np.diff(heads, append=len(groups))
    mean = np.add.reduceat(lengths, heads) // sizes
    # Rows of a divided key are further apart in time, so their stretches shift more per row.
    centres = 2 * begin + lengths
    shift = np.abs(centres[heads + sizes - 1] - centres[heads]) / (2 * sizes)
    per = np.minimum(CELLS // mean.clip(1, WIDTH), SPARE / 2 * mean / np.maximum(shift, 1e-9))
    per = np.maximum(per.astype(np.int64), 1)
    ranks = rows - np.repeat(heads, sizes)
    first = np.flatnonzero(ranks % np.repeat(per, sizes) == 0)
    last = np.append(first[1:], len(groups))
    low = np.minimum.reduceat(begin, first)
    high = np.maximum.reduceat(begin + lengths, first)
    cells, meeting = (last - first) * (high - low), np.add.reduceat(lengths, first)
    good = (cells >= FEW) & (meeting >= (1 - SPARE) * cells)
    return Blocks(*(column[good] for column in (first, last, low, high))), ~np.repeat(
        good, last - first
    )


class Found(NamedTuple):
    """(n,) pairs: rows of blocks, and the places that they meet."""

    rows: Ints
    met: Ints


def find(grid: Grid, blocks: Blocks, begin: Ints, lengths: Ints, limit: int) -> Iterator[Found]:
    """The pairs of blocks that meet and fulfil the predicate, about `limit` at a time."""
    kept, places, size = list[Ints](), list[tuple[int, int, int]](), 0
    for first, last, low, high in zip(*(column.tolist() for column in blocks), strict=True):
        for left in range(low, high, WIDTH):
            right = min(left + WIDTH, high)
            hits = grid.where(slice(first, last), slice(left, right))
            if len(hits):
                kept.append(hits)
                places.append((first, left, right - left))
                size += len(hits)
            if size >= limit:
                yield _meeting(kept, places, begin, lengths)
                kept, places, size = [], [], 0
    if kept:
        yield _meeting(kept, places, begin, lengths)


def _meeting(
    kept: list[Ints], places: list[tuple[int, int, int]], begin: Ints, lengths: Ints
) -> Found:
    """The pairs that meet, of pairs numbered within rectangles (`kept`) at `places`."""
    sizes = [len(hits) for hits in kept]
    first, left, width = np.repeat(np.array(places).T, sizes, axis=1)
    rows, met = np.divmod(np.concatenate(kept), width)
    rows, met = rows + first, met + left
    distance = met - begin[rows]
    meets = (distance >= 0) & (distance < lengths[rows])
    return Found(rows[meets], met[meets])
