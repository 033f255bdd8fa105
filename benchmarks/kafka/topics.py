"""Topics of benchmarks: made anew, read to their end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import NewTopic

from benchmarks.kafka.broker import Broker

_ANSWERS_S = 30.0


def make(broker: Broker, partitions: int, *names: str) -> None:
    """Make topics that keep their messages however old these are."""
    settings = {"retention.ms": "-1"}
    new = [NewTopic(name, partitions, 1, config=settings) for name in names]
    for made in broker.admin.create_topics(new).values():
        made.result(_ANSWERS_S)


def reader(servers: str, topic: str, start: int = OFFSET_BEGINNING) -> tuple[Consumer, int]:
    """A consumer of what is committed in all partitions of a topic, and how many there are."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"benchmark of {topic}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 10,
        }
    )
    partitions = consumer.list_topics(topic, timeout=_ANSWERS_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, start) for partition in partitions])
    return consumer, len(partitions)


def messages(servers: str, topic: str) -> Iterator[Any]:
    """All messages of a topic that are committed now, a partition in its order."""
    consumer, left = reader(servers, topic)
    ended = set[int]()
    while len(ended) < left:
        for message in consumer.consume(10_000, 0.1):
            if message.error() is None:
                yield message
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise RuntimeError(message.error().str())
    consumer.close()
