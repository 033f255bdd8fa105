"""Topics of a real broker joined, restarted and killed between batches, and compared with truth."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import traceback
from collections import Counter

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from joinengine import InvalidRequest, StreamJoin, band, equi, kafka_stream, theta, within
from joinengine.model.errors import UnreadableMessage
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
        writer = writer.option("sideOutput", str(tmp_path / "aside"))
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


@pytest.mark.slow
def test_a_driver_that_is_killed_loses_and_repeats_nothing(broker, topics, started, tmp_path):
    args = [broker.servers, topics.left, topics.right, str(tmp_path)]
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, *args], stderr=subprocess.DEVNULL)
    try:
        for _ in range(3):
            topics.add(2000)
        soon(lambda: len(list(tmp_path.glob("out/*.parquet"))) > 3, 150)
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait()
    topics.add(100)
    soon(lambda: _started(started))
    assert found_in(tmp_path / "out") == topics.joined()


def _started(started):
    started()
    return True


def test_bad_messages_end_the_query_by_name_or_are_told(
    broker, topics, started, tmp_path, each_exchange
):
    produce(broker, topics.left, [b"no json"], [b"k"], partition=0, headers=[("h", b"1")])
    query = started(finite=False)
    said = rf"topic '{topics.left}', partition 0, offset 350: cannot be read as json .*on_error"
    with pytest.raises(UnreadableMessage, match=said):
        query.awaitTermination()
    again = started(on_error="skip")
    assert found_in(tmp_path / "out") == topics.joined()
    (told,) = [one for row in again.metrics()["skipped_files"].to_pylist() for one in row]
    assert told.startswith(f"{topics.left}[0] offset 350: cannot be read as json")
    (aside,) = ds.dataset(tmp_path / "aside" / "skipped").to_table().to_pylist()
    assert aside["file"] == f"{topics.left}[0] offset 350"
    (message,) = ds.dataset(tmp_path / "aside" / "messages").to_table().to_pylist()
    assert message.pop("timestamp") is not None
    assert message.pop("reason") in aside["reason"]
    assert message == {
        **{"topic": topics.left, "partition": 0, "offset": 350},
        **{"key": b"k", "value": b"no json", "headers": [{"key": "h", "value": b"1"}]},
    }


def test_messages_that_were_refused_are_sent_again_from_the_side_output(
    broker, topics, started, tmp_path
):
    produce(broker, topics.right, [b"no json", None, b'{"rid": "x"}'], partition=1)
    started(on_error="skip")
    refused = ds.dataset(tmp_path / "aside" / "messages").to_table(
        columns=["topic", "key", "value", "offset"]
    )
    assert sorted(refused["value"].to_pylist(), key=str) == sorted(
        [b"no json", None, b'{"rid": "x"}'], key=str
    )
    topics.rows[1].append((7, "mended"))
    for row in refused.filter(pc.equal(refused["value"], b"no json")).to_pylist():
        produce(broker, row["topic"], [b'{"rid": 7, "rv": "mended"}'], [row["key"]])
    started(on_error="skip")
    assert found_in(tmp_path / "out") == topics.joined()
    again = ds.dataset(tmp_path / "aside" / "messages").to_table(columns=["offset"])
    assert again.num_rows == refused.num_rows


def test_what_nobody_may_see_is_nowhere(broker, topics, started, tmp_path, caplog, spark):
    secrets = {"sasl.password": "hunter2-a", "sasl.username": "hunter2-b", "ssl.key.password": "x"}
    produce(broker, topics.left, [b"no json"], partition=0)
    stream = kafka_stream(spark, broker.servers, topics.left, schema=LEFT, options=secrets)
    assert "hunter2" not in f"{stream} {stream!r} {stream.reading!r} {stream.feed!r}"
    query = started(finite=False, options=secrets)
    with pytest.raises(UnreadableMessage) as failed:
        query.awaitTermination()
    assert "hunter2" not in "".join(traceback.format_exception(failed.value))
    query = started(options=secrets, on_error="skip")
    said = query.explain(), query.lastProgress, query.metrics(), query.story(), query.progress()
    assert "hunter2" not in "".join(map(str, said)) + caplog.text
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert len(files) > 5
    assert not [one for one in files if b"hunter2" in one.read_bytes()]


def test_what_waits_is_told_for_each_partition(topics, started):
    query = started(max_rows=200)
    rows = query.metrics()["behind"].to_pylist()
    assert {(one["source"], one["partition"]) for one in rows[0]} == {
        *((0, 0), (0, 1), (0, 2)),
        *((1, 0), (1, 1)),
    }
    waiting = query.metrics()["behind_rows"].to_pylist()
    assert waiting[0] > 400
    assert waiting == sorted(waiting, reverse=True)
    assert waiting[-1] == 0
    assert all(one["seconds"] == 0 for one in rows[-1])
    oldest = query.metrics()["behind_s"].to_pylist()
    assert 0 < oldest[0] < 600  # what was read last was sent by this test
    assert oldest[0] == max(one["seconds"] for one in rows[0] if one["seconds"] is not None)
    assert "waiting in topics for up to" in query.progress()
    entry = query.story()["batches"][0]
    assert entry["behind_rows"] == waiting[0]
    assert {one["source"] for one in entry["behind"]} <= {
        f"kafka {topics.left}",
        f"kafka {topics.right}",
    }


def test_what_cannot_be_asked_of_a_topic(broker, topics, spark, tmp_path):
    left = kafka_stream(spark, broker.servers, topics.left, schema=LEFT)
    right = kafka_stream(spark, broker.servers, topics.right, schema=RIGHT)
    with pytest.raises(InvalidRequest, match=r"to_df: .*Spark's own Kafka source"):
        left.to_df()
    writer = StreamJoin(left, right, on=equi("id", "rid")).writeStream.format("noop")
    writer = writer.option("durability", "replicas").option("checkpointLocation", str(tmp_path))
    with pytest.raises(InvalidRequest, match="needs sources of which a batch can be read again"):
        writer.start()
    wrong = [
        (dict(schema=None), "needs the columns"),
        (dict(schema="a map<string,int>"), "which is not read from JSON"),
        (dict(value="raw", schema="a int"), "has one column, value"),
        (dict(value="xml"), "value: 'xml' is unknown"),
        (dict(include=["what"]), "include: 'what' is unknown"),
        (dict(include="what"), "include: 'what' is unknown"),
        (dict(schema="key int", include=["key"]), "there is a column 'key' already"),
        (dict(start="yesterday"), "start: expected"),
        (dict(start={0: -1}), "start: expected"),
        (dict(start=1 << 63), "start: expected"),
        (dict(idle="-1 s"), "is negative"),
        (dict(max_rows=0), "max_rows"),
        (dict(options={"group.id": "x"}), "sets 'group.id' itself"),
    ]
    for change, said in wrong:
        with pytest.raises(InvalidRequest, match=said):
            kafka_stream(spark, broker.servers, topics.left, **{"schema": LEFT, **change})
    with pytest.raises(InvalidRequest, match="has no topic 'nowhere'"):
        kafka_stream(spark, broker.servers, "nowhere", schema=LEFT)


def test_steps_and_included_columns(broker, topics, spark, tmp_path):
    left = kafka_stream(
        spark, broker.servers, topics.left, schema=LEFT, include=["partition", "offset"]
    )
    left = left.where("lv % 2 = 0").withColumn("twice", "lv * 2")
    left = left.select("id", "twice", "partition", "offset")
    right = kafka_stream(spark, broker.servers, topics.right, schema=RIGHT).select("rid")
    writer = StreamJoin(left, right, on=equi("id", "rid"), instances=2).writeStream
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).format("parquet")
    writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    found = ds.dataset(tmp_path / "out").to_table().to_pylist()
    truth = Counter(
        (key, 2 * value, 0 if value % 2 == 0 else 2, value // 2)
        for key, value in topics.rows[0]
        for other, _ in topics.rows[1]
        if key == other and value % 2 == 0
    )
    assert Counter((r["id"], r["twice"], r["partition"], r["offset"]) for r in found) == truth
    assert sum(truth.values()) > 100


def test_a_partition_that_is_read_later_is_not_late(broker, spark, tmp_path):
    """A greatest event time over all partitions would drop the rows of the second one."""
    left, right = fresh_topic(broker, 2), fresh_topic(broker)

    def send(topic, partition, seconds):
        texts = [json.dumps({"k": 1, "s": s, "at": f"2026-03-01T00:00:{s:02}Z"}) for s in seconds]
        produce(broker, topic, texts, partition=partition)

    send(left, 0, [10, 50])
    send(left, 1, [11])
    send(right, 0, [12, 59])
    sides = [
        kafka_stream(
            spark, broker.servers, topic, schema="k int, s int, at timestamp", idle="1 hour"
        )
        for topic in (left, right)
    ]
    window = within("at", "at", lower="0 s", upper="1 hour", delay="0 s")
    join = StreamJoin(*sides, on="k", within=window, suffixes=("_l", "_r"), instances=2)
    writer = join.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    send(left, 1, [12])
    query.processAllAvailable()
    query.stop()
    found = ds.dataset(tmp_path / "out").to_table(columns=["s_l", "s_r"]).to_pylist()
    assert Counter((row["s_l"], row["s_r"]) for row in found) == Counter(
        [(10, 12), (10, 59), (11, 12), (11, 59), (50, 59), (12, 12), (12, 59)]
    )
    assert sum(query.metrics()["late_rows"].to_pylist()) == 0


def test_the_changes_of_two_databases_are_joined(spark, broker, tmp_path):
    """Rows are deleted and updated over two starts; what is there in the end has been joined."""
    tables, topics = ({}, {}), [fresh_topic(broker, 1) for _ in range(2)]

    def change(side, ident, value):
        before = tables[side].pop(ident, None)
        after = None if value is None else {"id": ident % 7, "ident": ident, "value": value}
        op = "c" if before is None else "d" if after is None else "u"
        text = json.dumps({"op": op, "before": before, "after": after})
        produce(broker, topics[side], [text, None] if op == "d" else [text])
        if after is not None:
            tables[side][ident] = after

    def joined():
        columns = "id bigint, ident bigint, value string"
        sides = [
            kafka_stream(
                *(spark, broker.servers, topic), value="debezium", schema=columns, changes=True
            )
            for topic in topics
        ]
        join = StreamJoin(*sides, on="id", suffixes=("_l", "_r"), changes="_change", instances=4)
        writer = join.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    for ident in range(40):
        change(0, ident, f"l{ident}")
        change(1, ident % 20, f"r{ident}")
    joined()
    for ident in range(0, 40, 3):
        change(0, ident, None if ident % 2 else "new")
        change(1, ident % 20, None if ident in tables[1] else "again")
    joined()
    found, truth = Counter(), Counter()
    for row in ds.dataset(tmp_path / "out").to_table().to_pylist():
        found[tuple(list(row.values())[:-1])] += row["_change"]
    for left in tables[0].values():
        for right in tables[1].values():
            if left["id"] == right["id"]:
                truth[(*left.values(), right["ident"], right["value"])] += 1
    assert {row: n for row, n in found.items() if n} == truth
    assert len(found) > len(truth) > 50


def test_what_is_no_change_of_a_database(spark, broker, topics):
    def stream(**more):
        given = {"schema": LEFT, "value": "debezium", "changes": True} | more
        return kafka_stream(spark, broker.servers, topics.left, **given)

    row = {"type": "record", "name": "r", "fields": [{"name": "op", "type": "string"}]}
    other = [{"name": name, "type": "long"} for name in ("before", "after")]
    for change, said in (
        (dict(value="json"), "changes: value='json' has no envelopes of Debezium"),
        (dict(schema="_change int"), "changes: there is a column '_change' already"),
        (dict(value="avro", schema=row), "not an Avro schema whose columns joinengine reads"),
        (
            dict(value="avro", schema={**row, "fields": row["fields"] + other}),
            "changes: an envelope of Debezium has the fields op",
        ),
    ):
        with pytest.raises(InvalidRequest, match=said):
            stream(**change)
    of_message = stream(include=["offset", "timestamp"])
    days = of_message.withColumn("lv", "cast(timestamp as date)").select("id", "lv", "_change")
    rows = stream(schema=RIGHT, include=["timestamp"])
    hour = within("timestamp", "timestamp", lower="0 s", upper="1 hour", delay="0 s")
    keys, pair = equi("id", "rid"), {"select": ["id", "rid"]}
    for name, left, on, more in (
        ("offset", of_message.select("id", "offset", "_change"), keys, {}),
        ("lv", days, keys, {}),
        ("lv", of_message.withColumn("lv", "_change + 1"), equi("lv", "rid"), pair),
        ("timestamp", of_message, keys, {"within": hour, **pair}),
        ("timestamp", of_message, theta("left.timestamp = right.timestamp"), pair),
        ("timestamp", of_message, band("timestamp", "timestamp", lower="0 s"), pair),
    ):
        with pytest.raises(InvalidRequest, match=f"changes: {name} of the left side is of one ch"):
            StreamJoin(left, rows, on=on, changes="_change", instances=2, **more)
    plain = of_message.withColumn("timestamp", "timestamp_seconds(id)")
    plain = plain.withColumn("offset", "lv + 1")  # what stands in their place is of the row
    StreamJoin(plain, stream(schema=RIGHT), on=keys, changes="_change", instances=2)
