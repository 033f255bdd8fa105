"""Under which hash a tuple is stored, and which hashes it probes.

For an equality both are the hash of the key columns. For a band a tuple is stored under one cell
and probes a few; for any other predicate all tuples share a key, and every stored one is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from joinengine.kernels.hashing import Words, any_null, hash_columns
from joinengine.kernels.probing import Ints
from joinengine.model.conditions import Distance
from joinengine.model.keys import Side


class Probed(NamedTuple):
    """One of the hashes that tuples probe: (n,) hashes, their cells, and who has such a hash.

    Two cells may share a hash, so what is found is compared with the cell. None: no cells; all.
    """

    hashes: Words
    cells: Ints | None = None
    some: Bools | None = None


@dataclass(frozen=True, slots=True)
class Keying:
    """The key columns of both sides, and the distance where the join is a band.

    `groups`: keys name groups, of which NULL is one.
    """

    keys: tuple[tuple[str, ...], tuple[str, ...]]
    distance: Distance | None = None
    groups: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether a tuple probes what it is stored under."""
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
        """(n,) the tuples that match nothing: NULL or NaN where a value is needed; None: none."""
        if self.groups:
            return None
        missing = any_null([batch.column(name) for name in self.needed(side)])
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
        return hash_columns([batch.column(name) for name in self.keys[side]])
