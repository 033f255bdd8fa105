"""Changes that cancel each other: a row that came and went again.

Law: of the rows of a group as many that came are left out as that went, so that the sum of their
changes stays the same.
Cost: a hash of all columns, one sort, and one comparison of each row with the one before it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words, hash_columns
from joinengine.kernels.probing import Ints

Bools = NDArray[np.bool_]


def alike(rows: pa.RecordBatch, *parts: Ints | Words) -> Ints:
    """(n,) rows -> the number of the group of each: equal in all columns, and in all of `parts`.

    Rows that are equal may be in several groups, if others share their hash; others never share
    one. NaN equals nothing.
    """
    keys = (hash_columns(rows.columns), *parts[::-1])
    order = np.lexsort(keys)
    ours, before = order[1:], order[:-1]
    same = np.ones(len(ours), bool)
    for key in keys:
        same &= key[ours] == key[before]
    for column in rows.columns:
        one, other = column.take(pa.array(ours)), column.take(pa.array(before))
        both_null = pc.and_(one.is_null(), other.is_null())
        equal = pc.or_(pc.fill_null(pc.equal(one, other), fill_value=False), both_null)
        same &= equal.to_numpy(zero_copy_only=False)
    groups = np.zeros(rows.num_rows, np.int64)
    groups[ours] = np.cumsum(~same)
    return groups


def cancelling(groups: Ints, changes: Ints) -> Bools:
    """(n,) which of the rows cancel each other; `changes`: +1 and -1, all others stay.

    >>> cancelling(np.array([0, 0, 1, 0]), np.array([1, -1, 1, 1])).tolist()
    [True, True, False, False]
    """
    signs = (changes == 1, changes == -1)
    both = np.minimum(*(np.bincount(groups[sign], minlength=len(groups)) for sign in signs))
    found = np.zeros(len(groups), bool)
    for sign in signs:
        rows = np.flatnonzero(sign)
        rows = rows[np.argsort(groups[rows], kind="stable")]
        ours = groups[rows]
        firsts = np.searchsorted(ours, ours)
        found[rows] = np.arange(len(rows)) - firsts < both[ours]
    return found
