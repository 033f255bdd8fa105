"""Types of columns that may be inside others: fields of structs, items of lists, values of maps."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa


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
