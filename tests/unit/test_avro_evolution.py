"""Records whose writer had another schema than the reader has: what Avro's specification says."""

from __future__ import annotations

import datetime as dt
import io
import json
from contextlib import nullcontext
from decimal import Decimal
from types import SimpleNamespace

import fastavro
import pyarrow as pa
import pytest

from joinengine.model.errors import InvalidRequest, UnreadableMessage
from joinengine.sources import kafka_avro
from joinengine.sources.avro_schemas import columns_of, schema_text
from joinengine.sources.json_values import Refused
from joinengine.sources.kafka_avro import read_avro
from joinengine.sources.kafka_values import Decoding, OnError, ValueFormat, decoded
from joinengine.world.schema_registry import NoSuchSchema, Registry

NOON = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
MILLIS = int(NOON.timestamp() * 1000)
ID = "00000000-0000-0000-0000-000000000005"


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


def record(*fields, name="r"):
    return {"type": "record", "name": name, "fields": list(fields)}


def logical(kind, word, **more):
    return {"type": kind, "logicalType": word, **more}


class Known(Registry):
    """A registry of these answers."""

    answers: dict[str, object]

    def ask(self, path, sent=None, patience_s=0.0):
        if path not in self.answers:
            raise NoSuchSchema("Schema not found")
        return self.answers[path]


def registry(**answers):
    known = Known(f"http://{abs(hash(str(answers)))}")
    object.__setattr__(known, "answers", answers)
    return known


def bytes_of(writer, row):
    """A row, whose logical values are plain ones, as the writer sends it."""
    sink = io.BytesIO()
    plain = json.loads(json.dumps(writer).replace('"logicalType"', '"meant"'))
    fastavro.schemaless_writer(sink, fastavro.parse_schema(plain), row)
    return sink.getvalue()


def read(writer, row, reader, number=7):
    known = registry(**{"schemas/ids/7": {"schema": json.dumps(writer)}})
    text = json.dumps(reader)
    value = b"\0" + number.to_bytes(4) + bytes_of(writer, row)
    (read_row,) = read_avro([value], columns_of(text), text, known).to_pylist()
    return read_row


@pytest.mark.parametrize(
    ("theirs", "sent", "ours", "value"),
    [
        ("long", MILLIS, logical("long", "timestamp-millis"), NOON),
        (
            "int",
            86_400_000,
            logical("long", "timestamp-millis"),
            dt.datetime(1970, 1, 2, tzinfo=dt.UTC),
        ),
        (logical("long", "timestamp-millis"), MILLIS, "long", MILLIS),
        (
            logical("long", "timestamp-millis"),
            MILLIS,
            ["null", logical("long", "timestamp-micros")],
            NOON,
        ),
        (
            ["null", logical("long", "timestamp-micros")],
            MILLIS * 1000 + 1,
            logical("long", "local-timestamp-millis"),
            NOON.replace(tzinfo=None, microsecond=1),
        ),
        (
            {"type": "array", "items": logical("long", "timestamp-micros")},
            [MILLIS * 1000],
            {"type": "array", "items": logical("long", "timestamp-millis")},
            [NOON],
        ),
        (logical("int", "date"), 1, "int", 1),
        ("int", 1, logical("int", "date"), dt.date(1970, 1, 2)),
        ("bytes", b"\xff\x83", logical("bytes", "decimal", precision=9, scale=2), "-1.25"),
        (logical("bytes", "decimal", precision=9, scale=2), b"\x7d", "bytes", b"\x7d"),
        (logical("string", "uuid"), ID, "string", ID),
        ("string", "x", "bytes", b"x"),
        ("int", 3, "double", 3.0),
        (
            {"type": "array", "items": logical("long", "timestamp-millis")},
            [MILLIS],
            {"type": "array", "items": ["null", logical("long", "timestamp-millis")]},
            [NOON],
        ),
    ],
    ids=str,
)
def test_types_are_resolved_as_plain_ones_and_instants_keep_their_units(theirs, sent, ours, value):
    row = read(record(field("x", theirs)), {"x": sent}, record(field("x", ours)))
    assert row == {"x": Decimal(value) if value == "-1.25" else value}


def test_decimals_of_other_digits_are_refused():
    kinds = [logical("bytes", "decimal", precision=9, scale=scale) for scale in (2, 4)]
    theirs, ours = (record(field("o", record(field("d", kind), name="q"))) for kind in kinds)
    with pytest.raises(Refused, match=r"o\.d was written as a decimal of other digits .*9, 2"):
        read(theirs, {"o": {"d": b"\x7d"}}, ours)


def test_a_field_that_was_renamed_keeps_the_unit_in_which_it_was_written():
    ours = field("at", logical("long", "timestamp-millis"), aliases=["x"])
    theirs = field("x", logical("long", "timestamp-micros"))
    assert read(record(theirs), {"x": MILLIS * 1000}, record(ours)) == {"at": NOON}


INNER = record(field("x", "int", default=4), field("y", "bytes", default="\u00ff"), name="q")


@pytest.mark.parametrize("is_bulk", [True, False])
@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        (logical("long", "timestamp-millis"), MILLIS, NOON),
        (logical("int", "date"), 1, dt.date(1970, 1, 2)),
        ("bytes", "\u00ff\u0001", b"\xff\x01"),
        (["bytes", "null"], "\u00ff", b"\xff"),
        (INNER, {}, {"x": 4, "y": b"\xff"}),
        (INNER, {"x": 5}, {"x": 5, "y": b"\xff"}),
        (["null", INNER], None, None),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        (logical("bytes", "decimal", precision=9, scale=2), "\u0000", Decimal("0.00")),
        (logical("string", "uuid"), ID, ID),
        ({"type": "fixed", "name": "two", "size": 2}, "\u00ff\u0001", b"\xff\x01"),
    ],
    ids=str,
)
def test_defaults_are_values_of_their_types(is_bulk, kind, default, value):
    theirs = "long" if is_bulk else "int"  # another type is read record by record
    reader = record(field("a", "long"), field("x", kind, default=default))
    row = read(record(field("a", theirs)), {"a": 1}, reader)
    assert row == {"a": 1, "x": value}


def test_a_uuid_is_read_beside_what_is_read_record_by_record():
    kinds = field("u", logical("string", "uuid")), field("l", {"type": "array", "items": "int"})
    row = {"u": ID, "l": [1]}
    assert read(record(*kinds), row, record(*kinds)) == row


def test_bytes_of_a_fixed_length_are_bytes():
    kind = field("f", {"type": "fixed", "name": "four", "size": 4})
    assert read(record(kind), {"f": b"abcd"}, record(kind)) == {"f": b"abcd"}


@pytest.mark.parametrize("number", [-125, 125, 0, 10**30, -(10**30)])
def test_decimals_may_lie_in_more_bytes_than_they_need(number):
    kind = logical("fixed", "decimal", name="wide", size=20, precision=31, scale=2)
    content = number.to_bytes(20, "big", signed=True)
    row = read(record(field("d", kind)), {"d": content}, record(field("d", kind)))
    assert row == {"d": Decimal(number).scaleb(-2)}


def test_a_decimal_of_more_digits_than_there_are_is_refused():
    kind = record(field("d", logical("fixed", "decimal", name="wide", size=20, precision=31)))
    for number in (2**130, -(2**130)):
        with pytest.raises(ValueError, match="a decimal has more than 128 bits"):
            read(kind, {"d": number.to_bytes(20, "big", signed=True)}, kind)


@pytest.mark.parametrize(
    ("writer", "row", "reader", "said"),
    [
        (record(field("z", "string")), {"z": "x"}, record(field("a", "int")), "No default value"),
        (record(field("a", "string")), {"a": "x"}, record(field("a", "int")), "does not fit"),
        (
            record(field("a", ["null", "int"])),
            {"a": None},
            record(field("a", "int")),
            "does not fit",
        ),
    ],
)
def test_what_does_not_fit_is_refused_as_a_message(writer, row, reader, said):
    with pytest.raises(Refused, match=said):
        read(writer, row, reader)


def test_a_schema_that_nobody_knows_is_refused_as_a_message():
    with pytest.raises(Refused, match="the schema registry has no schema 9: Schema not found"):
        read(record(field("a", "int")), {"a": 1}, record(field("a", "int")), number=9)


@pytest.mark.parametrize("on_error", OnError)
def test_a_schema_that_is_missing_is_asked_for_once(on_error, monkeypatch):
    """However many messages name it, and however they are cut to find those that are bad."""
    asked, known = [], registry(**{"schemas/ids/7": {"schema": json.dumps(record(INNER))}})
    monkeypatch.setattr(Known, "ask", lambda self, path, **_: asked.append(path) or {}[path])
    monkeypatch.setattr(kafka_avro, "NoSuchSchema", KeyError)
    text, skipped = json.dumps(record(field("x", "int"))), []
    decoding = Decoding(ValueFormat.AVRO, columns_of(text), (), on_error, text, known)
    monkeypatch.setattr(kafka_avro, "_missing", {})
    message = SimpleNamespace(
        value=lambda: b"\0\0\0\0\x09\x02", topic=str, partition=int, offset=int
    )
    messages = [message] * 100
    fails = pytest.raises(UnreadableMessage, match="the schema registry has no schema 9")
    with fails if on_error is OnError.FAIL else nullcontext():
        assert decoded(messages, decoding, decoding.payload, skipped).num_rows == 0
    assert asked == ["schemas/ids/9"]
    assert bool(skipped) is (on_error is OnError.SKIP)


def test_schemas_that_a_registry_refers_to_are_read():
    address = {**record(field("city", "string"), name="Address"), "namespace": "com.x"}
    street = {**record(field("at", "Address"), name="Street"), "namespace": "com.x"}
    whole = {
        **record(field("a", "com.x.Street"), field("b", "com.x.Address"), name="Order"),
        "namespace": "com.y",
    }

    def refers(*names):
        return [{"name": name, "subject": name, "version": 1} for name in names]

    known = registry(
        **{
            "schemas/ids/7": {
                "schema": json.dumps(whole),
                "references": refers("com.x.Address", "com.x.Street"),
            },
            "subjects/orders-value/versions/latest": {
                "schema": json.dumps(whole),
                "references": refers("com.x.Street", "com.x.Address"),
            },
            "subjects/com.x.Street/versions/1": {
                "schema": json.dumps(street),
                "references": refers("com.x.Address"),
            },
            "subjects/com.x.Address/versions/1": {"schema": json.dumps(address)},
        }
    )
    text = schema_text(None, known, "orders")
    city = pa.struct([("city", pa.string())])
    assert columns_of(text) == pa.schema([("a", pa.struct([("at", city)])), ("b", city)])
    row = {"a": {"at": {"city": "x"}}, "b": {"city": "y"}}
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(json.loads(text)), row)
    value = b"\0\0\0\0\7" + sink.getvalue()
    assert read_avro([value], columns_of(text), text, known).to_pylist() == [row]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ({"type": "map", "values": "int"}, "field 'x' is a map"),
        (["int", "string"], "field 'x' is a union of 2 types"),
        (["null", "r"], "field 'x' is r, which is inside itself"),
        (record(field("y", logical("int", "time-millis")), name="q"), "field 'y' is a time-millis"),
    ],
)
def test_types_that_are_not_read_are_named_with_their_field(kind, said):
    with pytest.raises(InvalidRequest, match=said):
        columns_of(json.dumps(record(field("x", kind))))
