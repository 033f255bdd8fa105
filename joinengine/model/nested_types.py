"""Types of columns that may be inside others: fields of structs, items of lists, values of maps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def holds(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type, or one inside it, passes a test.

    >>> holds(pa.list_(pa.struct([("x", pa.binary())])), is_bytes)
    True
    """
    return test(kind) or any(holds(kind.field(n).type, test) for n in range(kind.num_fields))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are bytes, and not texts."""
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(is_kind(kind) for is_kind in tests)


def is_variant(kind: pa.DataType) -> bool:
    """Whether a type is the struct of bytes in which Spark hands variants over."""
    return bool(pa.types.is_struct(kind)) and any(b"variant" in (f.metadata or {}) for f in kind)


def with_null_parts(kind: pa.DataType) -> pa.DataType:
    """The type whose parts may all be NULL, except the keys of maps.

    >>> with_null_parts(pa.struct([pa.field("x", pa.int8(), nullable=False)]))
    StructType(struct<x: int8>)
    """

    def part(field: pa.Field) -> pa.Field:
        return field.with_type(with_null_parts(field.type)).with_nullable(True)

    if pa.types.is_struct(kind):
        return pa.struct(map(part, kind))
    if pa.types.is_list(kind):
        return pa.list_(part(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(part(kind.key_field).with_nullable(False), part(kind.item_field))
    return kind


def with_items(column: pa.ListArray, items: pa.Array, kind: pa.DataType) -> pa.ListArray:
    """The lists of `column` with other items, of which there are as many as in `column.flatten()`.

    `kind`: the type of these lists.
    """
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ends = pa.array(np.r_[0, np.cumsum(lengths)], pa.int32())
    return pa.ListArray.from_arrays(ends, items, type=kind, mask=column.is_null())
