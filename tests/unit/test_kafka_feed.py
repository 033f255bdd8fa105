"""A topic read range by range from a real broker: gaps, retention, partitions, identities."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from joinengine.model.errors import DataLost, InvalidRequest
from joinengine.predicates.dialect import compile_predicate
from joinengine.sources import kafka_feed
from joinengine.sources.kafka_feed import KafkaFeed, Topic
from joinengine.sources.kafka_reading import KafkaReading, close_clients
from joinengine.sources.kafka_values import Decoding, ValueFormat
from joinengine.sources.places import OffsetRange, Seen
from joinengine.world.kafka_clients import Cluster
from tests.brokers import fresh_topic, produce
from tests.waiting import soon

SCHEMA = pa.schema([("value", pa.binary())])


@pytest.fixture(autouse=True)
def _closed():
    yield
    close_clients()


def feed_of(broker, topic, start="earliest", log=None, **more):
    feed = KafkaFeed(Topic(Cluster(broker.servers), topic, start, **more), log)
    feed.check()
    return feed


def reading_of(broker, topic, **more):
    return KafkaReading(SCHEMA, cluster=Cluster(broker.servers), topic=topic, **more)


def read(reading, pieces, skipped=None):
    batches = reading.batches([one for one in pieces if one.skipped is None], skipped)
    return [value for batch in batches for value in batch["value"].to_pylist()]


def values(first, end):
    return [b"%d" % number for number in range(first, end)]


def test_a_topic_is_read_batch_after_batch(broker):
    topic = fresh_topic(broker, 3)
    for partition in range(3):
        produce(
            broker, topic, values(partition * 1000, partition * 1000 + 500), partition=partition
        )
    feed, reading, found = feed_of(broker, topic, max_rows=400), reading_of(broker, topic), []
    place = feed.begin()
    while feed.is_beyond(end := feed.advance(place), place):
        pieces = feed.pieces(place, end)
        assert sum(one.rows for one in pieces) <= 400 + 3
        assert feed.advance(place) == end
        found += read(reading, pieces)
        place = end
    assert sorted(found, key=int) == values(0, 500) + values(1000, 1500) + values(2000, 2500)
    produce(broker, topic, [b"9"], partition=1)
    feed.discover()
    assert read(reading, feed.pieces(place, feed.advance(place))) == [b"9"]


def test_cut_ranges_give_what_the_whole_gives_in_any_order(broker):
    topic = fresh_topic(broker)
    produce(broker, topic, values(0, 2000))
    reading = reading_of(broker, topic)
    cuts = [(0, 7), (1500, 2000), (7, 1000), (1000, 1500)]
    found = {cut: read(reading, [OffsetRange(topic, 0, *cut)]) for cut in cuts}
    assert found == {cut: values(*cut) for cut in cuts}


def test_a_reader_that_is_left_early_costs_the_next_one_nothing(broker):
    topic = fresh_topic(broker)
    produce(broker, topic, values(0, 100))
    reading = reading_of(broker, topic)
    left = reading.batches([OffsetRange(topic, 0, 0, 50)])
    next(left)
    other = reading.batches([OffsetRange(topic, 0, 20, 60)])
    assert next(other)["value"].to_pylist() == values(20, 60)
    left.close()
    assert read(reading, [OffsetRange(topic, 0, 40, 100)]) == values(40, 100)


def test_a_setting_that_a_consumer_alone_refuses_is_one_sentence(broker):
    topic = fresh_topic(broker)
    cluster = Cluster(broker.servers, {"fetch.max.bytes": 1000})
    with pytest.raises(InvalidRequest, match=r"refuses a setting .*must be >= `mess"):
        read(KafkaReading(SCHEMA, cluster=cluster, topic=topic), [OffsetRange(topic, 0, 0, 1)])


def test_transactions_leave_gaps_and_only_what_is_committed_is_read(broker):
    topic = fresh_topic(broker)
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": topic})
    producer.init_transactions()
    kept = []
    for number, commits in enumerate([True, False, True, False, False]):
        producer.begin_transaction()
        for one in values(number * 10, number * 10 + 10):
            producer.produce(topic, one)
        if commits:
            kept += values(number * 10, number * 10 + 10)
            producer.commit_transaction()
        else:
            producer.flush()  # else the client drops what it has not sent
            producer.abort_transaction()
    feed, reading = feed_of(broker, topic), reading_of(broker, topic)
    soon(lambda: (feed.discover(), feed.end()[0] == 55)[1])  # markers are written after the answer
    assert read(reading, feed.pieces({0: 0}, feed.end())) == kept
    # Each place in a gap begins and ends a range that ends.
    found = [read(reading, [OffsetRange(topic, 0, at, at + 1)]) for at in range(55)]
    assert [one for part in found for one in part] == kept
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush()
    produce(broker, topic, [b"behind it"])
    feed.discover()
    assert feed.end() == {0: 55}
    producer.commit_transaction()
    soon(lambda: (feed.discover(), feed.end()[0] > 55)[1])
    assert read(reading, feed.pieces({0: 55}, feed.end())) == [b"open", b"behind it"]


def test_compaction_leaves_gaps(broker):
    settings = {"cleanup_policy": "compact", "segment_ms": 100, "min_cleanable_dirty_ratio": 0.01}
    topic = fresh_topic(broker, **settings, max_compaction_lag_ms=100, segment_bytes=1_048_576)
    produce(broker, topic, values(0, 50), keys=[b"k"] * 50)

    def is_compacted():
        produce(broker, topic, [b"50"], keys=[b"other"])  # an active segment is not compacted
        close_clients()
        return len(read(reading_of(broker, topic), [OffsetRange(topic, 0, 0, 50)])) < 50

    soon(is_compacted, 20)
    found = read(reading_of(broker, topic), [OffsetRange(topic, 0, 0, 50)])
    assert found == [b"49"]


def test_what_retention_removed_is_an_error_or_is_told(broker):
    topic = fresh_topic(broker)
    produce(broker, topic, values(0, 100))
    (done,) = broker.admin.delete_records([TopicPartition(topic, 0, 40)]).values()
    done.result(10)
    feed = feed_of(broker, topic)
    assert feed.begin() == {0: 40}
    said = rf"topic '{topic}': offsets 10 to 39 of partition 0 were removed .* fail_on_data_loss"
    with pytest.raises(DataLost, match=said):
        feed.check_reaches({0: 10})
    with pytest.raises(DataLost, match=said):
        feed.pieces({0: 10}, {0: 100})
    with pytest.raises(DataLost, match="were removed before they were read"):
        read(reading_of(broker, topic), [OffsetRange(topic, 0, 10, 100)])
    careless = feed_of(broker, topic, loses=True)
    careless.check_reaches({0: 10})
    gone, rest = careless.pieces({0: 10}, {0: 100})
    assert (gone.told, gone.skipped) == (
        f"{topic}[0] offsets 10 to 39",
        "was removed before it was read",
    )
    assert read(reading_of(broker, topic), [rest]) == values(40, 100)


def test_what_is_removed_while_a_task_reads_is_told(broker):
    topic = fresh_topic(broker)
    produce(broker, topic, values(0, 100))
    (done,) = broker.admin.delete_records([TopicPartition(topic, 0, 40)]).values()
    done.result(10)
    skipped = []
    found = read(reading_of(broker, topic, loses=True), [OffsetRange(topic, 0, 10, 100)], skipped)
    assert found == values(40, 100)
    assert [one.file for one in skipped] == [f"{topic}[0] offsets 10 to 39"]


def test_a_partition_that_comes_later_is_read_from_its_begin(broker, monkeypatch):
    monkeypatch.setattr(kafka_feed, "_TOPIC_S", 0.0)
    topic = fresh_topic(broker)
    produce(broker, topic, values(0, 5))
    feed = feed_of(broker, topic, "latest")
    place = feed.begin()
    assert place == {0: 5}
    broker.admin.create_partitions([NewPartitions(topic, 2)])[topic].result(10)
    produce(broker, topic, values(5, 8), partition=1)
    soon(lambda: (feed.discover(), feed.end() == {0: 5, 1: 3})[1])
    end = feed.advance(place)
    assert feed.is_beyond(end, place)
    assert read(reading_of(broker, topic), feed.pieces(place, end)) == values(5, 8)


def test_a_topic_that_is_made_again_is_another(broker, tmp_path, monkeypatch):
    monkeypatch.setattr(kafka_feed, "_TOPIC_S", 0.0)
    topic = fresh_topic(broker)
    produce(broker, topic, values(0, 5))
    feed = feed_of(broker, topic, log=str(tmp_path))
    feed.take_over(1)
    broker.admin.delete_topics([topic])[topic].result(10)
    again = fresh_topic(broker, name=topic)
    produce(broker, again, values(0, 9))
    with pytest.raises(DataLost, match="was deleted and made again"):
        soon(feed.discover)
    with pytest.raises(DataLost, match="was deleted and made again"):
        feed_of(broker, topic, log=str(tmp_path))
    with pytest.raises(DataLost, match=r"partition 0 ends at offset 9, and the query has read up"):
        feed_of(broker, topic).check_reaches({0: 10})


@pytest.mark.slow
def test_a_broker_that_is_away_is_waited_for(broker, caplog):
    topic = fresh_topic(broker)
    produce(broker, topic, values(0, 5))
    feed, reading = feed_of(broker, topic), reading_of(broker, topic)
    assert read(reading, feed.pieces({0: 0}, feed.end())) == values(0, 5)
    broker.stop(kill=True)
    try:
        soon(lambda: (feed.discover(), "waiting for it" in caplog.text)[1])
        assert feed.end() == {0: 5}
    finally:
        broker.start()
    produce(broker, topic, values(5, 9))
    soon(lambda: (feed.discover(), feed.end() == {0: 9})[1])
    assert read(reading, feed.pieces({0: 5}, feed.end())) == values(5, 9)


def test_where_a_query_begins_is_kept(broker, tmp_path):
    topic = fresh_topic(broker, 2)
    produce(broker, topic, values(0, 10), partition=1)
    feed = feed_of(broker, topic, "latest", str(tmp_path))
    assert list(tmp_path.iterdir()) == []  # a start that is refused changes nothing
    feed.take_over(1)
    produce(broker, topic, values(10, 12), partition=1)
    assert feed_of(broker, topic, "earliest", str(tmp_path)).begin() == {0: 0, 1: 10}


def test_starts(broker):
    topic = fresh_topic(broker, 2, retention_ms=-1)
    for number in range(10):
        produce(broker, topic, [b"x"], partition=1, timestamp=1_000 + number)
    assert feed_of(broker, topic, {1: 4}).begin() == {0: 0, 1: 4}
    assert feed_of(broker, topic, 1_007).begin() == {0: 0, 1: 7}
    assert feed_of(broker, topic, 2_000).begin() == {0: 0, 1: 10}
    with pytest.raises(InvalidRequest, match="has no partition 5; it has 2"):
        feed_of(broker, topic, {5: 0})
    with pytest.raises(InvalidRequest, match="has the offsets 0 to 10; found 11"):
        feed_of(broker, topic, {1: 11})
    with pytest.raises(InvalidRequest, match="has no topic 'nowhere'"):
        feed_of(broker, "nowhere")


def test_how_far_a_partition_has_come(broker, monkeypatch):
    """By all that it brings, whatever filters leave; not by what is ahead of the clock."""
    topic, now_s = fresh_topic(broker, 1), 1_000_000
    rows = [(now_s - 5, 1), (now_s - 3, 0), (now_s + 10**6, 1), (now_s + 7, 0), (None, 1)]

    def text(at):
        return None if at is None else dt.datetime.fromtimestamp(at, dt.UTC).isoformat()

    produce(broker, topic, [json.dumps({"at": text(at), "v": v}) for at, v in rows])
    monkeypatch.setattr("joinengine.sources.kafka_reading.MACHINE.now_s", lambda: now_s)
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
    feed = feed_of(broker, topic)
    place = feed.begin()
    pieces = feed.pieces(place, feed.advance(place))
    for ahead_us, where, expected in [
        (None, "v = 0", now_s + 10**6),
        (8_000_000, "v = 1", now_s + 7),
        (7_000_000, "v = 2", now_s + 7),
        (6_999_999, "v = 1", now_s - 3),
    ]:
        step = compile_predicate(where, (schema, pa.schema([])), "where")
        reading = KafkaReading(
            schema,
            (step,),
            cluster=Cluster(broker.servers),
            topic=topic,
            decoding=Decoding(ValueFormat.JSON, schema),
            time="at",
            ahead_us=ahead_us,
        )
        seen = Seen()
        list(reading.batches(pieces, None, seen))
        assert seen.times == {0: expected * 10**6}
