"""Decodes envelopes of Debezium: the row of a database before and after each of its changes.

An envelope has the fields `op`, `before` and `after`, and others that are not read. It is an object
of JSON, with or without its schema beside it, or a record of Avro.

Law: the changes of a topic, added up by row, are the table. So a change without the row that goes
is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinengine.model.query import CHANGE
from joinengine.sources.json_values import NOTHING, Refused, as_json, from_json, objects
from joinengine.sources.kafka_avro import read_avro
from joinengine.world.schema_registry import Registry

#: Values of `op` by which a row comes or goes: c insert, r existing row, u update, d delete.
_COMES, _GOES = ("c", "r", "u"), ("u", "d")
ENVELOPE = ("op", "before", "after")


def rows_inserted(values: Sequence[Any], payload: pa.Schema) -> pa.Table:
    """The rows that envelopes of JSON insert. Raises Refused for other changes."""
    ops, _, after = _envelopes(values, payload)
    others = pc.unique(ops.filter(pc.invert(pc.is_in(ops.fill_null(""), pa.array(["c", "r"])))))
    if len(others):
        raise Refused(
            f"its op is {others[0].as_py()!r}, and only inserts, c and r, are rows; to read "
            f"updates and deletes too, give kafka_stream(.., changes=True)"
        )
    if after.null_count:
        raise Refused("its field after is NULL")
    return _table(after, payload)


def changes_of_json(values: Sequence[Any], payload: pa.Schema) -> tuple[pa.Table, list[int]]:
    """The rows that come and go by envelopes of JSON, and the number of rows of each envelope."""
    there = [value for value in values if value is not None]
    row = pa.schema([field for field in payload if field.name != CHANGE])
    envelopes = _envelopes(there, row) if there else None
    return _changes(values, envelopes, payload)


def changes_of_avro(
    values: Sequence[Any],
    payload: pa.Schema,
    whole: pa.Schema,
    text: str,
    registry: Registry | None,
) -> tuple[pa.Table, list[int]]:
    """As `changes_of_json`, for envelopes that are records of Avro; `text`: the reader's schema.

    `whole`: all columns of the row; `payload`: the columns to return.
    """
    there = [value for value in values if value is not None]
    if not there:
        return _changes(values, None, payload)
    kind = pa.struct([field for field in whole if field.name != CHANGE])
    asked = pa.schema(dict(zip(ENVELOPE, (pa.string(), kind, kind), strict=True)))
    ops, before, after = read_avro(there, asked, text, registry).combine_chunks().columns
    parts = tuple(column.combine_chunks() for column in (ops, before, after))
    return _changes(values, (parts[0], parts[1], parts[2]), payload)


def _envelopes(values: Sequence[Any], row: pa.Schema) -> tuple[pa.Array, pa.Array, pa.Array]:
    """(n,) ops, and (n,) rows before and after, of envelopes with or without their schema."""
    kind = pa.struct(as_json(row) if row.names else NOTHING)
    fields = [pa.field("op", pa.string()), *(pa.field(name, kind) for name in ENVELOPE[1:])]
    read = objects(values, pa.schema([*fields, pa.field("payload", pa.struct(fields))]))
    bare, wrapped = read.combine_chunks().to_batches()[0].columns[:-1], read["payload"]
    inner = wrapped.combine_chunks().flatten()
    ops, before, after = (pc.coalesce(*both) for both in zip(bare, inner, strict=True))
    return ops, before, after


def _changes(
    values: Sequence[Any], envelopes: tuple[pa.Array, pa.Array, pa.Array] | None, payload: pa.Schema
) -> tuple[pa.Table, list[int]]:
    """The rows that come and go, and the number of rows of each envelope; a tombstone has none.

    Within an envelope, rows that go come first. Raises Refused for an unknown `op`, and for a
    missing row.
    """
    if envelopes is None:
        return payload.empty_table(), [0] * len(values)
    ops, before, after = envelopes
    comes, goes = (
        pc.is_in(ops, pa.array(some)).to_numpy(zero_copy_only=False) for some in (_COMES, _GOES)
    )
    if not (comes | goes).all():
        other = ops[int(np.argmin(comes | goes))].as_py()
        raise Refused(f"its op is {other!r}, which changes no row that it tells: not c, r, u or d")
    for name, has, rows in (("after", comes, after), ("before", goes, before)):
        if (has & rows.is_null().to_numpy(zero_copy_only=False)).any():
            more = (
                ", so nobody knows which row goes: let the database log whole rows (PostgreSQL: "
                "alter table .. replica identity full; MySQL: binlog_row_image=full)"
            )
            raise Refused(f"its field {name} is NULL{more if name == 'before' else ''}")
    numbers = np.concatenate([np.flatnonzero(goes), np.flatnonzero(comes)])
    signs = np.repeat([-1, 1], [goes.sum(), comes.sum()])
    order = np.lexsort((signs, numbers))
    rows = pa.concat_arrays([before.filter(pa.array(goes)), after.filter(pa.array(comes))])
    signs_shown = pa.array(signs[order].astype(np.int8))
    table = _table(rows.take(pa.array(order)), payload, signs_shown)
    counts = np.zeros(len(values), np.int64)
    counts[[value is not None for value in values]] = comes.astype(np.int64) + goes
    return table, counts.tolist()


def _table(rows: pa.StructArray, payload: pa.Schema, signs: pa.Array | None = None) -> pa.Table:
    """The rows as a table with the columns of `payload`; `signs`: their changes."""
    if not payload.names:
        return pa.table({"": rows})
    parts = {field.name: column for field, column in zip(rows.type, rows.flatten(), strict=True)}
    if signs is not None:
        parts[CHANGE] = signs
    columns = [from_json(parts[field.name], field.type) for field in payload]
    return pa.Table.from_arrays(columns, schema=payload)
