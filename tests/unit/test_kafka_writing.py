"""What a producer of results makes of the client's reports."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from joinengine.model.errors import CheckpointMismatch, StoreUnreachable
from joinengine.results import kafka_target
from joinengine.results.kafka_messages import Shape, Value
from joinengine.results.kafka_target import KafkaTarget, Writers, check_note
from joinengine.results.kafka_writers import UNKNOWN, _Gone, _Writer
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.kafka_clients import Cluster
from joinengine.world.memory import MemoryWorld


@pytest.mark.parametrize("dropped", [KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
def test_messages_that_are_dropped_behind_a_failure_do_not_hide_it(dropped):
    writer = object.__new__(_Writer)
    writer._failed = None
    for code in (dropped, KafkaError.MSG_SIZE_TOO_LARGE, dropped):
        writer._note(KafkaError(code), None)
    assert writer._failed.code() == KafkaError.MSG_SIZE_TOO_LARGE


@pytest.mark.parametrize("exactly_once", [True, False])
@pytest.mark.parametrize(
    ("code", "is_asked_again"),
    [
        (KafkaError.CONCURRENT_TRANSACTIONS, (True, True)),
        (KafkaError._MSG_TIMED_OUT, (True, False)),
        (KafkaError._TIMED_OUT, (True, False)),
        (KafkaError._STATE, (True, False)),
        (KafkaError._TRANSPORT, (False, False)),
    ],
)
def test_what_another_client_may_do_is_asked_again(code, is_asked_again, exactly_once):
    """One may hold on to a broker that has died; without transactions rows would come twice."""
    writer = object.__new__(_Writer)
    writer._failed, writer._cluster, writer._exactly_once = None, Cluster("host:1"), exactly_once
    gone = writer._error(KafkaException(KafkaError(code, "words of the client")))
    if is_asked_again[0 if exactly_once else 1]:
        assert (type(gone), gone.outcome) == (_Gone, UNKNOWN)
        is_ending = code == KafkaError.CONCURRENT_TRANSACTIONS
        assert ("is still ending the transaction before" in str(gone)) is is_ending
    else:
        assert type(gone) is StoreUnreachable


@pytest.mark.parametrize(("topic", "copies"), [("results", 3), (None, -1)])
def test_the_topic_of_tokens_has_as_many_copies_as_the_results(topic, copies):
    """Else nothing is delivered while the one broker that holds the tokens is away."""
    partitions = {n: SimpleNamespace(replicas=[n, n + 1, n + 2]) for n in range(2)}
    listing = SimpleNamespace(topics={"results": SimpleNamespace(partitions=partitions)})
    admin = SimpleNamespace(list_topics=lambda topic, timeout: listing)
    shape, none = Shape(Value.JSON, topic), ()
    target = KafkaTarget(None, "q", Cluster("host:1"), shape, Writers(), lambda tasks: none)
    assert target._copies(admin) == copies


def test_without_its_note_a_checkpoint_has_as_many_writers_as_partitions_of_tokens(monkeypatch):
    """Another number would deal the last batch anew: some rows twice, others never."""
    there, cluster = Checkpoint.below("/q", world=MemoryWorld()), Cluster("host:1")
    topic = SimpleNamespace(error=None, partitions={0: None, 1: None})
    listing = SimpleNamespace(topics={"joinengine-q-tokens": topic})
    admin = SimpleNamespace(list_topics=lambda name, timeout: listing)
    kafka = SimpleNamespace(admin=SimpleNamespace(AdminClient=lambda config: admin))
    monkeypatch.setattr(kafka_target, "library", lambda: kafka)
    assert [check_note(there, "q", cluster, "results", count) for count in (None, 2)] == [2, 2]
    with pytest.raises(CheckpointMismatch, match="delivers with 2, and 3 are asked for"):
        check_note(there, "q", cluster, "results", 3)
    topic.error = "unknown"  # a new checkpoint
    assert [check_note(there, "q", cluster, "results", count) for count in (None, 3)] == [1, 3]
