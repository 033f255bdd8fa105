"""Values of messages that are Avro: with a schema that is given, or by the number of one.

A value by a registry begins with a zero byte and the number of the schema that its writer had, in
four bytes; the registry says which that is, and Avro's rules make the reader's columns of it.

Where a column is a field of the writer as it is, or one that the writer lacks, a chunk is read by
columns (joinengine.kernels.avro_decoding). Else `fastavro` reads it message by message. The schemas
decide, and no message does: so what can be read does not depend on what lies beside it.

Cost: some 0.3 us a message of three fields by columns, 5 us message by message; a schema is asked
for once in a process.
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.avro_decoding import INSTANTS, ROOM, Unserved, columns
from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import in_a_line, quoted
from joinengine.world.kafka_clients import PATIENCE_S

#: A zero, and the number of the writer's schema, the greatest byte first.
HEADER_BYTES = 5
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
    "uuid": pa.string(),
    **{name: kind for name, (kind, _) in INSTANTS.items()},
}


@dataclass(frozen=True)
class Registry:
    """A schema registry; `user`: name and password, with a colon between, or empty."""

    url: str
    user: str = field(default="", repr=False)

    def ask(self, path: str, sent: Any = None) -> Any:
        """The answer to a request, or to what is sent, both of JSON.

        Raises InvalidRequest, without the password, if none comes.
        """
        body = None if sent is None else json.dumps(sent).encode()
        request = urllib.request.Request(f"{self.url.rstrip('/')}/{path}", body)
        request.add_header("Content-Type", "application/json")
        if self.user:
            token = base64.b64encode(self.user.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.load(answer)
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"schema registry {self.url} does not serve {path} ({in_a_line(error)}); correct "
                "schema.registry.url or its user in options, give schema=, or make the schema "
                "agree with the topic's"
            ) from None


def registry_of(settings: dict[str, Any]) -> Registry | None:
    """The schema registry that settings name, which are then those of the client of Kafka.

    None: they name none. Raises InvalidRequest for what is no URL.
    """
    url = settings.pop("schema.registry.url", None)
    user = settings.pop("schema.registry.basic.auth.user.info", "")
    if url is not None and not str(url).startswith(("http://", "https://")):
        raise InvalidRequest(
            f"options: schema.registry.url: expected a URL of http or https; found {quoted(url)}"
        )
    return None if url is None else Registry(url, user)


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


def columns_of(text: str, names: Sequence[str] | None = None) -> pa.Schema:
    """The columns of an Avro record; `names`: some of them, None: all.

    Raises InvalidRequest for what is no record of known types, or lacks one of `names`.
    """
    try:
        parsed = _expanded(text)
        if not isinstance(parsed, dict) or not parsed.get("fields"):
            raise TypeError("it is no record with fields")
        fields = {field["name"]: field["type"] for field in parsed["fields"]}
        return pa.schema([(name, _type_of(fields[name])) for name in names or fields])
    except InvalidRequest:
        raise
    except Exception as error:
        raise InvalidRequest(
            f"schema: this is not an Avro schema whose columns joinengine reads "
            f"({in_a_line(error)}); give a record of plain fields, records and arrays"
        ) from None


def _type_of(kind: Any) -> pa.DataType:
    if isinstance(kind, list):
        others = [branch for branch in kind if branch != "null"]
        if len(others) != 1:
            raise TypeError(f"a union of {len(others)} types")
        return _type_of(others[0])
    if isinstance(kind, str):
        return _PLAIN[kind]
    logical = kind.get("logicalType")
    if kind["type"] == "record":
        return pa.struct([(field["name"], _type_of(field["type"])) for field in kind["fields"]])
    if kind["type"] == "array":
        return pa.list_(_type_of(kind["items"]))
    if logical in ("time-millis", "time-micros", "duration"):
        raise TypeError(f"a {logical}")
    if logical == "decimal":
        return pa.decimal128(kind["precision"], kind.get("scale", 0))
    return _LOGICAL[logical] if logical in _LOGICAL else _type_of(kind["type"])


@lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    return library().parse_schema(json.loads(text))


@lru_cache(maxsize=64)
def _expanded(text: str) -> Any:
    """A schema in which types stand where they are named again."""
    return library().schema.expand_schema(json.loads(text))


@lru_cache(maxsize=1024)
def _written(registry: Registry, number: int) -> str:
    return str(registry.ask(f"schemas/ids/{number}")["schema"])


def read_avro(
    values: Sequence[Any], payload: pa.Schema, text: str, registry: Registry | None
) -> pa.Table:
    """The records that the values are. Raises ValueError or what the library does for others."""
    if None in values:
        raise ValueError("it has no value: it is a tombstone")
    content, ends = b"".join((*values, ROOM)), np.cumsum(np.fromiter(map(len, values), np.int64))
    starts = np.concatenate([[0], ends[:-1]])
    if registry is None:
        return _read(content, starts, ends, text, text, payload)
    if (ends - starts < HEADER_BYTES).any():
        raise ValueError("it is shorter than the number of a schema")
    head = np.frombuffer(content, np.uint8)[starts[:, None] + np.arange(HEADER_BYTES)]
    if head[:, 0].any():
        raise ValueError("it does not begin with the number of a schema")
    numbers = np.ascontiguousarray(head[:, 1:]).view(">u4")[:, 0]
    parts, rows = list[pa.Table](), list[NDArray[np.int64]]()
    for number in np.unique(numbers):
        places = np.flatnonzero(numbers == number)
        writer = _written(registry, int(number))
        from_to = starts[places] + HEADER_BYTES, ends[places]
        parts.append(_read(content, *from_to, writer, text, payload))
        rows.append(places)
    table = pa.concat_tables(parts)
    return table if len(parts) == 1 else table.take(pa.array(np.argsort(np.concatenate(rows))))


def _read(
    content: bytes,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    writer: str,
    reader: str,
    payload: pa.Schema,
) -> pa.Table:
    """Records that one writer has written, by columns if the schemas allow it."""
    others = _constants(writer, reader, tuple(payload.names))
    if others is not None:
        with suppress(Unserved):
            by_name = columns(content, starts, ends, _expanded(writer), payload.names)
            for name, value in others.items():
                by_name[name] = pa.repeat(pa.scalar(value, payload.field(name).type), len(ends))
            arrays = [by_name[column.name].cast(column.type) for column in payload]
            return pa.Table.from_arrays(arrays, schema=payload)
    rows, schemas = list[dict[str, Any]](), (_parsed(writer), _parsed(reader))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        record = pa.BufferReader(content[start:end])
        rows.append(library().schemaless_reader(record, *schemas))
        if record.read(1):
            raise ValueError("there are bytes behind the record: it has another schema")
    return pa.Table.from_pylist(rows, schema=payload)


@lru_cache(maxsize=1024)
def _constants(writer: str, reader: str, names: tuple[str, ...]) -> dict[str, Any] | None:
    """The columns that the writer lacks, with the reader's defaults.

    None: a column is more than a field of the writer as it is, and only the library can say what.
    """
    theirs, ours = (
        {field["name"]: field["type"] for field in _expanded(text)["fields"]}
        for text in (writer, reader)
    )
    if '"aliases"' in reader or not all(
        _is_alike(theirs[name], ours[name]) for name in names if name in theirs
    ):
        return None
    if writer == reader:
        return {}
    zeros = pa.BufferReader(bytes(1 << 16))  # a record of any schema
    try:
        row = library().schemaless_reader(zeros, _parsed(writer), _parsed(reader))
    except Exception:  # the schemas do not fit, as the library will say of each message
        return None
    return {name: row[name] for name in names if name not in theirs}


def _is_alike(theirs: Any, ours: Any) -> bool:
    """Whether values of a writer's type are ours as they are; ours may also be NULL."""
    return bool(theirs == ours or (isinstance(ours, list) and theirs in ours))
