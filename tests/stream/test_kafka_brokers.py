"""Topics of three brokers, of which one after the other is killed: their partitions move."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from benchmarks.kafka.broker import Broker
from joinengine import StreamJoin, equi, kafka_stream
from tests.brokers import consume, fresh_topic, produce
from tests.objects import free_ports
from tests.waiting import soon

pytestmark = [pytest.mark.spark, pytest.mark.slow]
NAMES = ("id", "lv"), ("rid", "rv")
SCHEMAS = "id bigint, lv int", "rid bigint, rv int"


class Brokers:
    """Three brokers that are controllers, too; each holds a copy of every partition."""

    def __init__(self, folder):
        ports = free_ports(6)
        self.servers = ",".join(f"127.0.0.1:{port}" for port in ports[:3])
        voters = [f"{n}@127.0.0.1:{port}" for n, port in enumerate(ports[3:], 1)]
        kept = "offsets.topic", "transaction.state.log"
        self.each = [
            Broker(
                folder / str(number),
                port,
                {
                    "node.id": str(number),
                    "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{own}",
                    "controller.quorum.voters": ",".join(voters),
                    "replica.lag.time.max.ms": "3000",
                    "broker.session.timeout.ms": "3000",
                    **{f"{topic}.replication.factor": "3" for topic in kept},
                    "transaction.state.log.min.isr": "2",
                },
            )
            for number, (port, own) in enumerate(zip(ports[:3], ports[3:], strict=True), 1)
        ]

    def start(self):
        for broker in self.each:
            broker.begin()
        for broker in self.each:
            broker.wait()

    def stop(self):
        for broker in self.each:
            broker.stop(kill=True)

    @property
    def admin(self):
        return next(broker.admin for broker in self.each if broker.is_running)

    def leader_of(self, topic):
        """The broker that answers for the first partition."""
        return self.each[self._partitions(topic)[0].leader.id - 1]

    def are_in_step(self, topic):
        return all(len(part.isr) == 3 for part in self._partitions(topic))

    def tokens(self):
        (topic,) = (name for name in self.admin.list_topics().topics if name.endswith("-tokens"))
        return topic

    def _partitions(self, topic):
        """What a broker says of them; it may not answer while another takes over."""
        found = []

        def ask():
            # A new client: an old one waits for a controller that was killed.
            admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
            (answer,) = admin.describe_topics(
                TopicCollection([topic]), request_timeout=5.0
            ).values()
            try:
                found[:] = answer.result(10).partitions
            except (KafkaException, TimeoutError):
                return False
            return True

        soon(ask, 90.0)
        return found


@pytest.fixture
def brokers(broker, tmp_path):
    """It is `broker` that skips the test where there is no Kafka."""
    made = Brokers(tmp_path / "brokers")
    with ExitStack() as stack:
        stack.callback(made.stop)
        made.start()
        yield made


def test_a_query_outlives_the_brokers_that_lead_its_topics(spark, brokers, tmp_path):
    topics = [fresh_topic(brokers, 2, copies=3, min_insync_replicas=2) for _ in range(3)]
    rows = [], []

    def add():
        for part, topic, names in zip(rows, topics[:2], NAMES, strict=True):
            new = [(i % 20, i) for i in range(len(part), len(part) + 40)]
            produce(brokers, topic, [json.dumps(dict(zip(names, row, strict=True))) for row in new])
            part.extend(new)

    sides = [
        kafka_stream(spark, brokers.servers, topic, schema=schema)
        for topic, schema in zip(topics[:2], SCHEMAS, strict=True)
    ]
    writer = StreamJoin(*sides, on=equi("id", "rid"), instances=2).writeStream.format("kafka")
    writer = writer.option("topic", topics[2]).option("kafka.bootstrap.servers", brokers.servers)
    query = writer.option("checkpointLocation", tmp_path / "checkpoint").start()
    add()
    query.processAllAvailable()
    topics.append(brokers.tokens())
    for topic in (topics[3], topics[2], topics[0], topics[1]):
        add()
        query.processAllAvailable()
        killed = brokers.leader_of(topic)
        killed.stop(kill=True)
        add()
        query.processAllAvailable()
        add()
        query.processAllAvailable()
        assert brokers.leader_of(topic) is not killed
        killed.start()
        soon(lambda: all(map(brokers.are_in_step, topics)), 90.0)
    query.stop()
    assert query.exception() is None
    found = [json.loads(message.value()) for message in consume(brokers, topics[2])]
    expected = Counter(
        (*left, *right) for left in rows[0] for right in rows[1] if left[0] == right[0]
    )
    assert expected.total() > 5_000
    assert Counter(tuple(row[n] for n in ("id", "lv", "rid", "rv")) for row in found) == expected
