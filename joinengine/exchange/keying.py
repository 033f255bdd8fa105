"""Computes the hash under which a tuple is stored, and the hashes that it probes.

Under an equality, a tuple is stored under the hash of its key columns, and probes that hash. Under
a band, it is stored under the hash of one cell, and probes the hashes of a few cells. Under any
other predicate, all tuples share one hash, so every stored tuple at an instance is a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from joinengine.kernels.bands import (
    Bools,
    mix_cells,
    most_cells,
    numbers_of,
    own_cells,
    probed_cells,
)
from joinengine.kernels.hashing import Words, any_null, hash_columns, scaled
from joinengine.kernels.probing import Ints
from joinengine.model.conditions import Distance
from joinengine.model.keys import Side


class Probed(NamedTuple):
    """One hash that each of n tuples probes, with its cell; all arrays are (n,).

    `cells`: two cells may share a hash, so it is compared with the cells of the tuples found; None:
    no band. `some`: which tuples probe a hash here; None: all do.
    """

    hashes: Words
    cells: Ints | None = None
    some: Bools | None = None


def are_distinct(probed: Sequence[Probed]) -> bool:
    """Whether no tuple probes one hash twice, through two of its cells."""
    for cells, others in combinations(probed, 2):
        same = cells.hashes == others.hashes
        for some in (cells.some, others.some):
            if some is not None:
                same &= some
        if same.any():
            return False
    return True


def scales_of(keys: Sequence[pa.Field]) -> tuple[int | None, ...]:
    """The decimal places with which `keys` are compared; empty: all are compared as they are.

    >>> scales_of([pa.field("a", pa.int64()), pa.field("b", pa.decimal128(9, 2))])
    (None, 2)
    """
    kinds = [field.type for field in keys]
    scales = tuple(kind.scale if pa.types.is_decimal(kind) else None for kind in kinds)
    return () if all(scale is None for scale in scales) else scales


@dataclass(frozen=True, slots=True)
class Keying:
    """The key columns of all sides, and, for a band, its distance.

    `groups`: keys name aggregation groups, and NULL is a group. `scales`: for each key, the decimal
    places with which decimals and integers are compared; None: as they are. `required`: per side,
    further columns without which a tuple matches nothing.
    """

    keys: tuple[tuple[str, ...], ...]
    distance: Distance | None = None
    groups: bool = False
    scales: tuple[int | None, ...] = ()
    required: tuple[tuple[str, ...], ...] = ((), ())

    @property
    def is_plain(self) -> bool:
        """Whether a tuple probes the hash that it is stored under."""
        return self.distance is None or not self.distance.is_bounded

    @property
    def probes(self) -> int:
        """How many hashes a tuple probes at most."""
        return 1 if self.distance is None else most_cells(self.distance)

    def needed(self, side: Side) -> Sequence[str]:
        """The columns without which a tuple matches nothing."""
        band = () if self.distance is None else (self.distance.column(side),)
        return (*self.keys[side], *band)

    def unusable(self, side: Side, batch: pa.RecordBatch) -> Bools | None:
        """(n,) which tuples match nothing: a needed value is NULL or NaN; None: each may match."""
        if self.groups:
            return None
        names = (*self.needed(side), *self.required[side])
        missing = any_null([batch.column(name) for name in names])
        if self.distance is None or not self.distance.floating:
            return missing
        column = batch.column(self.distance.column(side))
        not_numbers = np.isnan(numbers_of(self.distance, column.fill_null(0)))
        return not_numbers if missing is None else missing | not_numbers

    def stored(self, side: Side, batch: pa.RecordBatch) -> Words:
        """(n,) hashes to store under."""
        hashes = self._equal(side, batch)
        if self.distance is None or self.is_plain:
            return hashes
        return mix_cells(
            hashes,
            own_cells(
                self.distance, numbers_of(self.distance, batch.column(self.distance.column(side)))
            ),
        )

    def probed(self, side: Side, batch: pa.RecordBatch) -> list[Probed]:
        """The hashes to probe."""
        hashes = self._equal(side, batch)
        if self.distance is None or self.is_plain:
            return [Probed(hashes)]
        numbers = numbers_of(self.distance, batch.column(self.distance.column(side)))
        return [
            Probed(mix_cells(hashes, cells), cells, some)
            for cells, some in probed_cells(self.distance, side, numbers)
        ]

    def _equal(self, side: Side, batch: pa.RecordBatch) -> Words:
        if not self.keys[side]:
            return np.zeros(batch.num_rows, np.uint64)
        return self.hashes([batch.column(name) for name in self.keys[side]])

    def hashes(self, columns: Sequence[pa.Array]) -> Words:
        """(n,) key columns of any side -> (n,) hashes of the keys, without a band."""
        if self.scales:
            columns = [scaled(*both) for both in zip(columns, self.scales, strict=True)]
        return hash_columns(columns)
