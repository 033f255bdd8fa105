"""Generated streams in Kafka: one topic for each table, with a JSON object for each row.

The rows of a table go to the partitions in turn, in the order of their arrival. The time of a
message is the event time of its row, so that a reader can go through all partitions in step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from joinengine.lab.tpch.generate import Say, silent
from joinengine.lab.tpch.stream import InTopics, RecordedStream, default_interval_rows
from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.model.texts import counted
from joinengine.world.kafka_clients import Cluster, library

#: Seconds that a broker may take for one answer.
_ANSWERS_S = 30.0
#: How many messages may wait to be sent; librdkafka's default limit is 100,000.
_WAITING = 100_000


def topic_of(recorded: RecordedStream, table: str) -> str:
    """The topic of a table; its name has the settings of the stream, as its folder has.

    >>> from pathlib import Path
    >>> topic_of(RecordedStream(Path("/cache/lineitem-sf0.1-z0.8-uniform-a1"), {}, 0), "lineitem")
    'joinengine.lineitem-sf0.1-z0.8-uniform-a1.lineitem'
    """
    return f"joinengine.{recorded.folder.name}.{table}"


def load(
    recorded: RecordedStream,
    cluster: Cluster,
    partitions: int,
    *,
    anew: bool = False,
    say: Say = silent,
) -> dict[str, int]:
    """Send each table to its topic, unless the topic has all its rows; topic -> rows.

    Raises InvalidRequest for a topic with other messages, unless `anew`, which deletes the topic;
    JoinEngineError if the broker accepts a message and does not keep it.
    """
    admin = library().admin.AdminClient(cluster.config())
    loaded = dict[str, int]()
    for table, rows in recorded.rows.items():
        topic = topic_of(recorded, table)
        messages = messages_of(cluster, topic)
        if messages == rows:
            say(f"{topic} has its {counted(rows, 'row')} already")
        else:
            if messages is not None:
                _remove(admin, topic, messages, rows, anew=anew)
            _make(admin, topic, partitions)
            say(f"sending {table} to topic {topic}: {counted(rows, 'row')}")
            _send(recorded, table, cluster, topic, partitions)
        loaded[topic] = rows
    return loaded


def in_topics(
    recorded: RecordedStream, cluster: Cluster, interval_rows: int | None, query: str
) -> RecordedStream:
    """The stream as its topics hold it; a batch of a table is as long as an interval of its files.

    Raises InvalidRequest unless each table is in its topic, whole.
    """
    check_loaded(recorded, cluster, query)
    total = sum(recorded.rows.values())
    intervals = -(-total // (interval_rows or default_interval_rows(total)))
    batch_rows = {table: max(1, -(-rows // intervals)) for table, rows in recorded.rows.items()}
    return replace(recorded, topics=InTopics(cluster, batch_rows))


def check_loaded(recorded: RecordedStream, cluster: Cluster, query: str) -> None:
    """Raise InvalidRequest unless each table is in its topic, whole."""
    for table, rows in recorded.rows.items():
        topic = topic_of(recorded, table)
        messages = messages_of(cluster, topic)
        if messages is None:
            raise InvalidRequest(
                f"source: Kafka at {cluster.servers} has no topic {topic}; load the stream with "
                f"joinengine load {query} --servers {cluster.servers} and the same --scale, --zipf "
                "and --seed"
            )
        if messages != rows:
            raise InvalidRequest(
                f"source: topic {topic} has {counted(messages, 'message')} of {rows:,}; load it "
                f"anew with joinengine load {query} --servers {cluster.servers} --replace"
            )


def messages_of(cluster: Cluster, topic: str) -> int | None:
    """How many messages a topic has, over all partitions; None: it is not there."""
    kafka = library()
    client = kafka.Consumer(cluster.config(group_id="joinengine-load"))
    try:
        known = client.list_topics(timeout=_ANSWERS_S).topics
        if topic not in known:
            return None
        ends = [
            client.get_watermark_offsets(kafka.TopicPartition(topic, partition), timeout=_ANSWERS_S)
            for partition in known[topic].partitions
        ]
    except kafka.KafkaException as error:
        raise cluster.told(error, topic) from None
    finally:
        client.close()
    return int(sum(last - first for first, last in ends))


def _remove(admin: Any, topic: str, messages: int, rows: int, *, anew: bool) -> None:
    if not anew:
        raise InvalidRequest(
            f"load: topic {topic} has {counted(messages, 'message')}, and the stream {rows:,} "
            "rows; give --replace to delete the topic and send all rows again"
        )
    admin.delete_topics([topic], operation_timeout=_ANSWERS_S)[topic].result(_ANSWERS_S)


def _make(admin: Any, topic: str, partitions: int) -> None:
    """Make a topic that keeps its messages, however old their times are."""
    new = library().admin.NewTopic(topic, partitions, config={"retention.ms": "-1"})
    admin.create_topics([new])[topic].result(_ANSWERS_S)


def _send(
    recorded: RecordedStream, table: str, cluster: Cluster, topic: str, partitions: int
) -> None:
    failed = list[str]()

    def note(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error.str())

    producer = library().Producer(cluster.config(linger_ms=20, compression_type="lz4"))
    for number, (value, time_ms) in enumerate(_messages(recorded, table)):
        while len(producer) >= _WAITING:
            producer.poll(0.1)
        place = {"partition": number % partitions, "timestamp": time_ms}
        producer.produce(topic, value, on_delivery=note, **place)
        producer.poll(0)
    left = producer.flush(_ANSWERS_S)
    if failed or left:
        why = failed[0] if failed else f"{left:,} are not acknowledged"
        raise JoinEngineError(f"load: topic {topic}: messages were not kept: {why}")


def _messages(recorded: RecordedStream, table: str) -> Iterator[tuple[str, int]]:
    """The rows of a table as JSON, each with its event time in milliseconds."""
    schema = recorded.schema(table)
    written = ", ".join(f'"{f.name}": {_written(f)}' for f in schema)
    time = [f.name for f in schema if pa.types.is_timestamp(f.type)][-1]
    sql = f'select to_json({{{written}}})::varchar, epoch_us("{time}") // 1000 from rows'
    for file in sorted((recorded.folder / table).glob("*.parquet")):
        with duckdb.connect(":memory:") as db:
            db.register("rows", pq.read_table(str(file)))
            rows = db.execute(sql)
            while chunk := rows.fetchmany(1 << 14):
                yield from chunk


def _written(field: pa.Field) -> str:
    """A column as it stands in JSON: digits of decimals are kept, and times are ISO 8601."""
    if pa.types.is_decimal(field.type):
        return f'"{field.name}"::varchar'
    if pa.types.is_timestamp(field.type):
        return f"strftime(\"{field.name}\" at time zone 'UTC', '%Y-%m-%dT%H:%M:%S.%fZ')"
    return f'"{field.name}"'
