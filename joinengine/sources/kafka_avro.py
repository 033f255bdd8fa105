"""Decodes values of messages that are Avro, by a given schema or by the number of one.

With a registry, a value begins with a zero byte and the number of its writer's schema, in four
bytes. The registry has that schema, and Avro's rules convert its values to the reader's columns.

If each column is a field of the writer, unchanged, or one that the writer lacks, a chunk is read by
columns (`joinengine.kernels.avro_decoding`). Otherwise, `fastavro` reads it message by message.
Only the schemas decide this. So whether a message can be read does not depend on its neighbours.

Cost: some 0.3 us a message of three fields by columns, 5 us message by message; each process asks
for a schema once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.avro_decoding import INSTANTS, ROOM, Unserved, columns
from joinengine.model.texts import in_a_line
from joinengine.sources.avro_schemas import (
    as_logical,
    expanded,
    expanded_plain,
    library,
    parsed_plain,
    type_of,
    with_references,
)
from joinengine.sources.json_values import Refused
from joinengine.world.schema_registry import NoSuchSchema, Registry
from joinengine.world.world import MACHINE

#: Bytes of the header: a zero, and the big-endian number of the writer's schema.
HEADER_BYTES = 5
#: Seconds for which a registry may be away, as brokers may.
_PATIENCE_S = 60.0
#: Seconds in which it is not asked again for a missing schema, since many messages may name it; and
#: the most such schemas.
_MISSING_S, _MOST_MISSING = 5.0, 1024
_missing = dict[tuple[Registry, int], tuple[float, str]]()


@lru_cache(maxsize=1024)
def _known(registry: Registry, number: int) -> str:
    answer = registry.ask(f"schemas/ids/{number}", patience_s=_PATIENCE_S)
    return with_references(answer, registry, _PATIENCE_S)


def _written(registry: Registry, number: int) -> str:
    """The schema of a writer. Raises Refused if the registry has none with this number."""
    until_s, why = _missing.get((registry, number), (0.0, ""))
    if MACHINE.timer_s() >= until_s:
        try:
            return _known(registry, number)
        except NoSuchSchema as error:
            why = f"the schema registry has no schema {number}: {error}"
            if len(_missing) >= _MOST_MISSING:  # for example, numbers read from values of no Avro
                _missing.clear()
            _missing[registry, number] = MACHINE.timer_s() + _MISSING_S, why
    raise Refused(why)


def read_avro(
    values: Sequence[Any], payload: pa.Schema, text: str, registry: Registry | None
) -> pa.Table:
    """Values that are records -> their columns. Raises ValueError, or the library's errors."""
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
    """The columns of records of one writer, read by columns if the schemas allow it."""
    try:
        others = _constants(writer, reader, tuple(payload.names))
    except _of_schemas() as error:
        raise Refused(f"its schema cannot be read as the reader's: {in_a_line(error)}") from None
    if others is not None:
        with suppress(Unserved):
            by_name = columns(content, starts, ends, expanded(writer), payload.names)
            for name, value in others.items():
                by_name[name] = pa.repeat(value, len(ends))
            arrays = [by_name[column.name].cast(column.type) for column in payload]
            return pa.Table.from_arrays(arrays, schema=payload)
    kinds = _kinds(writer, reader)
    rows, schemas = list[dict[str, Any]](), (parsed_plain(writer), parsed_plain(reader))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        record = pa.BufferReader(content[start:end])
        try:
            rows.append(library().schemaless_reader(record, *schemas))
        except _of_schemas() as error:
            raise Refused(f"it does not fit the reader's schema: {in_a_line(error)}") from None
        if record.read(1):
            raise ValueError("there are bytes behind the record: it has another schema")
    arrays = [
        column.cast(payload.field(name).type)
        for name, column in _logical_columns(rows, reader, kinds, payload.names).items()
    ]
    return pa.Table.from_arrays(arrays, schema=payload)


def _logical_columns(
    rows: Sequence[dict[str, Any]], reader: str, kinds: Mapping[str, Any], names: Sequence[str]
) -> dict[str, pa.Array]:
    """The columns of rows of plain values that the library has read; `kinds`: their types."""
    plain = {field["name"]: field["type"] for field in expanded_plain(reader)["fields"]}
    columns_read = {
        name: pa.array([row[name] for row in rows], type_of(plain[name])) for name in names
    }
    return {name: as_logical(column, kinds[name]) for name, column in columns_read.items()}


@lru_cache(maxsize=1024)
def _kinds(writer: str, reader: str) -> dict[str, Any]:
    """Field of the reader -> its type, with instants in the writer's units.

    Raises Refused for decimals of other precision or scale, which do not match (specification,
    Schema Resolution).
    """
    made = _in_units_of(expanded(writer), expanded(reader), "")
    return {field["name"]: field["type"] for field in made["fields"]}


def _in_units_of(theirs: Any, ours: Any, where: str) -> Any:
    """The reader's type, with instants in the writer's units; `where`: its field."""
    theirs, mine = _single(theirs), _single(ours)
    if not (isinstance(theirs, Mapping) and isinstance(mine, Mapping)):
        return ours
    if mine["type"] == "record" == theirs["type"]:
        written = {field["name"]: field["type"] for field in theirs["fields"]}
        fields = list[dict[str, Any]]()
        for field in mine["fields"]:
            names = (name for name in (field["name"], *field.get("aliases", ())) if name in written)
            kind, name = field["type"], next(names, None)
            if name is not None:
                kind = _in_units_of(written[name], kind, f"{where}.{name}".lstrip("."))
            fields.append({**field, "type": kind})
        return _instead(ours, {**mine, "fields": fields})
    if mine["type"] == "array" == theirs["type"]:
        return _instead(
            ours, {**mine, "items": _in_units_of(theirs["items"], mine["items"], where)}
        )
    sent, wanted = theirs.get("logicalType"), mine.get("logicalType")
    if sent in INSTANTS and wanted in INSTANTS:
        return _instead(ours, {**mine, "logicalType": sent})
    if sent == wanted == "decimal" and type_of(theirs) != type_of(mine):
        raise Refused(
            f"it does not fit the reader's schema: {where} was written as a decimal of other "
            f"digits ({type_of(theirs)}, not {type_of(mine)})"
        )
    return ours


def _single(kind: Any) -> Any:
    """The other type of a union of NULL and one type; any other type unchanged."""
    others = [branch for branch in kind if branch != "null"] if isinstance(kind, list) else [kind]
    return others[0] if len(others) == 1 else kind


def _instead(ours: Any, kind: Any) -> Any:
    """`ours` with `kind` in place of the type that is not NULL."""
    if not isinstance(ours, list):
        return kind
    return [branch if branch == "null" else kind for branch in ours]


def _of_schemas() -> tuple[type[Exception], ...]:
    """The library's errors for schemas that do not fit or cannot be parsed."""
    avro = library()
    return (
        avro.read.SchemaResolutionError,
        avro.schema.SchemaParseException,
        avro.schema.UnknownType,
    )


@lru_cache(maxsize=1024)
def _constants(writer: str, reader: str, names: tuple[str, ...]) -> dict[str, pa.Scalar] | None:
    """The columns that the writer lacks, with the reader's defaults.

    None: a column differs from the writer's field, and only the library can convert it.
    """
    theirs, ours = (
        {field["name"]: field["type"] for field in expanded(text)["fields"]}
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
        row = library().schemaless_reader(zeros, parsed_plain(writer), parsed_plain(reader))
    except Exception:  # the schemas do not fit; the library reports that for each message
        return None
    lacking = [name for name in names if name not in theirs]
    defaults = _logical_columns([row], reader, _kinds(reader, reader), lacking)
    return {name: column[0] for name, column in defaults.items()}


def _is_alike(theirs: Any, ours: Any) -> bool:
    """Whether a writer's values are values of our type, unchanged; our type may allow NULL."""
    return bool(theirs == ours or (isinstance(ours, list) and theirs in ours))
