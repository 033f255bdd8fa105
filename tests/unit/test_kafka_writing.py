"""What a producer of results makes of the client's reports."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from joinengine.model.errors import StoreUnreachable
from joinengine.results.kafka_writers import UNKNOWN, _Gone, _Writer
from joinengine.world.kafka_clients import Cluster


@pytest.mark.parametrize("dropped", [KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
def test_messages_that_are_dropped_behind_a_failure_do_not_hide_it(dropped):
    writer = object.__new__(_Writer)
    writer._failed = None
    for code in (dropped, KafkaError.MSG_SIZE_TOO_LARGE, dropped):
        writer._note(KafkaError(code), None)
    assert writer._failed.code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_a_transaction_that_brokers_are_still_ending_is_waited_for():
    """It is asked again by another client, and does not end the query."""
    writer = object.__new__(_Writer)
    writer._failed, writer._cluster = None, Cluster("host:1")
    error = KafkaError(KafkaError.CONCURRENT_TRANSACTIONS, "another operation is ongoing")
    gone = writer._error(KafkaException(error))
    assert (type(gone), gone.outcome) == (_Gone, UNKNOWN)
    assert isinstance(
        writer._error(KafkaException(KafkaError(KafkaError._TIMED_OUT))), StoreUnreachable
    )
