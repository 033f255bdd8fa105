"""Finds the earliest event time of a Parquet file from the statistics in its footer."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

from joinengine.sources.schemas import is_list

#: Units of time, in microseconds.
_MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}


def least_time(metadata: Any, column: str) -> float | None:
    """The earliest time (us) of a timestamp column, from Parquet metadata; -inf: it has none.

    None: unknown, because the writer has left out statistics.
    """
    schema = metadata.schema.to_arrow_schema()
    at = schema.get_field_index(column)  # -1: no such column, or several
    if at < 0 or not pa.types.is_timestamp(schema.field(at).type):
        return -math.inf
    leaf = sum(_leaves(field.type) for field in list(schema)[:at])
    times = list[float]()
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        if not group.num_rows:
            continue
        statistics = group.column(leaf).statistics
        if statistics is None:
            return None
        if statistics.has_min_max:
            times.append(statistics.min_raw * _MICROSECONDS[schema.field(at).type.unit])
        elif statistics.null_count != group.num_rows:
            return None
    return min(times, default=-math.inf)


def _leaves(kind: Any) -> int:
    """How many columns of a Parquet file hold a field of this type."""
    if pa.types.is_struct(kind):
        return sum(_leaves(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    return _leaves(kind.value_type) if is_list(kind) else 1
