"""Makes, fills and reads topics for tests, on the broker of benchmarks/kafka."""

from __future__ import annotations

import os
from itertools import count

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from benchmarks.kafka.topics import messages

_numbers = count()


def fresh_topic(broker, partitions=1, *, name=None, copies=1, **config):
    """The name of a new topic; `config`: its settings, with _ for each dot in a name."""
    name = name or f"topic-{os.getpid()}-{next(_numbers)}"
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    made = broker.admin.create_topics([NewTopic(name, partitions, copies, config=settings)])
    made[name].result(30)
    return name


def produce(broker, topic, values, keys=None, **settings):
    """Send values (bytes, text or None) in order; `settings`: of `Producer.produce`."""
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 5})
    for number, value in enumerate(values):
        producer.produce(topic, value, None if keys is None else keys[number], **settings)
        producer.poll(0)
    assert producer.flush(30) == 0


def consume(broker, topic):
    """All committed messages of a topic, partition by partition."""
    found = messages(broker.servers, topic)
    return sorted(found, key=lambda one: (one.partition(), one.offset()))
