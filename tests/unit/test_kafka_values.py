"""Values of messages become columns, and what cannot be decoded is named."""

from __future__ import annotations

import datetime as dt
import io
import json
import time

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.model.errors import InvalidRequest, UnreadableMessage
from joinengine.sources.avro_schemas import columns_of, schema_text
from joinengine.sources.kafka_values import INCLUDED, Decoding, OnError, ValueFormat, decoded
from joinengine.spark.sources.kafka_streams import _started
from joinengine.world.schema_registry import Registry
from tests.unit.messages import sent

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def read(messages, columns=COLUMNS, on_error=OnError.FAIL, include=(), kind=ValueFormat.JSON):
    decoding = Decoding(kind, columns, tuple(include), on_error)
    asked = [*columns, *(pa.field(name, INCLUDED[name]) for name in include)]
    skipped = []
    return decoded(messages, decoding, asked, skipped), skipped


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | st.text()), min_size=1))
def test_objects_come_out_as_they_went_in(rows):
    rows = [(one, None if two is None else two.replace("\ud800", "")) for one, two in rows]
    texts = [json.dumps({"id": one, "name": two, "more": [1]}).encode() for one, two in rows]
    batch, _ = read(sent(*texts))
    assert list(zip(*batch.to_pydict().values(), strict=True)) == rows


def test_fields_that_lack_are_null_and_values_over_several_lines_are_one():
    batch, _ = read(sent(b'{"id": 1}', b' {\n"name":\n"x\\n",\n"id": 2}\n', b'{"name": null}'))
    assert batch.to_pylist() == [
        {"id": 1, "name": None},
        {"id": 2, "name": "x\n"},
        {"id": None, "name": None},
    ]


BAD = [
    b"",
    None,
    b"null",
    b"[1]",
    b"7",
    b"{}{}",
    b'{"id": 1}\n{"id": 2}',
    b'{"id": 1',
    b'{"id": {}',
    b'{"name": "}',
    b'{"id": "x"}',
    b'{"id": 1.5}',
    b'{"id": 9223372036854775808}',
    b'{"name": "\xff"}',
    b'{"id": 1, "id": 2}',
    b'{"name": "a\nb"}',
]


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_what_is_not_one_object_of_these_columns_is_named(bad):
    good = b'{"id": 1, "name": "x"}'
    with pytest.raises(UnreadableMessage, match=r"topic 'clicks', partition 3, offset 1: cannot"):
        read(sent(good, bad, good))
    batch, skipped = read(sent(good, bad, good), on_error=OnError.SKIP, include=["offset"])
    assert batch["offset"].to_pylist() == [0, 2]
    assert batch["id"].to_pylist() == [1, 1]
    assert [one.file for one in skipped] == ["clicks[3] offset 1"]


@given(st.lists(st.sampled_from([*BAD, b'{"id": 1}', b"{}", b'{"id":\n2}']), min_size=1))
def test_bad_messages_never_join_or_hide(values):
    batch, skipped = read(sent(*values), on_error=OnError.SKIP, include=["offset"])
    bad = [number for number, one in enumerate(values) if one in BAD]
    assert batch["offset"].to_pylist() == [n for n in range(len(values)) if n not in bad]
    assert [one.file for one in skipped] == [f"clicks[3] offset {n}" for n in bad]


def test_of_very_many_bad_messages_the_most_are_counted():
    batch, skipped = read(sent(*[b"x"] * 500, b"{}"), on_error=OnError.SKIP)
    assert batch.num_rows == 1
    assert len(skipped) == 101
    assert skipped[-1] == (
        "clicks[3] offsets 100 to 499",
        "has 400 more that cannot be read as json",
    )


def test_types_of_json():
    columns = pa.schema(
        [
            *(("d", pa.date32()), ("t", pa.timestamp("us", "UTC")), ("m", pa.decimal128(10, 2))),
            *(("l", pa.list_(pa.int32())), ("s", pa.struct([("x", pa.float64())]))),
        ]
    )
    text = b'{"d":"2026-03-01","t":"2026-03-01T01:00:00+01:00","m":"1.50","l":[1],"s":{"x":2}}'
    (row,) = read(sent(text), columns)[0].to_pylist()
    assert row["d"] == dt.date(2026, 3, 1)
    assert row["t"] == dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    assert str(row["m"]) == "1.50"
    assert (row["l"], row["s"]) == ([1], {"x": 2.0})
    with pytest.raises(UnreadableMessage, match="offset 0"):
        read(sent(b'{"d": "yesterday"}'), columns)


def test_what_is_included_and_what_nobody_asks_for():
    batch, _ = read(sent(b'{"id": 1}', b'{"id": 2}'), include=INCLUDED)
    last = batch.to_pylist()[1]
    assert (last["key"], last["partition"], last["offset"]) == (b"k", 3, 1)
    assert last["headers"] == [{"key": "h", "value": b"1"}]
    assert last["timestamp"] == dt.datetime.fromtimestamp(1_700_000_000.001, dt.UTC)
    bare = decoded(sent(b"{}", b"{}"), Decoding(ValueFormat.JSON, COLUMNS), [], None)
    assert bare.num_rows == 2


def test_raw_values_are_as_they_are():
    columns = pa.schema([("value", pa.binary())])
    batch, _ = read(sent(b"\x00{", None, b""), columns, kind=ValueFormat.RAW)
    assert batch["value"].to_pylist() == [b"\x00{", None, b""]


def stream_of(rows, schema=COLUMNS):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema))
    return sink.getvalue().to_pybytes()


def test_arrow_streams_have_any_number_of_rows():
    two = stream_of([{"id": 1, "name": "a"}, {"id": 2, "name": None}])
    other = pa.schema([("x", pa.int8())])
    wide = stream_of([{"id": 3, "x": 1}], pa.schema([*COLUMNS, *other]))
    messages = sent(two, stream_of([]), b"no", wide, stream_of([{"x": 1}], other))
    told = {"on_error": OnError.SKIP, "include": ["offset"], "kind": ValueFormat.ARROW}
    batch, skipped = read(messages, **told)
    assert batch["id"].to_pylist() == [1, 2, 3]
    assert batch["offset"].to_pylist() == [0, 0, 3]
    assert [one.file for one in skipped] == ["clicks[3] offset 2", "clicks[3] offset 4"]


@pytest.mark.parametrize("size", range(1, 3))
def test_an_arrow_stream_that_is_cut_or_doubled_is_no_value(size):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, COLUMNS) as writer:
        for n in range(size):
            writer.write_batch(pa.RecordBatch.from_pydict({"id": [n], "name": ["x"]}, COLUMNS))
    whole = sink.getvalue().to_pybytes()
    told = {"on_error": OnError.SKIP, "kind": ValueFormat.ARROW}
    cuts = [whole[:end] for end in range(len(whole))]
    batch, skipped = read(sent(*cuts, whole + whole, whole + b"x", whole), **told)
    assert batch["id"].to_pylist() == list(range(size))
    assert sum("more" not in one.reason for one in skipped) == 100


def test_a_start_without_a_zone_is_in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        moments = [dt.datetime(1970, 1, 2), "1970-01-02", dt.datetime(1970, 1, 2, tzinfo=dt.UTC)]
        assert [_started(moment) for moment in moments] == [86_400_000] * 3
        assert _started("1960-01-01") == 0
    finally:
        monkeypatch.undo()
        time.tzset()


RECORD = {
    "type": "record",
    "name": "click",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
    ],
}


def record(row, schema=RECORD):
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), row)
    return sink.getvalue()


def read_records(messages, registry=None):
    text = json.dumps(RECORD)
    columns = columns_of(text)
    decoding = Decoding(ValueFormat.AVRO, columns, ("offset",), OnError.SKIP, text, registry)
    skipped = []
    asked = [*columns, pa.field("offset", pa.int64())]
    return decoded(messages, decoding, asked, skipped), skipped


def test_avro_records_and_those_of_another_schema():
    at = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    good = record({"id": 1, "name": "x", "at": at})
    batch, skipped = read_records(sent(good, good[:-1], good + b"\x00", None, good))
    assert batch.to_pylist() == [
        {"id": 1, "name": "x", "at": at, "offset": 0},
        {"id": 1, "name": "x", "at": at, "offset": 4},
    ]
    assert [one.file for one in skipped] == [f"clicks[3] offset {n}" for n in (1, 2, 3)]


def test_avro_by_a_registry():
    older = {**RECORD, "fields": RECORD["fields"][:1]}
    schemas = {7: RECORD, 8: older}

    class Known(Registry):
        def ask(self, path, sent=None, patience_s=0.0):
            return {"schema": json.dumps(schemas[int(path.removeprefix("schemas/ids/"))])}

    at = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    values = [
        b"\x00\x00\x00\x00\x07" + record({"id": 1, "name": None, "at": at}),
        b"\x00\x00\x00\x00\x08" + record({"id": 2}, older),
        b"\x00\x00\x00\x00\x09" + record({"id": 3}, older),
        record({"id": 4}, older),
    ]
    batch, skipped = read_records(sent(*values), Known("http://registry"))
    assert batch["id"].to_pylist() == [1, 2]
    assert len(skipped) == 2


@pytest.mark.parametrize("schema", ["[", '"int"', {"type": "record", "name": "r"}, 7, None])
def test_what_is_no_schema_of_avro(schema):
    with pytest.raises(InvalidRequest, match=r"schema: "):
        columns_of(schema_text(schema, None, "clicks"))


def test_a_registry_that_does_not_answer_tells_no_password():
    with pytest.raises(InvalidRequest, match=r"schema registry http://127\.0\.0\.1:1 does") as said:
        schema_text(None, Registry("http://127.0.0.1:1", "me:hunter2"), "clicks")
    assert "hunter2" not in str(said.value)


def change(op, after, wrapped):
    content = {"before": None, "after": after, "op": op, "source": {"db": "x"}}
    return json.dumps(
        {"schema": {"type": "s"}, "payload": content} if wrapped else content
    ).encode()


@pytest.mark.parametrize("wrapped", [False, True])
def test_inserts_of_debezium_are_rows_and_updates_and_deletes_are_refused(wrapped):
    columns = pa.schema([*COLUMNS, ("d", pa.date32())])
    row = {"id": 1, "name": "x", "d": "2026-03-01"}
    good = [change("c", row, wrapped), change("r", {"id": 2}, wrapped)]
    batch, _ = read(sent(*good), columns, kind=ValueFormat.DEBEZIUM, include=["offset"])
    assert batch.to_pylist() == [
        {"id": 1, "name": "x", "d": dt.date(2026, 3, 1), "offset": 0},
        {"id": 2, "name": None, "d": None, "offset": 1},
    ]
    for op, after in (("u", row), ("d", None), ("t", None), (None, row), ("c", None)):
        messages = sent(*good, change(op, after, wrapped))
        why = "field after" if op == "c" else rf"its op is {op!r}, and only .* changes=True"
        with pytest.raises(UnreadableMessage, match=f"offset 2: cannot be read as .*{why}"):
            read(messages, columns, kind=ValueFormat.DEBEZIUM)
    with pytest.raises(UnreadableMessage, match=r"offset 2: .*tombstone"):
        read(sent(*good, None), columns, kind=ValueFormat.DEBEZIUM)
