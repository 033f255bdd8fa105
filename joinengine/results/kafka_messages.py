"""Turns rows of results into messages of Kafka: keys, values and the rest, a chunk at a time.

There are two shapes: a whole row as one JSON object or one Avro record, or columns with Spark's
names for the parts of a message. Arrow, DuckDB and NumPy turn columns into bytes. Python holds one
object for each message, since Kafka's client takes one at a time.

JSON: `joinengine.results.json_objects`.
Avro: `joinengine.kernels.avro_encoding` has the types. With a registry, the number of the schema
precedes a record.
Cost: about 0.7 us a row of four columns, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import pyarrow as pa

from joinengine.kernels.avro_encoding import record_type, records
from joinengine.model.errors import InvalidRequest
from joinengine.model.nested_types import holds, is_bytes, is_variant
from joinengine.results.json_objects import objects_of


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            *(pa.types.is_string, pa.types.is_large_string),
            *(pa.types.is_binary, pa.types.is_large_binary),
        )
    )


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _holds(kind: pa.DataType) -> bool:
    """Whether a type is that of headers, as Spark reads them."""
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = [kind.value_type.field(n) for n in range(kind.value_type.num_fields)]
    return [f.name for f in fields] == ["key", "value"] and all(_is_text(f.type) for f in fields)


def _has_no_json(kind: pa.DataType) -> bool:
    """Whether values of a type would be texts that nobody reads back: intervals and variants."""
    return pa.types.is_duration(kind) or pa.types.is_interval(kind) or is_variant(kind)


#: The types of the columns of a message, with Spark's names for these.
_TEXT = "text or bytes"
_COLUMNS: dict[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "key": (_TEXT, _is_text),
    "value": (_TEXT, _is_text),
    "topic": ("text", _is_string),
    "partition": ("a 32-bit number", pa.types.is_int32),
    "headers": ("a list of structs of a text `key` and bytes `value`", _holds),
}


class Value(StrEnum):
    """The kind of a message's value."""

    JSON = "json"
    AVRO = "avro"
    COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class Shape:
    """How a row becomes a message.

    `topic`: of all messages; None: the column `topic` names it. `key`: the key column, for values
    that are whole rows; None: messages have no key. `headers`: whether the column `headers` is
    sent. `schema_id`: the number of the Avro schema in a registry; None: no registry has it.
    """

    value: Value
    topic: str | None = None
    key: str | None = None
    headers: bool = True
    schema_id: int | None = None


class Messages(NamedTuple):
    """Messages as columns, all of one length; None: no message has this part."""

    values: list[Any]
    keys: list[Any] | None = None
    topics: list[Any] | None = None
    partitions: list[Any] | None = None
    headers: list[Any] | None = None


def chosen_value(schema: pa.Schema) -> Value:
    """The default kind: columns of a message if there are no other columns, else whole rows."""
    names = set(schema.names)
    return Value.COLUMNS if "value" in names and names <= _COLUMNS.keys() else Value.JSON


def check_schema(schema: pa.Schema, shape: Shape) -> None:
    """Raise InvalidRequest if rows of a schema cannot become messages of a shape."""
    types = dict(zip(schema.names, schema.types, strict=True))
    if shape.value is Value.COLUMNS:
        if "value" not in types:
            raise InvalidRequest(
                "value: 'columns' needs a column 'value' of text or bytes, and the results have "
                f"the columns {', '.join(types)}; give .option('value', 'json')"
            )
        for name, kind in types.items():
            words, fits = _COLUMNS.get(name, ("", lambda kind: False))
            if not words:
                raise InvalidRequest(
                    f"value: 'columns' has no use for the column {name!r}: a message has "
                    f"{', '.join(_COLUMNS)}; leave the column out, or give .option('value', 'json')"
                )
            if not fits(kind):
                raise InvalidRequest(
                    f"value: column {name!r} of a message is {words}, and it is {kind}; cast it"
                )
    elif shape.key is not None and shape.key not in types:
        raise InvalidRequest(
            f"key: the results have no column {shape.key!r}; choose one of {', '.join(types)}"
        )
    elif shape.key is not None and pa.types.is_nested(types[shape.key]):
        raise InvalidRequest(
            f"key: column {shape.key!r} is {types[shape.key]}, and the key of a message is one "
            "value as text; choose another column, or one of its fields with withColumn"
        )
    if shape.value is Value.JSON:
        for field in schema:
            if holds(field.type, _has_no_json):
                raise InvalidRequest(
                    f"value: 'json' has no form for column {field.name!r}, which has a length of "
                    "time or a variant; compute a number or a text of it, or leave it out"
                )
    if shape.value is Value.AVRO:
        avro_schema(schema)
    if shape.topic is None and (shape.value is not Value.COLUMNS or "topic" not in types):
        raise InvalidRequest("kafka: topic is missing; give .option('topic', name)")


def avro_schema(schema: pa.Schema) -> str:
    """The Avro schema of whole rows, as JSON. Raises InvalidRequest for types that Avro lacks."""
    try:
        return json.dumps(record_type(schema, "result"))
    except TypeError as error:
        raise InvalidRequest(
            f"value: 'avro' cannot hold the results: {error}; rename or cast the column, or leave "
            "it out"
        ) from None


def messages(rows: pa.RecordBatch, shape: Shape) -> Messages:
    """(n,) rows -> n messages, in their order."""
    if shape.value is not Value.COLUMNS:
        keys = None if shape.key is None else _bytes(rows.column(shape.key)).to_pylist()
        values = objects_of(rows) if shape.value is Value.JSON else _avro(rows, shape.schema_id)
        return Messages(values.to_pylist(), keys)
    names = rows.schema.names

    def column(name: str) -> pa.Array | None:
        return rows.column(name) if name in names else None

    headers = column("headers") if shape.headers else None
    return Messages(
        _bytes(rows.column("value")).to_pylist(),
        *(None if (array := column("key")) is None else _bytes(array).to_pylist(),),
        *(None if shape.topic or (array := column("topic")) is None else array.to_pylist(),),
        *(None if (array := column("partition")) is None else array.to_pylist(),),
        None if headers is None else _headers(headers.to_pylist()),
    )


def _headers(rows: Sequence[Any]) -> list[Any]:
    """Headers as pairs, for the client. Raises InvalidRequest for a header without a key."""
    if any(pair is None or pair["key"] is None for row in rows for pair in row or ()):
        raise InvalidRequest(
            "headers: a header in column 'headers' is NULL or has no key; leave it out of the list"
        )
    return [[tuple(pair.values()) for pair in row] if row else None for row in rows]


def _bytes(column: pa.Array) -> pa.Array:
    """Texts and bytes as bytes; values of any other type as the bytes of their texts."""
    if is_bytes(column.type):
        return column
    return column.cast(pa.string()).cast(pa.binary())


def _avro(rows: pa.RecordBatch, schema_id: int | None) -> pa.Array:
    """(n,) rows -> n records as bytes."""
    header = b"" if schema_id is None else b"\0" + schema_id.to_bytes(4)
    return records(rows.columns, rows.num_rows, header)
