"""Comparing values row by row: the equality of candidate pairs, and the event time of a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from joinengine.kernels.hashing import fixed_width, float_bits, scaled
from joinengine.kernels.probing import Ints, Rows

#: The event time of a row that has none.
EARLIEST = np.iinfo(np.int64).min


def equal_at(
    left: pa.Array, left_rows: Rows, right: pa.Array, right_rows: Rows
) -> NDArray[np.bool_]:
    """(n,) whether left[left_rows[i]] = right[right_rows[i]]; these rows must not hold NULL.

    Integers of different width compare by value; so do decimals of different scale, and decimals
    with integers. For floats, -0.0 equals 0.0, and all NaN are one value.
    """
    a, b = _as_integers(left), _as_integers(right)
    if a is not None and b is not None:
        return np.asarray(a[left_rows] == b[right_rows])
    values, other_values = left.take(pa.array(left_rows)), right.take(pa.array(right_rows))
    kinds = (left.type, right.type)
    if all(map(pa.types.is_floating, kinds)):
        return np.asarray(float_bits(values) == float_bits(other_values))
    if kinds[0] != kinds[1] and any(map(pa.types.is_decimal, kinds)):
        scale = max(getattr(kind, "scale", 0) for kind in kinds)
        values, other_values = scaled(values, scale), scaled(other_values, scale)
    same = pc.equal(values, other_values)
    return np.asarray(same.to_numpy(zero_copy_only=False), bool)


def latest_time(batch: pa.RecordBatch, columns: Sequence[str]) -> Ints:
    """(n,) the latest of the timestamp columns in each row, in microseconds.

    NULL counts as the earliest time, so an unmatched row of an outer join has the time of its side.
    """
    times = [_microseconds(batch.column(name)) for name in columns]
    return times[0] if len(times) == 1 else np.maximum.reduce(times)


def no_time(batch: pa.RecordBatch, columns: Sequence[str]) -> NDArray[np.bool_] | None:
    """(n,) whether all of the timestamp columns are NULL in a row; None: in no row."""
    times = [batch.column(name) for name in columns]
    if not all(column.null_count for column in times):
        return None
    nulls = [column.is_null().to_numpy(zero_copy_only=False) for column in times]
    return np.logical_and.reduce(nulls) if nulls else None


def _microseconds(column: pa.Array) -> Ints:
    times = fixed_width(column, np.dtype(np.int64))
    if not column.null_count:
        return times
    return np.where(column.is_null().to_numpy(zero_copy_only=False), EARLIEST, times)


def _as_integers(column: pa.Array) -> Ints | None:
    kind = column.type
    plain = pa.types.is_integer(kind) or pa.types.is_temporal(kind)
    return fixed_width(column, np.dtype(f"i{kind.bit_width // 8}")) if plain else None
