"""What a producer of results makes of the client's reports."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from joinengine.results.kafka_writers import _Writer


@pytest.mark.parametrize("dropped", [KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
def test_messages_that_are_dropped_behind_a_failure_do_not_hide_it(dropped):
    writer = object.__new__(_Writer)
    writer._failed = None
    for code in (dropped, KafkaError.MSG_SIZE_TOO_LARGE, dropped):
        writer._note(KafkaError(code), None)
    assert writer._failed.code() == KafkaError.MSG_SIZE_TOO_LARGE
