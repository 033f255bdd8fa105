"""A topic as a side of your own join, on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from typing_extensions import override

from joinengine import kafka_stream
from joinengine.lab.queries.topics import messages_of
from joinengine.model.errors import InvalidRequest
from joinengine.sources.feeds import open_feed
from joinengine.sources.places import by_file
from joinengine.spark.sources.own_streams import OwnStream
from joinengine.world.kafka_clients import Cluster
from joinengine.world.world import MACHINE

#: The prefix of a side that is a topic.
PREFIX = "kafka:"


@dataclass(frozen=True)
class TopicSide:
    """A topic of JSON objects, with these columns (DDL text)."""

    topic: str
    cluster: Cluster
    columns: str

    @override
    def __str__(self) -> str:
        return self.topic

    def check(self, option: str) -> None:
        """Raise InvalidRequest if no broker answers, or it has no such topic."""
        self.cluster.check_reachable([self.topic])

    def rows(self, option: str) -> int:
        """How many messages there are."""
        return messages_of(self.cluster, self.topic) or 0

    def stream(self, spark: Any, rows: int, *, asked: bool = True) -> OwnStream:
        """The topic from its begin on, about `rows` messages in a batch."""
        return kafka_stream(
            spark,
            self.cluster.servers,
            self.topic,
            schema=self.columns,
            max_rows=rows,
            options=self.cluster.options,
        )

    def tuples(self, spark: Any, schema: pa.Schema, named: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The columns `schema` of all its rows, under the names of `named`."""
        stream = self.stream(spark, 1).select(list(schema.names))
        feed = open_feed(stream.feed)
        feed.discover(wait=MACHINE.sleep)
        for pieces in by_file(feed.pieces(feed.begin(), feed.end())):
            for batch in stream.reading.batches(pieces):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=named)


def topic_side(
    option: str, text: str, cluster: Cluster | None, columns: str | None, flag: str
) -> TopicSide:
    """The side that `kafka:TOPIC` names. Raises InvalidRequest without brokers or columns.

    `flag`: the option that has the columns, with an example.
    """
    topic = text.removeprefix(PREFIX)
    if not topic:
        raise InvalidRequest(f"{option}: {text!r} names no topic; write {PREFIX}TOPIC")
    if cluster is None:
        raise InvalidRequest(f"{option}: {text} needs the brokers; give --servers HOST:PORT")
    if columns is None:
        raise InvalidRequest(f"{option}: {text} needs the columns of its messages; give {flag}")
    return TopicSide(topic, cluster, columns)
