"""`format("kafka")` through Spark: results once, by tasks that stay and by jobs; refusals."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from joinengine import InvalidRequest, StreamJoin, equi, parquet_stream
from tests.brokers import consume, fresh_topic
from tests.stream.cases import pairs
from tests.stream.conftest import oracle

pytestmark = pytest.mark.spark
SECRET = "hunter2-and-more"


@pytest.fixture
def writer(spark, folders, tmp_path, broker):
    left = parquet_stream(spark, folders.orders, rows_per_interval=40)
    right = parquet_stream(spark, folders.items, rows_per_interval=120)
    joined = StreamJoin(left, right, on=equi("id", "order_id"), instances=3)

    def make(topic, **options):
        options = {"kafka.bootstrap.servers": broker.servers, "topic": topic, **options}
        there = joined.writeStream.option("checkpointLocation", tmp_path / "checkpoint")
        return there.format("kafka").options(**options).trigger(availableNow=True)

    return make


@pytest.mark.parametrize("options", [{"key": "id"}, {"tasks": "jobs", "producers": 2}])
def test_results_are_in_the_topic_once(writer, folders, broker, tmp_path, options):
    topic = fresh_topic(broker, partitions=2)
    query = writer(topic, **options).start()
    query.awaitTermination()
    again = writer(topic, **options).start()  # delivers the last batch again, which is there
    again.awaitTermination()
    found = consume(broker, topic)
    rows = [json.loads(message.value()) for message in found]
    expected = oracle(pairs(folders, "id = order_id"))
    assert expected.total() > 0
    assert len(rows) == expected.total()
    numbers = sorted(one for row in expected.elements() for one in row if isinstance(one, int))
    told = [one for row in rows for one in row.values() if isinstance(one, int)]
    assert sorted(told) == numbers
    if "key" in options:
        assert Counter(m.key() for m in found) == Counter(str(r["id"]).encode() for r in rows)
        places = {(message.key(), message.partition()) for message in found}
        assert len(places) == len({key for key, _ in places})


def test_what_cannot_be_is_refused_before_the_start(writer, broker, tmp_path):
    topic = fresh_topic(broker)
    for options, said in [
        ({"topic": "missing-topic"}, "has no topic 'missing-topic'"),
        ({"value": "columns"}, "'columns' needs a column 'value'"),
        ({"key": "missing"}, "key: the results have no column 'missing'"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "does not answer"),
        ({"kafka.security.protocol": "ssl"}, "do not agree about TLS|does not answer"),
        ({"kafka.no.such.setting": "1"}, "Kafka's client refuses a setting"),
        ({"kafka.transactional.id": "mine"}, "joinengine sets 'transactional.id' itself"),
        ({"producers": "0"}, "producers: expected a whole number"),
        ({"delivery": "twice"}, "delivery"),
        ({"numRows": "3"}, "option 'numRows' is unknown"),
    ]:
        with pytest.raises(InvalidRequest, match=said):
            writer(**({"topic": topic} | options)).start()
        assert not (tmp_path / "checkpoint").exists(), options


def test_secrets_stay_secret(writer, broker, tmp_path):
    topic = fresh_topic(broker)
    chosen = writer(topic, **{"kafka.sasl.password": SECRET, "kafka.SASL.username": "me"})
    assert SECRET not in repr(chosen)
    query = chosen.start()
    query.awaitTermination()
    said = [query.explain() or "", json.dumps(query.lastProgress, default=str), repr(query)]
    assert not any(SECRET in text for text in said)
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert files
    assert not [one for one in files if SECRET.encode() in one.read_bytes()]
    with pytest.raises(InvalidRequest) as refused:
        writer("missing", **{"kafka.sasl.password": SECRET}).start()
    assert SECRET not in str(refused.value)
