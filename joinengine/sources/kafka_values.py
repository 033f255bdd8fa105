"""From the values of messages to columns, a chunk at a time.

JSON: the values of a chunk are the lines of one text, which Arrow reads at once. Each value must
begin with { and end with }, and there must be as many rows as values. So none has more or less than
a row: what is open at the end of a line would go on with {, which nothing inside JSON does there.

What cannot be decoded is found by halves.

Law: a tuple holds the value of one message, and all of it; a message that has no tuple is an error,
by its topic, partition and offset, or is told as skipped.
Cost: JSON some 1.1 us a message of three fields; a message that is refused costs log2(chunk) reads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from joinengine.model.errors import UnreadableMessage
from joinengine.model.skipped import Skipped
from joinengine.model.texts import in_a_line
from joinengine.sources.kafka_avro import Registry, read_avro
from joinengine.sources.projection import REFUSED
from joinengine.sources.schemas import cast

#: The columns that `include` adds.
INCLUDED: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}


#: What the side output keeps of a message that is left out: all that sending it again takes.
_KEPT = ("partition", "offset", "timestamp", "key", "headers")
REFUSED_MESSAGES = pa.schema(
    [
        ("topic", pa.string()),
        *((name, INCLUDED[name]) for name in _KEPT),
        *(("value", pa.binary()), ("reason", pa.string())),
    ],
    {REFUSED: b""},
)

#: So many messages of a chunk are named one by one; the others are counted, since a manifest, and
#: the driver, keep what is named.
MOST_NAMED = 100


class ValueFormat(StrEnum):
    """How values are written."""

    JSON = "json"
    AVRO = "avro"
    ARROW = "arrow"
    RAW = "raw"
    DEBEZIUM = "debezium"


class OnError(StrEnum):
    """What happens at a message that cannot be decoded."""

    FAIL = "fail"
    SKIP = "skip"


class Refused(Exception):
    """Some of the values cannot be decoded; why."""


@dataclass(frozen=True)
class Decoding:
    """How messages become tuples.

    `payload`: the columns of the value. `include`: what else becomes a column. `avro`: the reader's
    schema, and `registry` where its writers' are; None: they are the same.
    """

    value: ValueFormat = ValueFormat.RAW
    payload: pa.Schema = field(default_factory=lambda: pa.schema([("value", pa.binary())]))
    include: tuple[str, ...] = ()
    on_error: OnError = OnError.FAIL
    avro: str = ""
    registry: Registry | None = None


#: Values -> their columns, and how many rows each value has; None: one. Raises Refused and others.
Decode = Callable[[Sequence[Any], pa.Schema, "Decoding"], tuple[pa.Table, list[int] | None]]
#: What readers raise for values that they cannot read.
_UNREADABLE = (
    *(Refused, pa.ArrowException, ValueError, KeyError, TypeError, EOFError, IndexError),
    *(OverflowError, struct.error),
)


def decoded(
    messages: Sequence[Any],
    decoding: Decoding,
    asked: Sequence[pa.Field],
    skipped: list[Skipped] | None,
    refused: list[pa.RecordBatch] | None = None,
) -> pa.RecordBatch:
    """The tuples of messages of one partition, with the columns that are asked for.

    `refused` gets the messages that are left out, if any are, as REFUSED_MESSAGES. Raises
    UnreadableMessage for one that cannot be decoded, if these are not to be skipped.
    """
    names = {one.name for one in asked}
    payload = pa.schema([one for one in decoding.payload if one.name in names])
    found = _Found()
    _halved([one.value() for one in messages], 0, payload, decoding, found)
    if found.bad:
        _tell(messages, found.bad, decoding, skipped)
        if refused is not None:
            refused.append(_kept(messages, found.bad))
    table = pa.concat_tables(found.tables) if found.tables else payload.empty_table()
    columns = {one.name: _whole(table[one.name], one.type) for one in payload}
    numbers = np.concatenate(found.numbers) if found.numbers else np.empty(0, np.int64)
    is_whole = len(numbers) == len(messages) and not found.bad and not found.is_uneven
    for name in decoding.include:
        if name in names:
            values = _included(messages, name)
            columns[name] = values if is_whole else values.take(pa.array(numbers))
    if not columns:  # steps that name no column still count rows
        return pa.RecordBatch.from_arrays([pa.nulls(len(numbers))], names=[""])
    return pa.RecordBatch.from_pydict(columns)


@dataclass
class _Found:
    """What has been decoded, the messages that its rows are of, and why others cannot be."""

    tables: list[pa.Table] = field(default_factory=list)
    numbers: list[NDArray[np.int64]] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    is_uneven: bool = False


def _whole(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    one = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return cast(one, kind)


def _halved(
    values: Sequence[Any], first: int, payload: pa.Schema, decoding: Decoding, found: _Found
) -> None:
    """Decode values; those that cannot be are found by halves. `first`: the first's number."""
    if not values:
        return
    try:
        table, counts = _READ[decoding.value](values, payload, decoding)
    except _UNREADABLE as error:
        if len(values) == 1:
            found.bad[first] = in_a_line(error)
            return
        middle = len(values) // 2
        _halved(values[:middle], first, payload, decoding, found)
        _halved(values[middle:], first + middle, payload, decoding, found)
        return
    numbers = np.arange(first, first + len(values), dtype=np.int64)
    found.is_uneven = found.is_uneven or counts is not None
    found.tables.append(table)
    found.numbers.append(numbers if counts is None else np.repeat(numbers, counts))


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
    place, what = f"{one.topic()}[{one.partition()}]", f"cannot be read as {decoding.value}"
    told = sorted(bad.items())
    skipped += [
        Skipped(f"{place} offset {messages[n].offset()}", f"{what} of these columns ({reason})")
        for n, reason in told[:MOST_NAMED]
    ]
    more = told[MOST_NAMED:]
    if more:
        first, last = (messages[n].offset() for n in (more[0][0], more[-1][0]))
        skipped.append(
            Skipped(f"{place} offsets {first} to {last}", f"has {len(more)} more that {what}")
        )


def _kept(messages: Sequence[Any], bad: dict[int, str]) -> pa.RecordBatch:
    """The messages that are left out, with the reasons."""
    numbers = sorted(bad)
    some = [messages[n] for n in numbers]
    columns = [
        pa.array([one.topic() for one in some]),
        *(_included(some, name) for name in _KEPT),
        pa.array([one.value() for one in some], pa.binary()),
        pa.array([bad[n] for n in numbers]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=REFUSED_MESSAGES)


def _read_json(
    values: Sequence[Any], payload: pa.Schema, decoding: Decoding
) -> tuple[pa.Table, None]:
    """The objects that the values are, one row each."""
    return _objects(values, payload), None


def _read_debezium(
    values: Sequence[Any], payload: pa.Schema, decoding: Decoding
) -> tuple[pa.Table, None]:
    """The rows that envelopes insert, with the schema of their values beside them or without."""
    row = _as_json(payload) if payload.names else _NOTHING
    change = [pa.field("op", pa.string()), pa.field("after", pa.struct(row))]
    read = _objects(values, pa.schema([*change, pa.field("payload", pa.struct(change))]))
    bare, wrapped = read.combine_chunks().to_batches()[0].columns[:2], read["payload"]
    inner = wrapped.combine_chunks().flatten()
    ops, after = (pc.coalesce(*both) for both in zip(bare, inner, strict=True))
    others = pc.unique(ops.filter(pc.invert(pc.is_in(ops.fill_null(""), pa.array(["c", "r"])))))
    if len(others):
        raise Refused(
            f"its op is {others[0].as_py()!r}, and only inserts, c and r, are read: updates and "
            "deletes are not joined"
        )
    if after.null_count:
        raise Refused("its field after is NULL")
    if not payload.names:
        return read, None
    columns = [one.cast(field.type) for one, field in zip(after.flatten(), payload, strict=True)]
    return pa.Table.from_arrays(columns, schema=payload), None


def _objects(values: Sequence[Any], payload: pa.Schema) -> pa.Table:
    """The objects that the values are, one row each, with these fields."""
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


def _read_raw(
    values: Sequence[Any], payload: pa.Schema, decoding: Decoding
) -> tuple[pa.Table, None]:
    return pa.table({"value": pa.array(values, pa.binary())}), None


def _read_avro(
    values: Sequence[Any], payload: pa.Schema, decoding: Decoding
) -> tuple[pa.Table, None]:
    if not payload.names:
        payload = decoding.payload
    return read_avro(values, payload, decoding.avro, decoding.registry), None


def _read_arrow(
    values: Sequence[Any], payload: pa.Schema, decoding: Decoding
) -> tuple[pa.Table, list[int]]:
    """Each value is a stream of Arrow's, with any number of rows."""
    if None in values:
        raise Refused("it has no value: it is a tombstone")
    tables = [pa.ipc.open_stream(one).read_all() for one in values]
    counts = [len(one) for one in tables]
    columns = payload if payload.names else decoding.payload
    found = [one.select(columns.names).cast(columns) for one in tables]
    for one in found:
        one.validate(full=True)
    return pa.concat_tables(found), counts


_READ: dict[ValueFormat, Decode] = {
    ValueFormat.JSON: _read_json,
    ValueFormat.AVRO: _read_avro,
    ValueFormat.ARROW: _read_arrow,
    ValueFormat.RAW: _read_raw,
    ValueFormat.DEBEZIUM: _read_debezium,
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
