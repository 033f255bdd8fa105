"""A checkpoint is put back as it was, and the topic of its results is not."""

from __future__ import annotations

import shutil

import pytest

from joinengine.model.errors import DamagedState
from joinengine.results.kafka_target import Writers
from tests.brokers import fresh_topic
from tests.faults.test_kafka_results import delivered, go_on, start


def test_a_copy_of_before_the_first_delivery_is_refused(tmp_path, broker):
    """It does not know yet that it delivers to Kafka: batches of other cuts would be left out."""
    topic = fresh_topic(broker)
    checkpoint = start(tmp_path, broker, topic, Writers(1)).checkpoint.storage.folder
    shutil.copytree(checkpoint, tmp_path / "copy")
    query = start(tmp_path, broker, topic, Writers(1))
    go_on(query, 2)
    there = delivered(broker, topic)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "copy", checkpoint)
    with pytest.raises(DamagedState, match="holds results of this query up to batch 1, and the ne"):
        go_on(start(tmp_path, broker, topic, Writers(1)), 2)
    assert delivered(broker, topic) == there
