"""The routing table as columns, for code that looks at all of its keys in every batch.

Why: a table may hold 10^5 keys. A loop over them in Python takes a tenth of a second or more. Here
it runs once for each new table, not in every batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints, rows_among
from joinengine.model.keys import U_ONE, Mode, Placement


class Columns(NamedTuple):
    """K keys by ascending hash: `hashes`, `copied`, `split_sides` and `whole` are (K,).

    Key k has the homes `homes[bounds[k]:bounds[k + 1]]`, each once, in the order of their
    fragments; `shares` has their shares. Its backups are at
    `backups[backup_bounds[k]:backup_bounds[k + 1]]`. `grid_columns` (K,): cells in a row of the
    key's grid; 0: it has no grid.
    """

    hashes: Words
    copied: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    split_sides: Ints
    bounds: Ints
    homes: Ints
    shares: NDArray[np.float64]
    backup_bounds: Ints
    backups: Ints
    grid_columns: Ints

    @classmethod
    def of(cls, placements: Mapping[int, Placement]) -> Columns:
        """Key hash -> placement, as columns."""
        n = len(placements)
        hashes = np.fromiter(placements, np.uint64, n)
        order = np.argsort(hashes)
        unordered = list(placements.values())
        placed = [unordered[row] for row in order.tolist()]
        modes = list(map(attrgetter("mode"), placed))
        bounds, homes, shares = _homes(placed)
        backups = list(map(attrgetter("backups"), placed))
        return cls(
            hashes[order],
            np.array([mode is Mode.COPIED for mode in modes], bool),
            np.array([mode is Mode.WHOLE for mode in modes], bool),
            np.fromiter(map(attrgetter("split_side"), placed), np.int64, n),
            *(bounds, homes, shares),
            _bounds(np.fromiter(map(len, backups), np.int64, n)),
            np.fromiter(chain.from_iterable(backups), np.int64),
            np.array(
                [placement.columns if placement.mode is Mode.GRID else 0 for placement in placed],
                np.int64,
            ),
        )

    @property
    def plain(self) -> NDArray[np.bool_]:
        """(K,) which keys are whole and have no backup, as most keys are."""
        rows: NDArray[np.bool_] = self.whole & (np.diff(self.backup_bounds) == 0)
        return rows

    def rows_in(self, hashes: Words) -> tuple[Ints, Ints]:
        """The rows of the keys that are among (n,) ascending `hashes`, and their places there."""
        return rows_among(self.hashes, hashes)


def _homes(placed: list[Placement]) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """The homes of each key, and their shares; the shares of the fragments of a home add up."""
    fragments = list(map(attrgetter("fragments"), placed))
    counts = np.fromiter(map(len, fragments), np.int64, len(placed))
    flat = list(chain.from_iterable(fragments))
    instances, lower, upper = (
        np.fromiter(map(attrgetter(name), flat), np.int64, len(flat))
        for name in ("instance", "u_lower", "u_upper")
    )
    keys = np.repeat(np.arange(len(placed)), counts)
    width = int(instances.max(initial=0)) + 1
    _, first, at = np.unique(keys * width + instances, return_index=True, return_inverse=True)
    order = np.argsort(first)
    summed = np.bincount(at, upper - lower, minlength=len(first))[order]
    first = first[order]
    bounds = _bounds(np.bincount(keys[first], minlength=len(placed)))
    return bounds, instances[first], summed / U_ONE


def _bounds(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
