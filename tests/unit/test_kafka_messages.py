"""Rows become messages: JSON objects, or the columns of a message."""

from __future__ import annotations

import base64
import io
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pyarrow.json
import pytest

from joinengine.model.errors import InvalidRequest
from joinengine.results.kafka_messages import (
    Shape,
    Value,
    avro_schema,
    check_schema,
    chosen_value,
    messages,
)
from joinengine.results.kafka_target import dealt
from joinengine.results.kafka_writers import DeliverTask
from joinengine.wire.codec import decode, encode
from joinengine.world.kafka_clients import Cluster
from joinengine.world.storage import StoredFile

JSON = Shape(Value.JSON, "t")
COLUMNS = Shape(Value.COLUMNS)
NOON = datetime(2026, 1, 2, 12, 0, 0, 250, UTC)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ROWS = pa.RecordBatch.from_pydict(
    {
        "n": pa.array([1, None], pa.int64()),
        "odd \"name'": ["ä\n", None],
        "x": [1.5, math.nan],
        "y": [-math.inf, math.inf],
        "at": pa.array([NOON, None], pa.timestamp("us", "UTC")),
        "raw": [b"\x00\xff", None],
        "d": pa.array([Decimal("12.30"), None], pa.decimal128(9, 2)),
        "day": pa.array([date(2026, 1, 2), None]),
        "flag": [True, None],
        "list": [[1, 2], None],
    }
)


def test_whole_rows_are_json_objects():
    first, second = (json.loads(value) for value in messages(ROWS, JSON).values)
    assert first == {
        **{"n": 1, "odd \"name'": "ä\n", "x": 1.5, "y": "-Infinity"},
        **{"at": "2026-01-02T12:00:00.000250Z", "raw": base64.b64encode(b"\x00\xff").decode()},
        **{"d": 12.3, "day": "2026-01-02", "flag": True, "list": [1, 2]},
    }
    assert second == dict.fromkeys(ROWS.schema.names) | {"x": "NaN", "y": "Infinity"}


def test_whole_rows_are_records_of_avro():
    rows, shape = ROWS.select(["n", "at", "d"]), Shape(Value.AVRO, "t", "n", schema_id=7)
    found = messages(rows, shape)
    assert found.keys == [b"1", None]
    assert {value[:5] for value in found.values} == {b"\x00\x00\x00\x00\x07"}
    told = fastavro.parse_schema(json.loads(avro_schema(rows.schema)))
    values = [fastavro.schemaless_reader(io.BytesIO(one[5:]), told, None) for one in found.values]
    assert values == rows.to_pylist()


def test_lists_are_arrays_of_avro():
    rows = ROWS.select(["list"])
    assert messages(rows, Shape(Value.AVRO, "t")).values == [
        b"\x02\x04\x02\x02\x02\x04\x00",
        b"\x00",
    ]
    (field,) = json.loads(avro_schema(rows.schema))["fields"]
    assert field["type"] == ["null", {"type": "array", "items": ["null", "long"]}]


@pytest.mark.parametrize("column", ["map", "odd \"name'"])
def test_columns_that_avro_lacks_are_refused(column):
    kind = pa.map_(pa.string(), pa.int64()) if column == "map" else pa.int64()
    with pytest.raises(InvalidRequest, match="value: 'avro' cannot hold the results: column"):
        check_schema(pa.schema([(column, kind)]), Shape(Value.AVRO, "t"))


def test_instants_are_read_back_by_a_reader_with_a_schema():
    lines = b"\n".join(messages(ROWS.select(["n", "at"]), JSON).values)
    kept = ROWS.schema.field("at")
    found = pyarrow.json.read_json(
        pa.BufferReader(lines),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=pa.schema([kept])),
    )
    assert found.column("at").to_pylist() == [NOON, None]


def test_years_before_the_first_have_a_sign_and_four_digits():
    days = pa.array([-719_529, -719_528, -719_163, -719_162, None], pa.int32()).cast(pa.date32())
    wanted = ["-0001-12-31", "0000-01-01", "0000-12-31", "0001-01-01", None]
    at = days.cast(pa.timestamp("s")).cast(pa.timestamp("us", "UTC"))
    for array, clock in ((days, ""), (at, "T00:00:00.000000Z")):
        inside = pa.StructArray.from_arrays([array], ["in"])
        rows = pa.RecordBatch.from_arrays([array, inside], ["v", "s"])
        read = [json.loads(value) for value in messages(rows, JSON).values]
        texts = [text and text + clock for text in wanted]
        assert [row["v"] for row in read] == [row["s"]["in"] for row in read] == texts


@pytest.mark.parametrize("name", ["interval", "months", "variant"])
def test_lengths_of_time_and_variants_have_no_json(name):
    part = pa.field("metadata", pa.binary(), metadata={"variant": "true"})
    kinds = {"interval": pa.duration("us"), "months": pa.month_day_nano_interval()}
    kind = kinds.get(name, pa.struct([pa.field("value", pa.binary()), part]))
    for outer in (kind, pa.list_(kind)):
        with pytest.raises(InvalidRequest, match=r"value: 'json' has no form for column 'c'"):
            check_schema(pa.schema([("c", outer)]), JSON)
    check_schema(pa.schema([("value", pa.binary())]), JSON)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_instants_of_all_units_and_zones(unit, zone):
    kind = pa.timestamp(unit, zone)
    rows = pa.RecordBatch.from_arrays([pa.array([0, None], pa.int64()).cast(kind)], ["at"])
    first, second = (json.loads(value)["at"] for value in messages(rows, JSON).values)
    assert first.startswith("1970-01-01T00:00:00")
    assert first.endswith("Z") == (zone is not None)
    assert second is None


def test_a_key_is_the_text_of_a_column():
    assert messages(ROWS, Shape(Value.JSON, "t", "n")).keys == [b"1", None]
    assert messages(ROWS, Shape(Value.JSON, "t", "raw")).keys == [b"\x00\xff", None]
    assert messages(ROWS, JSON).keys is None


def test_columns_of_a_message():
    rows = pa.RecordBatch.from_pydict(
        {
            "value": ["a", None],
            "key": [b"k", None],
            "topic": ["t1", "t2"],
            "partition": pa.array([0, None], pa.int32()),
            "headers": pa.array([[{"key": "h", "value": b"1"}], None], HEADERS),
        }
    )
    check_schema(rows.schema, COLUMNS)
    assert chosen_value(rows.schema) is Value.COLUMNS
    found = messages(rows, COLUMNS)
    assert found.values == [b"a", None]
    assert found.keys == [b"k", None]
    assert found.topics == ["t1", "t2"]
    assert found.partitions == [0, None]
    assert found.headers == [[("h", b"1")], None]
    assert messages(rows, Shape(Value.COLUMNS, headers=False)).headers is None
    assert messages(rows, Shape(Value.COLUMNS, "t")).topics is None


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"1"}])
def test_a_header_without_a_key_is_refused(header):
    rows = pa.RecordBatch.from_pydict({"value": ["a"], "headers": pa.array([[header]], HEADERS)})
    with pytest.raises(InvalidRequest, match="headers: a header in column 'headers' is NULL"):
        messages(rows, Shape(Value.COLUMNS, "t"))


def test_many_rows_keep_their_order():
    rows = pa.RecordBatch.from_pydict({"n": list(range(50_000))})
    found = [json.loads(value)["n"] for value in messages(rows, JSON).values]
    assert found == list(range(50_000))


@pytest.mark.parametrize(
    ("fields", "shape", "said"),
    [
        ([("n", pa.int64())], COLUMNS, "needs a column 'value'"),
        ([("value", pa.string()), ("n", pa.int64())], COLUMNS, "no use for the column 'n'"),
        ([("value", pa.int64())], Shape(Value.COLUMNS, "t"), "column 'value' of a message is text"),
        ([("value", pa.string())], COLUMNS, "topic is missing"),
        ([("n", pa.int64())], Shape(Value.JSON), "topic is missing"),
        ([("n", pa.int64())], Shape(Value.JSON, "t", "m"), "no column 'm'; choose one of n"),
        (
            [("l", pa.list_(pa.int64()))],
            Shape(Value.JSON, "t", "l"),
            "key: column 'l' is list<.*>, and the key of a message is one value",
        ),
        (
            [("value", pa.string()), ("headers", pa.list_(pa.string()))],
            Shape(Value.COLUMNS, "t"),
            "column 'headers' of a message is a list of structs",
        ),
    ],
)
def test_results_that_do_not_fit_are_refused(fields, shape, said):
    with pytest.raises(InvalidRequest, match=said):
        check_schema(pa.schema(fields), shape)


def test_each_file_of_a_batch_has_one_producer():
    files = tuple(StoredFile(f"g1-{n:012x}.parquet", 1, 0) for n in range(100))
    shares = [dealt(((7, files), (8, ())), number, 3) for number in range(3)]
    assert [[batch for batch, _ in share] for share in shares] == [[7, 8]] * 3
    assert sorted(f.name for share in shares for _, part in share for f in part) == sorted(
        f.name for f in files
    )
    assert all(share[0][1] for share in shares)


def test_instructions_travel_and_show_no_secret():
    broker = Cluster("b:9092", {"sasl.password": "hunter2"})
    files = (StoredFile("g1-a.parquet", 1, 0),)
    task = DeliverTask(broker, "q-0", 0, "tokens", (1, 1), False, JSON, "folder", ((3, files),))
    assert decode(encode(task), DeliverTask) == task
    assert "hunter2" not in repr(task)
