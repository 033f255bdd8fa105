"""`format("kafka")` through Spark: results once, by tasks that stay and by jobs; refusals."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import fastavro
import pyarrow.dataset as ds
import pytest

from joinengine import InvalidRequest, StreamJoin, equi, kafka_stream, parquet_stream
from tests.brokers import consume, fresh_topic, produce
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


class Registered(BaseHTTPRequestHandler):
    """A schema registry: it gives each schema a number, and refuses whoever has no password."""

    schemas: ClassVar = [None] * 258

    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
        assert self.path.endswith("-value/versions")
        if sent not in self.schemas:
            self.schemas.append(sent)
        self._answer({"id": self.schemas.index(sent)})

    def do_GET(self):
        asked = self.path.rpartition("/")[2]
        self._answer({"schema": self.schemas[-1 if asked == "latest" else int(asked)]})

    def _answer(self, answer):
        allowed = self.headers["Authorization"] == "Basic " + b64encode(SECRET.encode()).decode()
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *told):
        pass


@pytest.fixture
def registry():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registered)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    yield {"schema.registry.url": url, "schema.registry.basic.auth.user.info": SECRET}
    server.shutdown()
    server.server_close()


def by_fastavro(values):
    schema = fastavro.parse_schema(json.loads(Registered.schemas[-1]))
    assert {value[:5] for value in values} == {b"\0\0\0\1\2"}
    return Counter(
        tuple(fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None).values())
        for value in values
    )


def test_results_as_avro_are_read_back(spark, writer, folders, broker, tmp_path, registry):
    topic = fresh_topic(broker, partitions=2)
    told = {f"kafka.{name}": text for name, text in registry.items()}
    with pytest.raises(InvalidRequest, match=r"schema registry .* does not serve subjects/"):
        writer(topic, value="avro", **(told | {f"kafka.{list(registry)[1]}": "me:x"})).start()
    assert SECRET not in repr(writer(topic, value="avro", **told))
    writer(topic, value="avro", **told).start().awaitTermination()
    expected = oracle(pairs(folders, "id = order_id"))
    assert expected.total() > 0
    assert by_fastavro([one.value() for one in consume(broker, topic)]) == expected
    sides = [
        kafka_stream(spark, broker.servers, topic, value="avro", options=registry) for _ in range(2)
    ]
    again = StreamJoin(*sides, on=equi("id", "id"), how="left_semi", instances=2).writeStream
    again = again.format("parquet").option("checkpointLocation", tmp_path / "again")
    again.trigger(availableNow=True).start(tmp_path / "out").awaitTermination()
    found = ds.dataset(tmp_path / "out", exclude_invalid_files=True).to_table()
    assert Counter(tuple(row.values()) for row in found.to_pylist()) == expected


def test_a_query_goes_on_with_its_schema_when_the_registry_has_a_newer_one(
    spark, broker, tmp_path, registry, monkeypatch
):
    monkeypatch.setattr(Registered, "schemas", [None])
    topic = fresh_topic(broker)

    def send(rows, **fields):
        described = [{"name": name, "type": kind, "default": 0} for name, kind in fields.items()]
        schema = {"type": "record", "name": "Row", "fields": described}
        number = len(Registered.schemas)
        Registered.schemas.append(json.dumps(schema))
        values = []
        for row in rows:
            sent = io.BytesIO(b"\0" + number.to_bytes(4))
            sent.seek(5)
            fastavro.schemaless_writer(sent, schema, row)
            values.append(sent.getvalue())
        produce(broker, topic, values)

    def run():
        one, other = (
            kafka_stream(spark, broker.servers, topic, value="avro", options=registry)
            .withColumn("twice", "id * 2")
            .where("twice < 100")
            for _ in range(2)
        )
        joined = StreamJoin(one, other, on=equi("id", "id"), how="left_semi", instances=2)
        writer = joined.writeStream.format("parquet")
        writer = writer.option("checkpointLocation", tmp_path / "checkpoint")
        writer.trigger(availableNow=True).start(tmp_path / "out").awaitTermination()
        return ds.dataset(tmp_path / "out", exclude_invalid_files=True).to_table()

    send([{"id": 1}, {"id": 60}], id="long")
    assert run().to_pylist() == [{"id": 1, "twice": 2}]
    send([{"id": 3, "more": 7}], id="long", more="long")
    send([{"id": 4}], id="long")
    send([{"id": 5, "more": 8}], id="long", more="long")
    assert run().sort_by("id").to_pylist() == [{"id": n, "twice": 2 * n} for n in (1, 3, 4, 5)]


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
