"""Makes the entries for files in the log of a Delta table: partition, size and statistics.

Why statistics: a reader with a filter skips files whose values are out of range.
Law: the values of a file lie within its statistics. An uncertain bound is left out: for example,
Parquet leaves NaN out of its bounds, but Delta orders NaN above all numbers.
Cost: the footer of each file is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from joinengine.results.folders import NOTHING
from joinengine.world.storage import Storage, StoredFile

#: The most characters of a text in statistics. A longer text is cut as a lower bound, and left out
#: as an upper bound.
_TEXT = 64
#: Bytes at the end of a file that are read first; most footers are shorter.
_TAIL = 1 << 16
_MAGIC = b"PAR1"


def footer(storage: Storage, name: str, size_bytes: int) -> pq.FileMetaData:
    """The metadata of a Parquet file; only its end is read."""
    tail = storage.get_ranges(name, [(max(0, size_bytes - _TAIL), size_bytes)])[0].to_pybytes()
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if length > len(tail):
        tail = storage.get_ranges(name, [(size_bytes - length, size_bytes)])[0].to_pybytes()
    return pq.read_metadata(pa.BufferReader(_MAGIC + tail[-length:]))


def partition_values(staged: str, schema: pa.Schema) -> dict[str, str | None]:
    """Column -> value in Delta's text form, from the Hive folders in the name of a staged file.

    >>> partition_values("g1-x/k=a%2Fb/1.parquet", pa.schema([("k", pa.string())]))
    {'k': 'a/b'}
    """
    values = dict[str, str | None]()
    for folder in staged.split("/")[1:-1]:
        label, _, text = folder.partition("=")
        name = unquote(label)
        values[name] = None if text == NOTHING else _value(unquote(text), schema.field(name).type)
    return values


def _value(text: str, kind: pa.DataType) -> str:
    if not (pa.types.is_timestamp(kind) and kind.tz is not None):
        return text
    moment, _, fraction = text.partition(".")
    return f"{moment.replace(' ', 'T')}.{fraction:0<6}Z"


def statistics(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """The statistics of a file: its rows, and the bounds and NULL counts of each plain column."""
    least, most = dict[str, Any](), dict[str, Any]()
    nulls = dict[str, int]()
    for number in range(metadata.num_columns):
        name = metadata.schema.column(number).path
        if name not in schema.names or pa.types.is_nested(schema.field(name).type):
            continue
        chunks = [
            metadata.row_group(n).column(number).statistics for n in range(metadata.num_row_groups)
        ]
        if any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[name] = sum(chunk.null_count for chunk in chunks)
        bounded = [chunk for chunk in chunks if chunk.has_min_max]
        # A chunk without bounds holds only NULL, or values that Parquet does not order.
        if not bounded or any(chunk.num_values and not chunk.has_min_max for chunk in chunks):
            continue
        try:
            low = _bound(min(chunk.min for chunk in bounded), is_upper=False)
            high = _bound(max(chunk.max for chunk in bounded), is_upper=True)
        except (OverflowError, ValueError):  # a date or an instant beyond Python's range
            continue
        least |= {} if low is None else {name: low}
        most |= {} if high is None else {name: high}
    return {
        "numRecords": metadata.num_rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": nulls,
    }


def _bound(value: Any, *, is_upper: bool) -> Any:
    """A bound as a JSON value; None: there is none.

    >>> _bound("x" * 100, is_upper=True), _bound(7, is_upper=True), _bound(1.5, is_upper=True)
    (None, 7, None)
    """
    if isinstance(value, bool | float | bytes):
        return None
    if isinstance(value, int | Decimal):
        return value
    if isinstance(value, str):
        if len(value) <= _TEXT:
            return value
        return None if is_upper else value[:_TEXT]
    if hasattr(value, "tzinfo"):  # an instant, or a time without a zone
        zone = "" if value.tzinfo is None else "Z"
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
    return value.isoformat() if hasattr(value, "isoformat") else None


def add_action(
    name: str, stored: StoredFile, facts: Mapping[str, Any], schema: pa.Schema, now_s: float
) -> Any:
    """The log entry that adds a file; `facts`: its statistics."""
    from deltalake.transaction import AddAction  # noqa: PLC0415 # an extra

    return AddAction(
        path=name,
        size=stored.size_bytes,
        partition_values=partition_values(stored.name, schema),
        modification_time=int(now_s * 1000),
        data_change=True,
        stats=_json(facts),
    )


def _json(value: Any) -> str:
    """JSON in which decimals are numbers with all their digits.

    >>> _json({"most": {"price": Decimal("1.50"), "name": "x"}})
    '{"most":{"price":1.50,"name":"x"}}'
    """
    if isinstance(value, dict):
        parts = (f"{json.dumps(key)}:{_json(inner)}" for key, inner in value.items())
        return "{" + ",".join(parts) + "}"
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value)
