"""From the values of messages to columns, a chunk at a time.

JSON: the values of a chunk are the lines of one text, which Arrow reads at once. Each value must
begin with { and end with }, and there must be as many rows as values. So none has more or less than
a row: what is open at the end of a line would go on with {, which nothing inside JSON does there.

What cannot be decoded is found by halves.

Law: a tuple holds the value of one message, and all of it; a message that has no tuple is an error,
by its topic, partition and offset, or is told as skipped.
Cost: JSON some 1.2 us a message of five fields; a message that is refused costs log2(chunk) reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from joinengine.model.errors import UnreadableMessage
from joinengine.model.skipped import Skipped
from joinengine.model.texts import in_a_line
from joinengine.sources.schemas import cast

#: The columns that `include` adds.
INCLUDED: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}
#: Of so many messages a task names each that it skips; it counts the others.
MOST_NAMED = 100


class ValueFormat(StrEnum):
    """How values are written."""

    JSON = "json"
    AVRO = "avro"
    ARROW = "arrow"
    RAW = "raw"


class OnError(StrEnum):
    """What happens at a message that cannot be decoded."""

    FAIL = "fail"
    SKIP = "skip"


class Refused(Exception):
    """Some of the values cannot be decoded; why."""


@dataclass(frozen=True)
class Decoding:
    """How messages become tuples.

    `payload`: the columns of the value. `include`: what else becomes a column.
    """

    value: ValueFormat = ValueFormat.RAW
    payload: pa.Schema = field(default_factory=lambda: pa.schema([("value", pa.binary())]))
    include: tuple[str, ...] = ()
    on_error: OnError = OnError.FAIL


#: Values -> their columns. Raises Refused or ArrowException.
Decode = Callable[[Sequence[bytes], pa.Schema], pa.Table]


def decoded(
    messages: Sequence[Any],
    decoding: Decoding,
    asked: Sequence[pa.Field],
    skipped: list[Skipped] | None,
) -> pa.RecordBatch:
    """The tuples of messages of one partition, with the columns that are asked for.

    Raises UnreadableMessage for one that cannot be decoded, if these are not to be skipped.
    """
    names = {one.name for one in asked}
    payload = pa.schema([one for one in decoding.payload if one.name in names])
    read = _READ[decoding.value]
    values = [one.value() for one in messages]
    good, tables = list[tuple[int, int]](), list[pa.Table]()
    bad = dict[int, str]()
    _halved(values, 0, lambda some: read(some, payload), good, tables, bad)
    if bad:
        _tell(messages, bad, decoding, skipped)
        messages = [one for number, one in enumerate(messages) if number not in bad]
    table = pa.concat_tables(tables) if tables else payload.empty_table()
    columns = {one.name: _whole(table[one.name], one.type) for one in payload}
    for name in decoding.include:
        if name in names:
            columns[name] = _included(messages, name)
    if not columns:  # steps that name no column still count rows
        return pa.RecordBatch.from_arrays([pa.nulls(len(messages))], names=[""])
    return pa.RecordBatch.from_pydict(columns)


def _whole(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    one = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return cast(one, kind)


def _halved(
    values: Sequence[bytes | None],
    first: int,
    read: Callable[[Sequence[Any]], pa.Table],
    good: list[tuple[int, int]],
    tables: list[pa.Table],
    bad: dict[int, str],
) -> None:
    """Decode values; those that cannot be decoded are found by halves. `first`: the first's number.

    `bad` gets why, by number.
    """
    if not values:
        return
    try:
        tables.append(read(values))
    except (Refused, pa.ArrowException, ValueError, KeyError, TypeError, EOFError) as error:
        if len(values) == 1:
            bad[first] = in_a_line(error)
            return
        middle = len(values) // 2
        _halved(values[:middle], first, read, good, tables, bad)
        _halved(values[middle:], first + middle, read, good, tables, bad)


def _tell(
    messages: Sequence[Any],
    bad: dict[int, str],
    decoding: Decoding,
    skipped: list[Skipped] | None,
) -> None:
    """Raise an error for the first message that is bad, or note all as skipped."""
    number, why = min(bad.items())
    one = messages[number]
    if decoding.on_error is OnError.FAIL or skipped is None:
        raise UnreadableMessage(
            f"topic {one.topic()!r}, partition {one.partition()}, offset {one.offset()}: cannot be "
            f"read as {decoding.value} of these columns ({why}); correct schema or value, or leave "
            "such messages out with on_error='skip'"
        )
    skipped += [
        Skipped(
            f"{messages[n].topic()}[{messages[n].partition()}] offset {messages[n].offset()}",
            f"cannot be read as {decoding.value} of these columns ({reason})",
        )
        for n, reason in sorted(bad.items())
    ]


def _read_json(values: Sequence[Any], payload: pa.Schema) -> pa.Table:
    """The objects that the values are, one row each."""
    if None in values:
        raise Refused("it has no value: it is a tombstone")
    lines = values
    if not all(one[:1] == b"{" and one[-1:] == b"}" for one in lines):
        lines = [one.strip() for one in values]
        if not all(one[:1] == b"{" and one[-1:] == b"}" for one in lines):
            raise Refused("it is no JSON object")
    text = b"\n".join(lines)
    if not text.isascii():
        text.decode()  # Arrow does not look whether it is UTF-8
    table = pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=_as_json(payload) if payload.names else _NOTHING,
            unexpected_field_behavior="ignore",
        ),
    )
    if table.num_rows != len(values):
        raise Refused(f"it holds {table.num_rows} objects")
    if not payload.names:
        return table
    columns = [table[one.name].cast(one.type) for one in payload]
    return pa.Table.from_arrays(columns, schema=payload)


#: Where no column is asked for, rows are to be counted all the same.
_NOTHING = pa.schema([("", pa.string())])


def _as_json(payload: pa.Schema) -> pa.Schema:
    """The types as which Arrow reads them from JSON: it takes dates for numbers."""
    kinds = [(one.name, pa.string() if pa.types.is_date(one.type) else one.type) for one in payload]
    return pa.schema(kinds)


def _read_raw(values: Sequence[Any], payload: pa.Schema) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.binary())})


_READ: dict[ValueFormat, Decode] = {
    ValueFormat.JSON: _read_json,
    ValueFormat.RAW: _read_raw,
}


def _included(messages: Sequence[Any], name: str) -> pa.Array:
    kind = INCLUDED[name]
    match name:
        case "key":
            found = [one.key() for one in messages]
        case "headers":
            found = [
                None
                if (headers := one.headers()) is None
                else [{"key": k, "value": v} for k, v in headers]
                for one in messages
            ]
        case "partition":
            found = [one.partition() for one in messages]
        case "offset":
            found = [one.offset() for one in messages]
        case _:
            found = [stamp[1] * 1000 if stamp[0] else None for stamp in map(_stamp, messages)]
    return pa.array(found, kind)


def _stamp(message: Any) -> tuple[int, int]:
    stamp: tuple[int, int] = message.timestamp()
    return stamp
