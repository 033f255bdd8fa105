"""Makes streams from topics of Kafka, which joinengine's own tasks read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from joinengine.model.arguments import check_count, check_names, check_text, check_truth
from joinengine.model.conditions import Computed
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import one_of
from joinengine.model.nested_types import holds
from joinengine.model.query import CHANGE
from joinengine.model.texts import quoted
from joinengine.sources.avro_schemas import columns_of, schema_text
from joinengine.sources.debezium import ENVELOPE
from joinengine.sources.feeds import FeedKind
from joinengine.sources.kafka_feed import Topic
from joinengine.sources.kafka_planning import are_offsets
from joinengine.sources.kafka_reading import KafkaReading
from joinengine.sources.kafka_values import INCLUDED, Decoding, OnError, ValueFormat
from joinengine.spark.sources import types
from joinengine.spark.sources.own_streams import OwnStream
from joinengine.world.kafka_clients import Cluster
from joinengine.world.schema_registry import registry_of

#: The included columns in which the deletion of a row differs from its insertion.
_OF_MESSAGES = frozenset({"headers", "offset", "timestamp"})
_STARTS = "'earliest', 'latest', {partition: offset}, or a time such as '2026-03-01T12:00:00Z'"


@dataclass(frozen=True, eq=False, repr=False)
class KafkaStream(OwnStream):
    """A topic of Kafka as a stream, made by `kafka_stream`.

    Python tasks read the topic, so no row passes through the JVM. A stream never changes: its
    methods return new streams. `is_newest`: its schema of Avro is the newest of the registry, not
    one that its user gave.
    """

    reading: KafkaReading
    is_newest: bool = False

    @property
    @override
    def place(self) -> str:
        return f"topic {self.reading.topic} at {self.reading.cluster.servers}"

    def is_of(self, cluster: Cluster, topic: str | None) -> bool:
        """Whether it reads `topic` at brokers that are named in the same way."""
        return (self.reading.topic, self.reading.cluster.servers) == (topic, cluster.servers)

    @property
    @override
    def folders(self) -> list[str]:
        return []

    @property
    @override
    def description(self) -> str:
        """Its kind and topic, without the servers, which a cluster may change."""
        return f"{FeedKind.KAFKA} {self.reading.topic}"

    @property
    @override
    def why_not_again(self) -> str | None:
        return f"topic {self.reading.topic!r} may be compacted or lose messages meanwhile"

    @property
    @override
    def passing(self) -> tuple[str, ...]:
        """The columns that belong to a message, not to its row, and those computed from them."""
        decoding = self.reading.decoding
        if not decoding.changes:
            return ()
        names = {CHANGE, *_OF_MESSAGES.intersection(decoding.include)}
        for step in self.reading.steps:
            if isinstance(step, Computed):
                is_passing = any(name in names for _, name in step.columns)
                names = names | {step.name} if is_passing else names - {step.name}
        return tuple(names - {CHANGE})

    @property
    @override
    def kept_columns(self) -> str | None:
        """The Avro schema, of which a registry may have a newer version at a restart."""
        return self.reading.decoding.avro if self.is_newest else None

    @override
    def has_columns(self, kept: str) -> bool:
        return self.kept_columns in (None, kept)

    @override
    def at_restart(self, kept: str) -> KafkaStream:
        return self.over(kept)

    @override
    def over(self, kept: str) -> KafkaStream:
        decoding = _with_avro(self.reading.decoding, kept)
        bare = replace(
            self.reading, schema=_columns(decoding), steps=(), whole=None, decoding=decoding
        )
        return replace(self, reading=bare, selected=None)._stepping(self)

    @override
    def in_order(self, column: str | None) -> dict[str, Any]:
        return dict(self.feed)

    @override
    def timed(self, column: str | None, ahead_us: int | None) -> KafkaReading:
        return replace(self.reading, time=column, ahead_us=ahead_us)

    @override
    def awaiting(self, until: Mapping[int, int]) -> KafkaStream:
        return replace(self, feed=self.feed | {"topic": replace(self.feed["topic"], until=until)})

    @override
    def to_df(self) -> DataFrame:
        """Refused: Spark has a Kafka source of its own."""
        raise InvalidRequest(
            "to_df: a DataFrame over a topic is Spark's own Kafka source: use "
            "spark.readStream.format('kafka'), or this stream in a join"
        )


def kafka_stream(  # noqa: PLR0913 # each is an option by its name
    spark: SparkSession,
    servers: str,
    topic: str,
    *,
    value: str = "json",
    schema: Any = None,
    start: str | int | dt.datetime | Mapping[int, int] = "earliest",
    max_rows: int = 1_000_000,
    include: Sequence[str] = (),
    changes: bool = False,
    on_error: str = "fail",
    fail_on_data_loss: bool = True,
    idle: str | dt.timedelta = "10 s",
    options: Mapping[str, Any] | None = None,
) -> KafkaStream:
    """A stream of the committed messages of a topic, each of which is a row.

    `servers`: the brokers, as "host:port", joined by commas.
    `value`: how values are written. `json`: an object each. `avro`: a record each, of a schema that
    is given, or after the number of one in the registry `options["schema.registry.url"]`. `arrow`:
    a stream of Arrow's each, of any number of rows. `debezium`: changes of a table as JSON, of
    which inserts are read; updates and deletes are messages that cannot be decoded, unless
    `changes`. `raw`: values become the column `value`.
    `schema`: the columns of a value, as a StructType or DDL text; of Avro the reader's schema, as
    JSON text or a dict. A field that a message lacks is NULL, and others are not read.
    `start`: where a query begins that has no checkpoint yet: `earliest`, `latest`, partition ->
    offset (partitions that are not named begin at their earliest), or a time (ISO text, datetime,
    or milliseconds). A restart goes on from the checkpoint.
    `max_rows`: a batch has at most about so many messages; partitions are then read up to the same
    time.
    `include`: further columns: `key`, `headers`, `partition`, `offset`, `timestamp`.
    `changes`: values, of `debezium` or `avro`, are envelopes of Debezium. They become the rows that
    come or go, with +1 or -1 in the column `_change`: an update is both, a tombstone none.
    `on_error`: a message that cannot be decoded ends the query with an error that names it
    (`fail`), or is left out and named in the metrics (`skip`).
    `fail_on_data_loss`: whether messages that are gone before they were read end the query; else
    they are named in the metrics.
    `idle`: a partition that has brought nothing for so long does not hold the watermark up.
    `options`: settings of librdkafka, such as `security.protocol`. Secrets among them are shown
    nowhere.

    Raises InvalidRequest if no broker answers within some seconds, if it refuses the credentials,
    if there is no such topic, and for wrong arguments.
    """
    if spark is None:
        raise InvalidRequest(
            "kafka_stream: spark is None; pass a session, such as joinengine.session()"
        )
    check_text(topic, "kafka_stream: topic", "'clicks'")
    settings = dict(options or {})
    registry = registry_of(settings)
    cluster = Cluster(servers, settings)
    cluster.config()  # refuses settings that cannot be set
    decoding = _decoding(value, schema, include, on_error, changes)
    is_avro = decoding.value is ValueFormat.AVRO
    if is_avro:
        text = schema_text(schema, registry, topic)
        decoding = _with_avro(replace(decoding, registry=registry), text)
    elif decoding.changes:
        decoding = _with_change(decoding)
    if check_count(max_rows, "max_rows") < 1:
        raise InvalidRequest(f"max_rows: {max_rows} must be at least 1")
    loses = not check_truth(fail_on_data_loss, "fail_on_data_loss")
    idle_us = microseconds(idle, "idle")
    if idle_us < 0:
        raise InvalidRequest(f"idle: {idle!r} is negative; give 0 s or more")
    read = Topic(cluster, topic, _started(start), max_rows, loses, idle_us)
    cluster.check_reachable([topic], "READ")
    reading = KafkaReading(
        _columns(decoding), cluster=cluster, topic=topic, decoding=decoding, loses=loses
    )
    feed = {"kind": FeedKind.KAFKA.value, "topic": read}
    return KafkaStream(spark, feed, reading, is_newest=is_avro and schema is None)


def _columns(decoding: Decoding) -> pa.Schema:
    """The columns of the tuples made from messages."""
    return pa.schema([*decoding.payload, *((name, INCLUDED[name]) for name in decoding.include)])


def _decoding(
    value: str, schema: Any, include: Sequence[str], on_error: str, changes: bool
) -> Decoding:
    """How messages become tuples. Raises InvalidRequest for arguments that do not go together."""
    kind = one_of(ValueFormat, value, "value")
    asked = include if isinstance(include, str) else list(include)
    names = check_names(asked, "include", "include=['key']") if asked else ()
    for name in names:
        if name not in INCLUDED:
            raise InvalidRequest(
                f"include: {quoted(name)} is unknown; choose {', '.join(INCLUDED)}"
            )
    payload = _payload(kind, schema)
    _refuse_double(names, payload)
    has_changes = check_truth(changes, "changes")
    if has_changes and kind not in (ValueFormat.DEBEZIUM, ValueFormat.AVRO):
        raise InvalidRequest(
            f"changes: value={kind.value!r} has no envelopes of Debezium; give value='debezium' "
            f"for JSON, or value='avro'"
        )
    bad = one_of(OnError, on_error, "on_error")
    return Decoding(kind, payload, tuple(names), bad, changes=has_changes)


def _with_avro(decoding: Decoding, text: str) -> Decoding:
    """The decoding with the columns of an Avro schema."""
    payload = _row_of(columns_of(text, ENVELOPE)) if decoding.changes else columns_of(text)
    _refuse_double(decoding.include, payload)
    decoding = replace(decoding, payload=payload, avro=text)
    return _with_change(decoding) if decoding.changes else decoding


def _row_of(envelope: pa.Schema) -> pa.Schema:
    """The columns of the row in an Avro envelope."""
    before, after = (envelope.field(name).type for name in ENVELOPE[1:])
    if not pa.types.is_struct(after) or before != after or envelope.field("op").type != pa.string():
        raise InvalidRequest(
            f"changes: an envelope of Debezium has the fields op, a text, and before and after, "
            f"both the row; found {', '.join(f'{field.name} {field.type}' for field in envelope)}"
        )
    return pa.schema(list(after))


def _with_change(decoding: Decoding) -> Decoding:
    """The decoding with the column of changes."""
    payload = decoding.payload
    if CHANGE in (*payload.names, *decoding.include):
        raise InvalidRequest(
            f"changes: there is a column {CHANGE!r} already; rename the field in the schema"
        )
    return replace(decoding, payload=payload.append(pa.field(CHANGE, pa.int8())))


def _refuse_double(include: Sequence[str], payload: pa.Schema) -> None:
    double = [name for name in include if name in payload.names or include.count(name) > 1]
    if double:
        raise InvalidRequest(
            f"include: there is a column {double[0]!r} already; leave it out, or rename the field"
        )


def _payload(kind: ValueFormat, schema: Any) -> pa.Schema:
    if kind is ValueFormat.AVRO:
        return pa.schema([])  # the columns follow from the Avro schema
    if kind is ValueFormat.RAW:
        if schema is not None:
            raise InvalidRequest("schema: value='raw' has one column, value; leave schema out")
        return Decoding().payload
    payload = types.said_columns(schema)
    if payload is None:
        raise InvalidRequest(
            f"schema: value={kind.value!r} needs the columns; give a StructType or DDL text, such "
            "as 'id bigint, at timestamp'"
        )
    for field in payload:
        if kind in (ValueFormat.JSON, ValueFormat.DEBEZIUM) and holds(field.type, pa.types.is_map):
            raise InvalidRequest(
                f"schema: column {field.name!r} is of type {field.type}, which is not read from "
                "JSON; give a struct, or leave the column out"
            )
    return payload


def _started(start: Any) -> str | int | dict[int, int]:
    """`start` as a word, a time in milliseconds, or offsets."""
    if start in ("earliest", "latest"):
        return str(start)
    if isinstance(start, Mapping) and start:
        if are_offsets(start):
            return dict(start)
    elif isinstance(start, dt.datetime):
        return _millis(start)
    elif type(start) is int and 0 <= start < 1 << 63:
        return start
    elif isinstance(start, str):
        try:
            return _millis(dt.datetime.fromisoformat(start))
        except ValueError:
            raise InvalidRequest(f"start: expected {_STARTS}; found {quoted(start)}") from None
    raise InvalidRequest(f"start: expected {_STARTS}; found {quoted(start)}")


def _millis(moment: dt.datetime) -> int:
    """A time in milliseconds since 1970, as in Kafka; a time without a zone is in UTC."""
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return max(int(zoned.timestamp() * 1e3), 0)
