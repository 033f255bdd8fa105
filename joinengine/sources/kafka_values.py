"""Decodes the values of messages into columns, a chunk at a time.

If a chunk cannot be decoded, its bad messages are found by halving it.

Law: a tuple holds the value of one message, and all of it. A message without a tuple is an error,
which names its topic, partition and offset, or is reported as skipped.
Cost: JSON some 1.1 us a message of three fields; a refused message costs log2(chunk) reads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.model.errors import UnreadableMessage
from joinengine.model.skipped import Skipped
from joinengine.model.texts import in_a_line
from joinengine.sources.debezium import changes_of_avro, changes_of_json, rows_inserted
from joinengine.sources.json_values import Refused, objects
from joinengine.sources.kafka_avro import read_avro
from joinengine.sources.projection import REFUSED
from joinengine.sources.schemas import cast
from joinengine.world.schema_registry import Registry

#: The columns that `include` adds.
INCLUDED: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}


#: The parts of a skipped message in the side output: enough to send it again.
_KEPT = ("partition", "offset", "timestamp", "key", "headers")
REFUSED_MESSAGES = pa.schema(
    [
        ("topic", pa.string()),
        *((name, INCLUDED[name]) for name in _KEPT),
        *(("value", pa.binary()), ("reason", pa.string())),
    ],
    {REFUSED: b""},
)

#: The most messages of a chunk that are named one by one. The others are only counted, since
#: manifests and the driver keep the names.
MOST_NAMED = 100


class ValueFormat(StrEnum):
    """The format of values."""

    JSON = "json"
    AVRO = "avro"
    ARROW = "arrow"
    RAW = "raw"
    DEBEZIUM = "debezium"


class OnError(StrEnum):
    """What happens if a message cannot be decoded."""

    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Decoding:
    """How messages become tuples.

    `payload`: the columns of the value. `include`: the parts of a message that become further
    columns. `avro`: the reader's schema. `registry`: has the writers' schemas; None: these equal
    the reader's. `changes`: values are envelopes of Debezium, each with any number of changes.
    """

    value: ValueFormat = ValueFormat.RAW
    payload: pa.Schema = field(default_factory=lambda: pa.schema([("value", pa.binary())]))
    include: tuple[str, ...] = ()
    on_error: OnError = OnError.FAIL
    avro: str = ""
    registry: Registry | None = None
    changes: bool = False


#: Values -> their columns, and how many rows each value has; None: one. Raises Refused and others.
Decode = Callable[[Sequence[Any], pa.Schema, "Decoding"], tuple[pa.Table, list[int] | None]]
#: The errors of readers for values that they cannot read.
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
    """The tuples of messages of one partition, with the columns `asked`.

    `refused` gets skipped messages, if there are any, as REFUSED_MESSAGES. Raises UnreadableMessage
    for a message that cannot be decoded, if such messages may not be skipped.
    """
    names = {column.name for column in asked}
    payload = pa.schema([column for column in decoding.payload if column.name in names])
    read = _Found(stops=decoding.on_error is OnError.FAIL or skipped is None)
    _halved([message.value() for message in messages], 0, payload, decoding, read)
    if read.bad:
        _tell(messages, read.bad, decoding, skipped)
        if refused is not None:
            refused.append(_kept(messages, read.bad))
    table = pa.concat_tables(read.tables) if read.tables else payload.empty_table()
    columns = {column.name: _whole(table[column.name], column.type) for column in payload}
    numbers = np.concatenate(read.numbers) if read.numbers else np.empty(0, np.int64)
    is_whole = len(numbers) == len(messages) and not read.bad and not read.is_uneven
    for name in decoding.include:
        if name in names:
            values = _included(messages, name)
            columns[name] = values if is_whole else values.take(pa.array(numbers))
    if not columns:  # rows still count, even if no step names a column
        return pa.RecordBatch.from_arrays([pa.nulls(len(numbers))], names=[""])
    return pa.RecordBatch.from_pydict(columns)


@dataclass
class _Found:
    """Decoded tables, the message numbers of their rows, and bad messages with the reasons.

    `stops`: decoding ends at the first bad message.
    """

    tables: list[pa.Table] = field(default_factory=list)
    numbers: list[NDArray[np.int64]] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    is_uneven: bool = False
    stops: bool = False


def _whole(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return cast(array, kind)


def _halved(
    values: Sequence[Any], first: int, payload: pa.Schema, decoding: Decoding, read: _Found
) -> None:
    """Decode values into `read`; finds bad ones by halving. `first`: the number of the first."""
    if not values or (read.bad and read.stops):
        return
    try:
        table, counts = _READ[decoding.value](values, payload, decoding)
    except _UNREADABLE as error:
        if len(values) == 1:
            read.bad[first] = in_a_line(error)
            return
        middle = len(values) // 2
        _halved(values[:middle], first, payload, decoding, read)
        _halved(values[middle:], first + middle, payload, decoding, read)
        return
    numbers = np.arange(first, first + len(values), dtype=np.int64)
    read.is_uneven = read.is_uneven or counts is not None
    read.tables.append(table)
    read.numbers.append(numbers if counts is None else np.repeat(numbers, counts))


def _tell(
    messages: Sequence[Any], bad: dict[int, str], decoding: Decoding, skipped: list[Skipped] | None
) -> None:
    """Raise an error for the first bad message, or note all bad messages as skipped."""
    number, why = min(bad.items())
    message = messages[number]
    if decoding.on_error is OnError.FAIL or skipped is None:
        raise UnreadableMessage(
            f"topic {message.topic()!r}, partition {message.partition()}, offset "
            f"{message.offset()}: cannot be read as {decoding.value} of these columns ({why}); "
            "correct schema or value, or leave such messages out with on_error='skip'"
        )
    place, what = f"{message.topic()}[{message.partition()}]", f"cannot be read as {decoding.value}"
    bad_values = sorted(bad.items())
    skipped += [
        Skipped(f"{place} offset {messages[n].offset()}", f"{what} of these columns ({reason})")
        for n, reason in bad_values[:MOST_NAMED]
    ]
    more = bad_values[MOST_NAMED:]
    if more:
        first, last = (messages[n].offset() for n in (more[0][0], more[-1][0]))
        skipped.append(
            Skipped(f"{place} offsets {first} to {last}", f"has {len(more)} more that {what}")
        )


def _kept(messages: Sequence[Any], bad: dict[int, str]) -> pa.RecordBatch:
    """The skipped messages, with the reasons."""
    numbers = sorted(bad)
    some = [messages[n] for n in numbers]
    columns = [
        pa.array([message.topic() for message in some]),
        *(_included(some, name) for name in _KEPT),
        pa.array([message.value() for message in some], pa.binary()),
        pa.array([bad[n] for n in numbers]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=REFUSED_MESSAGES)


def _read_debezium(
    values: Sequence[Any], payload: pa.Schema, decoding: Decoding
) -> tuple[pa.Table, list[int] | None]:
    if decoding.changes:
        return changes_of_json(values, payload)
    return rows_inserted(values, payload), None


def _read_avro(
    values: Sequence[Any], payload: pa.Schema, decoding: Decoding
) -> tuple[pa.Table, list[int] | None]:
    if decoding.changes:
        whole = decoding.payload
        return changes_of_avro(values, payload, whole, decoding.avro, decoding.registry)
    if not payload.names:
        payload = decoding.payload
    return read_avro(values, payload, decoding.avro, decoding.registry), None


#: The last bytes of an Arrow IPC stream.
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def _read_arrow(
    values: Sequence[Any], payload: pa.Schema, decoding: Decoding
) -> tuple[pa.Table, list[int]]:
    """Values that are Arrow streams -> their rows, and the number of rows of each value."""
    if None in values:
        raise Refused("it has no value: it is a tombstone")
    tables = [_whole_stream(value) for value in values]
    counts = [len(part) for part in tables]
    columns = payload if payload.names else decoding.payload
    chosen = [part.select(columns.names).cast(columns) for part in tables]
    for part in chosen:
        part.validate(full=True)
    return pa.concat_tables(chosen), counts


def _whole_stream(value: bytes) -> pa.Table:
    """The rows of a stream. Refuses a truncated one, whose end Arrow would accept."""
    reader = pa.BufferReader(value)
    try:
        table = pa.ipc.open_stream(reader).read_all()
    except OSError as error:
        raise Refused(in_a_line(error)) from None
    if reader.tell() != len(value) or not value.endswith(_END_OF_STREAM):
        raise Refused("it is not one whole stream: it is cut, or there are bytes behind its end")
    return table


_READ: dict[ValueFormat, Decode] = {
    ValueFormat.JSON: lambda values, payload, _: (objects(values, payload), None),
    ValueFormat.AVRO: _read_avro,
    ValueFormat.ARROW: _read_arrow,
    ValueFormat.RAW: lambda values, *_: (pa.table({"value": pa.array(values, pa.binary())}), None),
    ValueFormat.DEBEZIUM: _read_debezium,
}


def _included(messages: Sequence[Any], name: str) -> pa.Array:
    kind = INCLUDED[name]
    match name:
        case "key":
            included = [message.key() for message in messages]
        case "headers":
            included = [
                None
                if (headers := message.headers()) is None
                else [{"key": k, "value": v} for k, v in headers]
                for message in messages
            ]
        case "partition":
            included = [message.partition() for message in messages]
        case "offset":
            included = [message.offset() for message in messages]
        case _:
            stamps = (message.timestamp() for message in messages)
            included = [1000 * time_ms if kind_of else None for kind_of, time_ms in stamps]
    return pa.array(included, kind)
