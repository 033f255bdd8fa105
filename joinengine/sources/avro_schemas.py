"""Reads schemas of Avro: the columns of a record, and the values of a reader's defaults.

A type is *plain* without its logical type: instants are numbers, decimals are bytes. Avro resolves
the schemas of writer and reader only by plain types (specification, Schema Resolution). The
reader's schema then gives the logical type of a plain value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from joinengine.kernels.avro_decoding import INSTANTS
from joinengine.model.errors import InvalidRequest, StoreUnreachable
from joinengine.model.nested_types import with_items
from joinengine.model.texts import in_a_line
from joinengine.world.schema_registry import NoSuchSchema, Registry

_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
    "null": pa.null(),
}
_LOGICAL = {
    "date": pa.date32(),
    "uuid": pa.string(),
    **{name: kind for name, (kind, _) in INSTANTS.items()},
}
#: The context for decimals, with enough digits that none is rounded.
_EXACT = Context(prec=100)


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
    """The reader's schema as JSON: the given one, or the newest of the topic's values."""
    if schema is None and registry is not None:
        path = f"subjects/{topic}-value/versions/latest"
        try:
            return with_references(registry.ask(path), registry)
        except NoSuchSchema as error:
            raise InvalidRequest(
                f"schema registry {registry.url} has no schema of {topic}-value ({error}); give "
                "schema=, or correct schema.registry.url"
            ) from None
        except StoreUnreachable as error:
            raise InvalidRequest(str(error)) from None
    if not isinstance(schema, (str, Mapping)):
        raise InvalidRequest(
            "schema: value='avro' needs an Avro schema, as JSON text or a dict, or the option "
            "schema.registry.url"
        )
    return schema if isinstance(schema, str) else json.dumps(schema)


def with_references(answer: Mapping[str, Any], registry: Registry, patience_s: float = 0.0) -> str:
    """The schema of a registry's answer, with the schemas to which it refers in place.

    Raises the errors of `Registry.ask`.
    """
    others, answers, text = dict[str, Any](), [answer], str(answer["schema"])
    while answers:
        for reference in answers.pop().get("references") or ():
            if reference["name"] in others:
                continue
            path = f"subjects/{reference['subject']}/versions/{reference['version']}"
            answers.append(registry.ask(path, patience_s=patience_s))
            others[reference["name"]] = json.loads(answers[-1]["schema"])
    return json.dumps(_filled(json.loads(text), others, "")) if others else text


def _filled(node: Any, others: dict[str, Any], space: str) -> Any:
    """A schema with each of `others` at its first mention; removes these from `others`."""
    if isinstance(node, str):
        name = next((name for name in (node, f"{space}.{node}") if name in others), None)
        return node if name is None else _filled(others.pop(name), others, "")
    if isinstance(node, list):
        return [_filled(branch, others, space) for branch in node]
    if not isinstance(node, dict):
        return node
    inside = node.get("namespace") or str(node.get("name", "")).rpartition(".")[0] or space
    filled = dict(node)
    for key in ("type", "items", "values"):
        if key in node:
            filled[key] = _filled(node[key], others, inside)
    if "fields" in node:
        filled["fields"] = [_filled(part, others, inside) for part in node["fields"]]
    return filled


def columns_of(text: str, names: Sequence[str] | None = None) -> pa.Schema:
    """The columns of an Avro record; `names`: only these; None: all.

    Raises InvalidRequest if it is not a record of known types, or lacks one of `names`.
    """
    try:
        parsed = expanded(text)
        if not isinstance(parsed, dict) or not parsed.get("fields"):
            raise TypeError("it is no record with fields")
        fields = {field["name"]: field["type"] for field in parsed["fields"]}
        return pa.schema([(name, _named_type(name, fields[name])) for name in names or fields])
    except InvalidRequest:
        raise
    except Exception as error:
        raise InvalidRequest(
            f"schema: this is not an Avro schema whose columns joinengine reads "
            f"({in_a_line(error)}); give a record of plain fields, records and arrays"
        ) from None


def _named_type(name: str, kind: Any) -> pa.DataType:
    try:
        return type_of(kind)
    except TypeError as error:
        raise TypeError(f"field {name!r} is {error}") from None


def type_of(kind: Any) -> pa.DataType:
    """The column type of an Avro type. Raises TypeError, with the type, if it is not supported."""
    if isinstance(kind, list):
        others = [branch for branch in kind if branch != "null"]
        if len(others) != 1:
            raise TypeError(f"a union of {len(others)} types")
        return type_of(others[0])
    if isinstance(kind, str):
        if kind not in _PLAIN:
            raise TypeError(f"a {kind}" if kind == "map" else f"{kind}, which is inside itself")
        return _PLAIN[kind]
    logical = kind.get("logicalType")
    if kind["type"] == "record":
        fields = [(field["name"], field["type"]) for field in kind["fields"]]
        return pa.struct([(name, _named_type(name, inner)) for name, inner in fields])
    if kind["type"] == "array":
        return pa.list_(type_of(kind["items"]))
    if logical in ("time-millis", "time-micros", "duration"):
        raise TypeError(f"a {logical}")
    if logical == "decimal":
        return pa.decimal128(kind["precision"], kind.get("scale", 0))
    return _LOGICAL[logical] if logical in _LOGICAL else type_of(kind["type"])


def as_logical(column: pa.Array, kind: Any) -> pa.Array:
    """A column of plain values -> the column of their logical type."""
    if isinstance(kind, list):
        return as_logical(column, next(branch for branch in kind if branch != "null"))
    if isinstance(kind, str):
        return column
    if kind["type"] == "record":
        fields = zip(column.flatten(), kind["fields"], strict=True)
        parts = {field["name"]: as_logical(part, field["type"]) for part, field in fields}
        return pa.StructArray.from_arrays(list(parts.values()), list(parts), mask=column.is_null())
    if kind["type"] == "array":
        items = as_logical(column.flatten(), kind["items"])
        return with_items(column, items, pa.list_(items.type))
    return _as_logical_value(column, kind)


def _as_logical_value(column: pa.Array, kind: Mapping[str, Any]) -> pa.Array:
    logical = kind.get("logicalType")
    if logical == "decimal":
        scale = -kind.get("scale", 0)
        numbers = [
            None
            if content is None
            else Decimal(int.from_bytes(content, "big", signed=True)).scaleb(scale, _EXACT)
            for content in column.to_pylist()
        ]
        return pa.array(numbers, type_of(kind))
    if logical in INSTANTS:
        instant, units = INSTANTS[logical]
        return pc.multiply_checked(column, pa.scalar(units, pa.int64())).cast(instant)
    return column.cast(pa.date32()) if logical == "date" else as_logical(column, kind["type"])


@lru_cache(maxsize=64)
def expanded(text: str) -> Any:
    """A schema with each type written out wherever it is named."""
    return library().schema.expand_schema(json.loads(text))


@lru_cache(maxsize=64)
def expanded_plain(text: str) -> Any:
    """A schema with each type written out, as plain types."""
    return library().schema.expand_schema(_plain(json.loads(text)))


@lru_cache(maxsize=64)
def parsed_plain(text: str) -> Any:
    """A schema of plain types for the library, with defaults as values of their types."""
    parsed = library().parse_schema(_plain(json.loads(text)))
    records = dict[str, Any]()
    _see(parsed, records)
    for record in records.values():
        for field in record.get("fields", ()):
            if "default" in field:
                field["default"] = _value_of(field["default"], field["type"], records)
    return parsed


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(part) for part in node]
    if not isinstance(node, dict):
        return node
    return {
        key: part if key == "default" else _plain(part)
        for key, part in node.items()
        if key != "logicalType"
    }


def _see(kind: Any, named: dict[str, Any]) -> None:
    """Add the named types in `kind` to `named`."""
    if isinstance(kind, list):
        for branch in kind:
            _see(branch, named)
    elif isinstance(kind, dict):
        if "name" in kind and kind["type"] in ("record", "error", "enum", "fixed"):
            named[kind["name"]] = kind
        for inner in (*(field["type"] for field in kind.get("fields", ())), kind["type"]):
            _see(inner, named)
        _see(kind.get("items", kind.get("values")), named)


def _value_of(default: Any, kind: Any, named: Mapping[str, Any]) -> Any:
    """The value of a default in JSON (specification, Complex Types: Records)."""
    if isinstance(kind, str) and kind in named:
        kind = named[kind]
    if isinstance(kind, list):
        others = [branch for branch in kind if branch != "null"]
        is_plain = default is None or len(others) != 1
        return default if is_plain else _value_of(default, others[0], named)
    base = kind if isinstance(kind, str) else kind["type"]
    if base in ("bytes", "fixed") and isinstance(default, str):
        return default.encode("latin-1")
    if base == "record" and isinstance(default, Mapping):
        return {
            field["name"]: _value_of(
                default.get(field["name"], field.get("default")), field["type"], named
            )
            for field in kind["fields"]
        }
    if base == "array" and isinstance(default, list):
        return [_value_of(item, kind["items"], named) for item in default]
    return default
