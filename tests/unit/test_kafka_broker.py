"""The broker of the tests: it keeps what it has acknowledged, and ends with who has started it."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

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


STARTS = """
import sys, time
from pathlib import Path
from benchmarks.kafka.broker import Broker
running = Broker(Path(sys.argv[1]))
running.start()
print(running.servers, flush=True)
time.sleep(600)
"""


def answers(servers):
    try:
        return bool(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=2).brokers)
    except KafkaException:
        return False


@pytest.mark.slow
def test_a_broker_ends_with_a_program_that_is_killed(broker, tmp_path):
    command = [sys.executable, "-c", STARTS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        servers = program.stdout.readline().strip()
        assert answers(servers)
        program.kill()
    until = time.monotonic() + 30
    while answers(servers):
        assert time.monotonic() < until, "the broker is still there"
