"""From values that are JSON objects to columns: the lines of one text, which Arrow reads at once.

Each value must begin with { and end with }, and there must be as many rows as values. So none has
more or less than a row: what is open at the end of a line would go on with {, which nothing inside
JSON does there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj


class Refused(Exception):
    """Some of the values cannot be decoded; why."""


def objects(values: Sequence[Any], payload: pa.Schema) -> pa.Table:
    """The objects that the values are, one row each, with these fields."""
    if None in values:
        raise Refused("it has no value: it is a tombstone")
    text = b"\n".join(values)
    if not _are_braced(values, text):
        lines = [value.strip() for value in values]
        text = b"\n".join(lines)
        if not _are_braced(lines, text):
            raise Refused("it is no JSON object")
    if not text.isascii():
        text.decode()  # Arrow does not look whether it is UTF-8
    table = pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=as_json(payload) if payload.names else NOTHING,
            unexpected_field_behavior="ignore",
        ),
    )
    if table.num_rows != len(values):
        raise Refused(f"it holds {table.num_rows} objects")
    if not payload.names:
        return table
    columns = [table[field.name].cast(field.type) for field in payload]
    return pa.Table.from_arrays(columns, schema=payload)


def _are_braced(lines: Sequence[bytes], text: bytes) -> bool:
    """Whether each line of a text begins with { and ends with }."""
    lengths = np.fromiter(map(len, lines), np.int64, len(lines))
    if not lengths.all():
        return False
    letters = np.frombuffer(text, np.uint8)
    ends = np.cumsum(lengths + 1) - 1
    first, last = letters[ends - lengths], letters[ends - 1]
    return bool((first == ord("{")).all() and (last == ord("}")).all())


#: Where no column is asked for, rows are to be counted all the same.
NOTHING = pa.schema([("", pa.string())])


def as_json(payload: pa.Schema) -> pa.Schema:
    """The types as which Arrow reads them from JSON: it takes dates for numbers."""
    kinds = [
        (field.name, pa.string() if pa.types.is_date(field.type) else field.type)
        for field in payload
    ]
    return pa.schema(kinds)
