"""Measures the bytes of values without a fixed width, and cuts rows into stretches that fit.

Why: an Arrow column holds at most 2 GiB of text, and a task has limited memory. The mean of all
rows says nothing about the one row that goes into every result.
Cost: some 3 ns for each value asked for; other values are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinengine.kernels.probing import Ints, Rows
from joinengine.model.nested_types import is_bytes


def widths_at(column: pa.Array, rows: Rows) -> Ints | None:
    """(n,) rows -> (n,) bytes of the values of a column there; None: the column has a fixed width.

    For a list, each element counts as the mean of all elements; for a struct, only its fields.

    >>> widths_at(pa.array(["ab", None, ""]), np.array([0, 0, 2])).tolist()
    [2, 2, 0]
    """
    kind = column.type
    if pa.types.is_struct(kind):
        parts = [widths_at(field, rows) for field in column.flatten()]
        known = [part for part in parts if part is not None]
        return np.sum(known, axis=0) if known else None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_bytes(kind):
        return None if pa.types.is_fixed_size_binary(kind) else _lengths(column, rows)
    if pa.types.is_map(kind):
        inside = column.keys.nbytes + column.items.nbytes, len(column.keys)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inside = column.values.nbytes, len(column.values)
    else:
        return None
    widths: Ints = _lengths(column, rows) * max(inside[0] // max(inside[1], 1), 1)
    return widths


def content_bytes(column: pa.Array) -> int:
    """The bytes of the values of a column; they add up, however the column is cut into batches.

    A number counts 8 bytes, and so does a list in addition to its elements.

    >>> content_bytes(pa.array(["ab", None, "c"])), content_bytes(pa.array([[1, 2], []]))
    (3, 32)
    """
    kind = column.type
    if pa.types.is_struct(kind):
        return sum(map(content_bytes, column.flatten()))
    if pa.types.is_map(kind):
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        inside = (part.slice(first, last - first) for part in (column.keys, column.items))
        return 8 * len(column) + sum(map(content_bytes, inside))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 8 * len(column) + content_bytes(column.flatten())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_bytes(kind):
        return pc.sum(pc.binary_length(column)).as_py() or 0
    return 8 * len(column)


def fitting(widths: Sequence[Ints | None], rows: int, most_bytes: int) -> Iterator[slice]:
    """Per column (n,) bytes of each row, or None if they do not count -> stretches that fit.

    A stretch takes at most `most_bytes` plus those of its last row. `rows`: n.

    >>> [(part.start, part.stop) for part in fitting([np.array([4, 4, 1, 9]), None], 4, 5)]
    [(0, 2), (2, 4)]
    """
    known = [column for column in widths if column is not None]
    if sum(int(column.sum()) for column in known) <= most_bytes:
        yield slice(0, rows)
        return
    summed = np.sum(known, axis=0)
    # A stretch begins at each row before which the bytes pass a multiple of `most_bytes`.
    numbers = (np.cumsum(summed) - summed) // most_bytes
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    for start, end in pairwise([*starts.tolist(), rows]):
        yield slice(start, end)


def _lengths(column: pa.Array, rows: Rows) -> Ints:
    is_large = pa.types.is_large_list(column.type) or str(column.type).startswith("large_")
    ends = np.frombuffer(column.buffers()[1], np.int64 if is_large else np.int32)
    first = rows + column.offset
    lengths: Ints = (ends[first + 1] - ends[first]).astype(np.int64)
    return lengths
