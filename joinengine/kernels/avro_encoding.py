"""Encodes columns as Avro records: each field of all rows at once, then the bytes are put in rows.

Every field, and every item of a list, may be NULL: its type is a union of NULL and one other type.

Law: an Avro reader finds in a record the values of its row.
Cost: some 0.15 us a field of a row, or an item of a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from joinengine.kernels.probing import Ints, expand_ranges

#: (n,) how many bytes each row has, and the bytes of all rows, row after row.
_Laid = tuple[Ints, NDArray[np.uint8]]
_NUMBER_BYTES = 10
#: The names of Arrow's types -> that of Avro, for types without a parameter.
_PLAIN = {
    "bool": "boolean",
    **dict.fromkeys(["int8", "int16", "int32", "uint8", "uint16"], "int"),
    **dict.fromkeys(["int64", "uint32"], "long"),
    "float": "float",
    "double": "double",
    **dict.fromkeys(["string", "large_string"], "string"),
    **dict.fromkeys(["binary", "large_binary"], "bytes"),
    "date32[day]": {"type": "int", "logicalType": "date"},
}


def record_type(schema: pa.Schema, name: str, known: set[str] | None = None) -> dict[str, Any]:
    """The Avro type of records with these columns.

    `known`: the record names already in use. Raises TypeError, naming the column, if Avro has no
    type for it.

    >>> record_type(pa.schema([("n", pa.int64())]), "result")["fields"]
    [{'name': 'n', 'type': ['null', 'long'], 'default': None}]
    """
    known = set() if known is None else known
    while name in known:
        name += "_"
    known.add(name)
    fields = [
        {"name": field.name, "type": ["null", _type_of(field, name, known)], "default": None}
        for field in schema
    ]
    return {"type": "record", "name": name, "fields": fields}


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        is_kind(kind) for is_kind in (types.is_list, types.is_large_list, types.is_fixed_size_list)
    )


def _type_of(field: pa.Field, above: str, known: set[str]) -> Any:
    kind = field.type
    if not (field.name.isidentifier() and field.name.isascii()):
        raise TypeError(f"column {field.name!r}: a name in Avro has letters, digits and _ alone")
    if pa.types.is_struct(kind):
        return record_type(pa.schema(list(kind)), f"{above}_{field.name}", known)
    if _is_list(kind):  # an item has no name of its own
        item = _type_of(field.with_type(kind.value_type), above, known)
        return {"type": "array", "items": ["null", item]}
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return {"type": "long", "logicalType": f"{'' if kind.tz else 'local-'}timestamp-micros"}
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        digits = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if str(kind) not in _PLAIN:
        raise TypeError(f"column {field.name!r} is {kind}")
    return _PLAIN[str(kind)]


def records(columns: Sequence[pa.Array], rows: int, header: bytes = b"") -> pa.Array:
    """(n,) columns of types that `record_type` takes -> (n,) records, each after `header`."""
    head = np.frombuffer(header * rows, np.uint8)
    sizes, content = _beside([(np.full(rows, len(header)), head), *map(_nullable, columns)], rows)
    ends = np.zeros(rows + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    parts = [None, pa.py_buffer(ends), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_binary(), rows, parts)


def _beside(parts: Sequence[_Laid], rows: int) -> _Laid:
    """Parts of n rows -> the rows, each with its parts one after another."""
    sizes = np.zeros(rows, np.int64) + sum(lengths for lengths, _ in parts)
    at = np.cumsum(sizes) - sizes
    content = np.empty(int(sizes.sum()), np.uint8)
    for lengths, part in parts:
        content[expand_ranges(at, lengths)] = part
        at = at + lengths
    return sizes, content


def _nullable(column: pa.Array) -> _Laid:
    """The values of a union with NULL: the number of the branch, 0 for NULL, and the value."""
    is_there = column.is_valid().to_numpy(zero_copy_only=False)
    lengths, content = _values(column.drop_null())
    sizes = np.zeros(len(column), np.int64)
    sizes[is_there] = lengths
    branch = np.where(is_there, np.uint8(2), np.uint8(0))
    return _beside([(np.ones(len(column), np.int64), branch), (sizes, content)], len(column))


def _values(column: pa.Array) -> _Laid:
    """The values of a column without NULL."""
    kind, rows = column.type, len(column)
    if not rows:
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    if pa.types.is_nested(kind):
        return _nested(column)
    if pa.types.is_decimal(kind):
        there = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, 16)
        content_there = there[column.offset : column.offset + rows, ::-1]
        return _beside(
            [_numbers(np.full(rows, 16)), (np.full(rows, 16), content_there.ravel())], rows
        )
    if str(kind) in ("string", "large_string", "binary", "large_binary"):
        texts = column.cast(pa.large_binary())
        _, offsets, content = texts.buffers()
        ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + rows + 1]
        content_there = np.frombuffer(content or b"", np.uint8)[ends[0] : ends[-1]]
        lengths = np.diff(ends)
        return _beside([_numbers(lengths), (lengths, content_there)], rows)
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us")).cast(pa.int64())
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind in "bf":
        return np.full(rows, values.itemsize), np.ascontiguousarray(values).view(np.uint8)
    return _numbers(values)


def _nested(column: pa.Array) -> _Laid:
    """Structs as their fields; lists as their length (unless 0), their items, and a final 0."""
    if pa.types.is_struct(column.type):
        return _beside([_nullable(child) for child in column.flatten()], len(column))
    counts = pc.list_value_length(column).to_numpy().astype(np.int64)
    ends = np.cumsum(counts)
    item_sizes, items = _nullable(column.flatten())
    item_ends = np.concatenate([[0], np.cumsum(item_sizes)])
    some = np.flatnonzero(counts)
    head_sizes = np.zeros(len(counts), np.int64)
    head_sizes[some], heads = _numbers(counts[some])
    stops = np.ones(len(counts), np.int64), np.zeros(len(counts), np.uint8)
    content = item_ends[ends] - item_ends[ends - counts], items
    return _beside([(head_sizes, heads), content, stops], len(counts))


def _numbers(values: NDArray[Any]) -> _Laid:
    """Integers: seven bits a byte; the eighth bit is set in all bytes but the last."""
    signed = values.astype(np.int64)
    folded = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    places = np.arange(_NUMBER_BYTES, dtype=np.uint64)
    groups = folded[:, None] >> (np.uint64(7) * places)
    is_used = (groups > 0) | (places == 0)
    has_more = np.zeros_like(is_used)
    has_more[:, :-1] = is_used[:, 1:]
    septets = groups & np.uint64(0x7F) | np.where(has_more, np.uint64(0x80), np.uint64(0))
    return is_used.sum(axis=1), septets[is_used].astype(np.uint8)
