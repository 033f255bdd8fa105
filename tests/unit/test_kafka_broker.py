"""The broker of the tests: it answers, and keeps what it has acknowledged when it is killed."""

from __future__ import annotations

import pytest

from tests.brokers import consume, fresh_topic, produce


@pytest.mark.slow
def test_a_broker_that_is_killed_has_what_it_has_acknowledged(broker):
    topic = fresh_topic(broker, 2)
    produce(broker, topic, [b"one", b"two", None], keys=[b"a", b"b", b"a"])
    broker.stop(kill=True)
    broker.start()
    found = consume(broker, topic)
    assert sorted((one.key(), one.value() or b"") for one in found) == [
        (b"a", b""),
        (b"a", b"one"),
        (b"b", b"two"),
    ]
