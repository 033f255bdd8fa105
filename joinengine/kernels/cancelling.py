"""Adds up the changes of equal rows, so that changes that cancel each other disappear.

A change says how many equal rows come or, if below 0, go.

Law: of each group of equal rows, one row is left with the sum of their changes, or none if it is 0.
Cost: a hash of all columns, one sort, and one comparison of each row with the previous row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words, hash_columns
from joinengine.kernels.probing import Ints

Bools = NDArray[np.bool_]
#: The words of a change data feed, as Delta and Spark write them.
WORDS = {"insert": 1, "update_preimage": -1, "update_postimage": 1, "delete": -1}
#: A group whose absolute changes have a greater sum stays as it is: sums have 64 bits.
_MOST = float(1 << 62)


def numbers_of_changes(column: pa.Array) -> pa.Int64Array:
    """(n,) integers, or words of a change data feed -> (n,) changes; other words are 0.

    >>> numbers_of_changes(pa.array(["delete", "insert", "upsert", None])).to_pylist()
    [-1, 1, 0, None]
    """
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    words, numbers = pa.array([*WORDS], column.type), pa.array([*WORDS.values()], pa.int64())
    numbers_met = pc.fill_null(numbers.take(pc.index_in(column, words)), 0)
    return pc.if_else(column.is_null(), pa.scalar(None, pa.int64()), numbers_met)


def alike(rows: pa.RecordBatch, *parts: Ints | Words) -> Ints:
    """(n,) rows -> (n,) group numbers; rows of a group are equal in all columns and all `parts`.

    Equal rows may be in several groups, if unequal rows share their hash. NaN equals nothing.
    """
    keys = (hash_columns(rows.columns), *parts[::-1])
    order = np.lexsort(keys)
    ours, before = order[1:], order[:-1]
    same = np.ones(len(ours), bool)
    for key in keys:
        same &= key[ours] == key[before]
    for column in rows.columns:
        values, values_before = column.take(pa.array(ours)), column.take(pa.array(before))
        both_null = pc.and_(values.is_null(), values_before.is_null())
        equal = pc.or_(pc.fill_null(pc.equal(values, values_before), fill_value=False), both_null)
        same &= equal.to_numpy(zero_copy_only=False)
    groups = np.zeros(rows.num_rows, np.int64)
    groups[ours] = np.cumsum(~same)
    return groups


def added_up(groups: Ints, changes: Ints) -> tuple[Bools, Ints]:
    """(n,) groups, (n,) changes -> (n,) which rows are left, and (n,) changes, valid for these.

    >>> kept, sums = added_up(np.array([0, 1, 0, 2, 2]), np.array([2, 1, -1, 1, -1]))
    >>> kept.tolist(), sums.tolist()
    ([True, True, False, False, False], [1, 1, -1, 0, -1])
    """
    order = np.argsort(groups, kind="stable")
    ours = groups[order]
    starts = np.flatnonzero(np.diff(ours, prepend=-1))
    kept, sums = np.zeros(len(groups), bool), changes.copy()
    firsts = order[starts]
    sums[firsts] = np.add.reduceat(changes[order], starts) if len(starts) else 0
    kept[firsts] = sums[firsts] != 0
    sizes = np.bincount(groups, weights=np.abs(changes.astype(float)))
    great = sizes[groups] >= _MOST
    return kept | great, np.where(great, changes, sums)
