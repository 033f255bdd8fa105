"""Values of messages that are Avro: with a schema that is given, or by the number of one.

A value by a registry begins with a zero byte and the number of the schema that its writer had, in
four bytes; the registry says which that is, and Avro's rules make the reader's columns of it.

Cost: some 5 us a message of three fields; a schema is asked for once in a process.
"""

from __future__ import annotations

import base64
import json
import struct
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import in_a_line
from joinengine.world.kafka_clients import PATIENCE_S

_HEADER = struct.Struct(">bI")
_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "null": pa.null(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "uuid": pa.string(),
}


@dataclass(frozen=True)
class Registry:
    """A schema registry; `user`: name and password, with a colon between, or empty."""

    url: str
    user: str = field(default="", repr=False)

    def ask(self, path: str) -> Any:
        """The answer to a request. Raises InvalidRequest, without the password, if none comes."""
        request = urllib.request.Request(f"{self.url.rstrip('/')}/{path}")
        if self.user:
            token = base64.b64encode(self.user.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.load(answer)
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"schema registry {self.url} does not give {path} ({in_a_line(error)}); correct "
                "schema.registry.url or its user in options, or give schema="
            ) from None


def library() -> Any:
    """The package `fastavro`. Raises InvalidRequest if it is missing."""
    try:
        import fastavro  # noqa: PLC0415 # an extra
    except ImportError:
        raise InvalidRequest(
            "value='avro' needs the package fastavro; run: pip install 'joinengine[kafka]'"
        ) from None
    return fastavro


def schema_text(schema: Any, registry: Registry | None, topic: str) -> str:
    """The reader's schema as JSON: the one that is given, or the newest of the topic's values."""
    if schema is None and registry is not None:
        return str(registry.ask(f"subjects/{topic}-value/versions/latest")["schema"])
    if not isinstance(schema, (str, Mapping)):
        raise InvalidRequest(
            "schema: value='avro' needs an Avro schema, as JSON text or a dict, or the option "
            "schema.registry.url"
        )
    return schema if isinstance(schema, str) else json.dumps(schema)


def columns_of(text: str) -> pa.Schema:
    """The columns of an Avro record. Raises InvalidRequest for what is no record of known types."""
    try:
        parsed = library().parse_schema(json.loads(text))
        if not isinstance(parsed, dict) or not parsed.get("fields"):
            raise TypeError("it is no record with fields")
        return pa.schema([(one["name"], _type_of(one["type"])) for one in parsed["fields"]])
    except InvalidRequest:
        raise
    except Exception as error:
        raise InvalidRequest(
            f"schema: this is not an Avro schema whose columns joinengine reads "
            f"({in_a_line(error)}); give a record of plain fields, records and arrays"
        ) from None


def _type_of(kind: Any) -> pa.DataType:
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        if len(others) != 1:
            raise TypeError(f"a union of {len(others)} types")
        return _type_of(others[0])
    if isinstance(kind, str):
        return _PLAIN[kind]
    logical = kind.get("logicalType")
    if kind["type"] == "record":
        return pa.struct([(one["name"], _type_of(one["type"])) for one in kind["fields"]])
    if kind["type"] == "array":
        return pa.list_(_type_of(kind["items"]))
    if logical == "decimal":
        return pa.decimal128(kind["precision"], kind.get("scale", 0))
    return _LOGICAL[logical] if logical in _LOGICAL else _type_of(kind["type"])


@lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    return library().parse_schema(json.loads(text))


@lru_cache(maxsize=1024)
def _written(registry: Registry, number: int) -> Any:
    return _parsed(str(registry.ask(f"schemas/ids/{number}")["schema"]))


def read_avro(
    values: Sequence[Any], payload: pa.Schema, text: str, registry: Registry | None
) -> pa.Table:
    """The records that the values are. Raises ValueError or what the library does for others."""
    reader, decode = _parsed(text), library().schemaless_reader
    rows = list[dict[str, Any]]()
    for value in values:
        if value is None:
            raise ValueError("it has no value: it is a tombstone")
        content, writer = pa.BufferReader(value), reader
        if registry is not None:
            zero, number = _HEADER.unpack(content.read(_HEADER.size))
            if zero:
                raise ValueError("it does not begin with the number of a schema")
            writer = _written(registry, number)
        rows.append(decode(content, writer, reader))
        if content.read(1):
            raise ValueError("there are bytes behind the record: it has another schema")
    return pa.Table.from_pylist(rows, schema=payload)
