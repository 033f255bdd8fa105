"""Topics of a real broker joined, restarted and killed between batches, and compared with truth."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter

import pyarrow.dataset as ds
import pytest

from joinengine import StreamJoin, equi, kafka_stream
from tests.brokers import fresh_topic, produce
from tests.waiting import soon

pytestmark = pytest.mark.spark
LEFT, RIGHT = "id bigint, lv int", "rid bigint, rv string"

PROGRAM = """
import sys
from joinengine import StreamJoin, equi, kafka_stream, session
servers, left, right, root = sys.argv[1:]
spark = session(master="local[1]")
sides = [kafka_stream(spark, servers, left, schema="id bigint, lv int", max_rows=300),
         kafka_stream(spark, servers, right, schema="rid bigint, rv string", max_rows=300)]
writer = StreamJoin(*sides, on=equi("id", "rid"), instances=2).writeStream.format("parquet")
writer = writer.option("checkpointLocation", root + "/checkpoint").option("path", root + "/out")
writer.start().awaitTermination()
"""


class Topics:
    """Two topics, of which a partition of the right one gets nothing; key 0 is hot."""

    def __init__(self, broker):
        self.broker, self.rows = broker, ([], [])
        self.left, self.right = fresh_topic(broker, 3), fresh_topic(broker, 2)

    def add(self, n):
        first = len(self.rows[0])
        keys = [0 if i % 5 == 0 else i % 97 for i in range(first, first + n)]
        left = [(key, i) for i, key in enumerate(keys, first)]
        right = [(i % 97, f"é {i}\n") for i in range(first, first + n // 3)]
        for number, partition in ((0, left[0::2]), (2, left[1::2])):
            self._send(self.left, ("id", "lv"), partition, number)
        self._send(self.right, ("rid", "rv"), right, 1)
        self.rows[0].extend(left)
        self.rows[1].extend(right)

    def _send(self, topic, names, rows, partition):
        texts = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
        produce(self.broker, topic, texts, partition=partition)

    def joined(self):
        return Counter(
            (*left, *right)
            for left in self.rows[0]
            for right in self.rows[1]
            if left[0] == right[0]
        )


def found_in(folder):
    table = ds.dataset(folder).to_table(columns=["id", "lv", "rid", "rv"])
    return Counter(zip(*table.to_pydict().values(), strict=True))


@pytest.fixture
def topics(broker):
    made = Topics(broker)
    made.add(700)
    return made


@pytest.fixture
def started(spark, broker, topics, tmp_path):
    """Starts the join; `more`: arguments of both streams."""

    def start(finite=True, **more):
        left = kafka_stream(spark, broker.servers, topics.left, schema=LEFT, **more)
        right = kafka_stream(spark, broker.servers, topics.right, schema=RIGHT, **more)
        writer = StreamJoin(left, right, on=equi("id", "rid"), instances=4).writeStream.format(
            "parquet"
        )
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.option("path", str(tmp_path / "out"))
        query = (writer.trigger(availableNow=True) if finite else writer).start()
        if finite:
            query.awaitTermination()
        return query

    return start


def test_two_topics_are_joined_over_restarts(each_exchange, topics, started, tmp_path):
    first = started(max_rows=200)
    assert len(first.recentProgress) > 3
    assert found_in(tmp_path / "out") == topics.joined()
    topics.add(300)
    started()
    assert found_in(tmp_path / "out") == topics.joined()
    running = started(finite=False)
    topics.add(10)
    running.processAllAvailable()
    ends = json.loads(running.lastProgress["sources"][-1]["endOffset"])
    assert ends == {"0": {"0": 505, "1": 0, "2": 505}, "1": {"0": 0, "1": 336}}
    running.stop()
    truth = topics.joined()
    assert found_in(tmp_path / "out") == truth
    assert sum(truth.values()) > 1000


def test_a_driver_that_is_killed_loses_and_repeats_nothing(broker, topics, started, tmp_path):
    args = [broker.servers, topics.left, topics.right, str(tmp_path)]
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, *args], stderr=subprocess.DEVNULL)
    try:
        for _ in range(3):
            topics.add(2000)
        manifests = tmp_path / "checkpoint" / "joinengine" / "manifest"
        soon(lambda: len(list(manifests.glob("*"))) > 3 if manifests.exists() else False, 60)
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait()
    topics.add(100)
    soon(lambda: _started(started))
    assert found_in(tmp_path / "out") == topics.joined()


def _started(started):
    started()
    return True
