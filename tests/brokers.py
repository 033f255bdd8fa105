"""Topics for tests, on the broker of benchmarks/kafka."""

from __future__ import annotations

import os
from itertools import count

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

_numbers = count()


def fresh_topic(broker, partitions=1, *, name=None, **config):
    """The name of a new topic; `config`: its settings, with _ for each dot in a name."""
    name = name or f"topic-{os.getpid()}-{next(_numbers)}"
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    made = broker.admin.create_topics([NewTopic(name, partitions, 1, config=settings)])
    made[name].result(30)
    return name


def produce(broker, topic, values, keys=None, **settings):
    """Send values (bytes, text or None) in order; `settings`: of `Producer.produce`."""
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 5})
    for number, value in enumerate(values):
        producer.produce(topic, value, None if keys is None else keys[number], **settings)
        producer.poll(0)
    assert producer.flush(30) == 0


def consume(broker, topic, *, committed=True):
    """All messages of a topic, partition by partition; of `committed` transactions alone."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.servers,
            "group.id": "tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in partitions])
    found, ended = [], set()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        assert message is not None, f"{topic}: nothing for 30 s"
        if message.error() is None:
            found.append(message)
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            raise AssertionError(message.error())
    consumer.close()
    return sorted(found, key=lambda one: (one.partition(), one.offset()))
