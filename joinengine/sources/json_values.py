"""Reads values that are JSON objects into columns: as the lines of one text, by Arrow at once.

Each value must begin with { and end with }, and there must be as many rows as values. So each value
is exactly one row: a value that is open at the end of its line would continue with the next line's
{, which is not valid JSON there.

As Spark and Kafka Connect write them, bytes are texts of base64, and floating-point numbers may be
the texts "NaN", "Infinity" and "-Infinity". Instants with more digits are cut to microseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from joinengine.model.nested_types import holds, is_bytes, with_items
from joinengine.sources.schemas import cast


class Refused(Exception):
    """Some of the values cannot be decoded; why."""


def objects(values: Sequence[Any], payload: pa.Schema) -> pa.Table:
    """Values that are objects -> one row each, with the fields of `payload`. Raises Refused."""
    if None in values:
        raise Refused("it has no value: it is a tombstone")
    text = b"\n".join(values)
    if not _are_braced(values, text):
        lines = [value.strip() for value in values]
        text = b"\n".join(lines)
        if not _are_braced(lines, text):
            raise Refused("it is no JSON object")
    if not text.isascii():
        text.decode()  # Arrow does not check that it is UTF-8
    try:
        table = _read(text, payload)
    except pa.ArrowInvalid as error:  # so rare forms cost nothing unless they occur
        table = _read_again(text, payload, error)
    if table.num_rows != len(values):
        raise Refused(f"it holds {table.num_rows} objects")
    if not payload.names:
        return table
    columns = [from_json(table[field.name].chunk(0), field.type) for field in payload]
    return pa.Table.from_arrays(columns, schema=payload)


def _read_again(text: bytes, payload: pa.Schema, error: pa.ArrowInvalid) -> pa.Table:
    """Reads a text that Arrow refuses, with numbers given as texts, or finer instants, allowed.

    Raises `error` if this does not help.
    """
    mended = _with_bare_numbers(text, payload)
    fine = pa.schema([field.with_type(_in_nanoseconds(field.type)) for field in payload])
    for again, columns in ((mended, payload), (mended, fine)):
        if (again, columns) == (text, payload):
            continue
        try:
            table = _read(again, columns)
        except pa.ArrowInvalid:
            continue
        if columns is payload:
            return table
        plain = as_json(payload)
        arrays = [cast(table[field.name].chunk(0), field.type) for field in plain]
        return pa.Table.from_arrays(arrays, schema=plain)
    raise error


def _in_nanoseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_nanoseconds(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_nanoseconds(kind.value_type)))
    return kind


def _read(text: bytes, payload: pa.Schema) -> pa.Table:
    return pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=as_json(payload) if payload.names else NOTHING,
            unexpected_field_behavior="ignore",
        ),
    )


def _are_braced(lines: Sequence[bytes], text: bytes) -> bool:
    """Whether each line of a text begins with { and ends with }."""
    lengths = np.fromiter(map(len, lines), np.int64, len(lines))
    if not lengths.all():
        return False
    letters = np.frombuffer(text, np.uint8)
    ends = np.cumsum(lengths + 1) - 1
    first, last = letters[ends - lengths], letters[ends - 1]
    return bool((first == ord("{")).all() and (last == ord("}")).all())


#: Read in place of no columns, so that rows are still counted.
NOTHING = pa.schema([("", pa.string())])


def as_json(payload: pa.Schema) -> pa.Schema:
    """The types as which Arrow reads JSON: texts in place of dates and bytes, for example."""
    return pa.schema([field.with_type(_as_read(field.type)) for field in payload])


def from_json(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column that was read as `as_json` says -> the column of type `kind`. Raises Refused."""
    if is_bytes(kind):
        return _bytes_of(column).cast(kind)
    if not holds(kind, is_bytes):
        return column.cast(kind)
    if pa.types.is_struct(kind):
        parts = zip(column.flatten(), kind, strict=True)
        columns = [from_json(part, field.type) for part, field in parts]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=column.is_null())
    return with_items(column, from_json(column.flatten(), kind.value_type), kind)


def _as_read(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date(kind) or is_bytes(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_read(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_read(kind.value_type)))
    return kind


def _bytes_of(texts: pa.Array) -> pa.Array:
    """Texts of base64 -> their bytes, by DuckDB."""
    import duckdb  # noqa: PLC0415 # most values hold no bytes

    with duckdb.connect() as database:
        database.register("texts", pa.table({"text": texts}))
        try:
            decoded = database.sql("SELECT from_base64(text) AS b FROM texts").to_arrow_table()
        except duckdb.ConversionException as error:
            raise Refused(f"its bytes are not base64: {error}") from None
    return decoded["b"].combine_chunks()


def _with_bare_numbers(text: bytes, payload: pa.Schema) -> bytes:
    """The text with NaN in place of "NaN" in floating-point fields, as Arrow reads it.

    Fields whose name other fields share stay as they are: texts of these may be "NaN".
    """
    fields = list(_fields_of(payload))
    floats = {field.name for field in fields if pa.types.is_floating(field.type)}
    floats -= {field.name for field in fields if not pa.types.is_floating(field.type)}
    if not floats:
        return text
    names = (re.escape(json.dumps(name, ensure_ascii=False).encode()) for name in sorted(floats))
    field = rb"((?:" + b"|".join(names) + rb")\s*:\s*)"
    return re.sub(field + rb'"(NaN|-?Infinity)"', rb"\1\2", text)


def _fields_of(fields: Iterable[pa.Field]) -> Iterator[pa.Field]:
    """The fields, and those inside them."""
    for field in fields:
        yield field
        yield from _fields_of(field.type.field(n) for n in range(field.type.num_fields))
