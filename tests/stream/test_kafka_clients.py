"""The clients by which tasks read topics stay open between batches, and no longer."""

from __future__ import annotations

import pyarrow as pa
import pytest

from joinengine.sources import kafka_reading
from joinengine.sources.places import OffsetRange
from joinengine.world.kafka_clients import Cluster
from tests.brokers import fresh_topic, produce
from tests.waiting import soon

VALUE = pa.schema([("value", pa.binary())])


@pytest.fixture(autouse=True)
def _closed():
    yield
    kafka_reading.close_clients()


def clients(topic):
    """Those of a topic that no batch uses."""
    return [one for key, there in kafka_reading._free.items() if topic in key[2] for one in there]


def test_a_client_that_no_batch_uses_is_closed_while_another_works(broker, monkeypatch):
    unused, used = topics = [fresh_topic(broker) for _ in range(2)]
    for topic in topics:
        produce(broker, topic, [b"m"])

    def read(topic):
        reading = kafka_reading.KafkaReading(VALUE, cluster=Cluster(broker.servers), topic=topic)
        return sum(batch.num_rows for batch in reading.batches([OffsetRange(topic, 0, 0, 1)]))

    assert read(used) == 1
    (kept,) = clients(used)
    assert read(used) == 1
    assert clients(used) == [kept]
    monkeypatch.setattr(kafka_reading, "_IDLE_S", 0.2)
    assert read(unused) == 1
    soon(lambda: read(used) and not clients(unused), 10)
