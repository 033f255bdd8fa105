"""The homes and backups of keys under a routing table, as arrays.

Cost: some array operations over the keys, however many keys the table lists.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints, expand_ranges
from joinengine.routing.base_functions import Backed, Base
from joinengine.routing.table import RoutingTable


def fragments_of(
    hashes: Words, table: RoutingTable, base: Base
) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """(K,) key hashes -> for each of their fragments: place of its key, its instance, its share.

    The fragments of a key are adjacent.
    """
    columns, (rows, places, others) = table.columns, _listed(hashes, table)
    counts = np.diff(columns.bounds)[rows]
    entries = expand_ranges(columns.bounds[rows], counts)
    return (
        np.concatenate([np.repeat(places, counts), others]),
        np.concatenate([columns.homes[entries], base.homes(hashes[others])]).astype(np.int64),
        np.concatenate([columns.shares[entries], np.ones(len(others))]),
    )


def backups_of(hashes: Words, table: RoutingTable, base: Base) -> tuple[Ints, Ints]:
    """(K,) key hashes -> for each of their backups, the place of its key, and its instance.

    The backups of a key are adjacent.
    """
    if not isinstance(base, Backed):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    plain = base.holders(hashes)[:, 1:].astype(np.int64)
    columns, (rows, places, others) = table.columns, _listed(hashes, table)
    counts = np.diff(columns.backup_bounds)[rows]
    listed = columns.backups[expand_ranges(columns.backup_bounds[rows], counts)]
    keys = np.concatenate([np.repeat(others, plain.shape[1]), np.repeat(places, counts)])
    return keys, np.concatenate([plain[others].ravel(), listed])


def _listed(hashes: Words, table: RoutingTable) -> tuple[Ints, Ints, Ints]:
    """Which of (K,) keys a table lists: rows in its columns, places in `hashes`, other places."""
    rows, places = table.columns.rows_in(hashes)
    others = np.ones(len(hashes), bool)
    others[places] = False
    return rows, places, np.flatnonzero(others)
