"""Records of Avro that are read or written by columns are those of fastavro, one by one."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from joinengine.kernels import avro_decoding
from joinengine.kernels.avro_decoding import ROOM
from joinengine.kernels.avro_encoding import record_type
from joinengine.kernels.avro_encoding import records as records_of
from joinengine.sources import kafka_avro
from joinengine.sources.avro_schemas import columns_of
from joinengine.sources.kafka_avro import read_avro
from joinengine.world.schema_registry import Registry
from tests.laws.cases import tries

many = tries(150)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, -1, 2**62, -(2**63), 2**55, 2**56])
TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(dt.UTC))


def logical(kind, meaning, **more):
    return {"type": kind, "logicalType": meaning, **more}


#: A type, and its values.
PLAIN = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", LONGS),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", st.text(st.characters(codec="utf-8"))),
    ("bytes", st.binary()),
    ({"type": "enum", "name": "suit", "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")),
    (logical("int", "date"), st.dates()),
    (logical("long", "timestamp-micros"), TIMES),
    (logical("long", "timestamp-millis"), TIMES.map(lambda one: one.replace(microsecond=5000))),
    (logical("long", "local-timestamp-micros"), TIMES.map(lambda one: one.replace(tzinfo=None))),
    (
        logical("bytes", "decimal", precision=9, scale=2),
        st.integers(-(10**9) + 1, 10**9 - 1).map(lambda one: Decimal(one).scaleb(-2)),
    ),
    (
        logical("fixed", "decimal", precision=5, scale=0, name="five", size=3),
        st.integers(-99999, 99999).map(Decimal),
    ),
]


@st.composite
def kinds(draw, deep=1):
    """(a type, the strategy of its values)."""
    kind, values = draw(st.sampled_from(PLAIN))
    if deep and draw(st.integers(0, 3)) == 0:
        kind, values = draw(records("inner", deep - 1))
    wrap = draw(st.integers(0, 3)) if kind != "null" else 0
    if wrap == 1:
        return ["null", kind], st.none() | values
    if wrap == 2:
        return [kind, "null"], st.none() | values
    return ([kind], values) if wrap == 3 else (kind, values)


@st.composite
def records(draw, name="outer", deep=1):
    """(the schema of a record, the strategy of its rows), each named type at most once."""
    fields = draw(st.lists(kinds(deep), min_size=1, max_size=5))
    told = [{"name": f"f{n}", "type": kind} for n, (kind, _) in enumerate(fields)]
    values = {f"f{n}": one for n, (_, one) in enumerate(fields)}
    return {"type": "record", "name": name, "fields": told}, st.fixed_dictionaries(values)


@st.composite
def written(draw):
    """(the text of a schema, rows, the bytes of each)."""
    schema, rows = draw(records())
    text = json.dumps(schema)
    try:
        parsed = fastavro.parse_schema(json.loads(text))
    except fastavro.schema.SchemaParseException:  # a named type twice
        assume(False)
    found, values = draw(st.lists(rows, min_size=1, max_size=6)), []
    for row in found:
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, parsed, row)
        values.append(sink.getvalue())
    return text, found, values


def one_by_one(text, values):
    """The rows by fastavro alone."""
    parsed, rows = fastavro.parse_schema(json.loads(text)), []
    for value in values:
        content = io.BytesIO(value)
        rows.append(fastavro.schemaless_reader(content, parsed, parsed))
        if content.read(1):
            raise ValueError("bytes behind")
    return pa.Table.from_pylist(rows, schema=columns_of(text))


def in_bulk(text, values):
    ends = np.cumsum([len(one) for one in values])
    parsed, names = fastavro.parse_schema(json.loads(text)), columns_of(text).names
    content = b"".join((*values, ROOM))
    starts = np.concatenate([[0], ends[:-1]])
    return pa.table(avro_decoding.columns(content, starts, ends, parsed, names))


@many
@given(case=written())
def test_columns_are_what_is_read_one_by_one(case):
    text, rows, values = case
    found = in_bulk(text, values)
    assert len(found) == len(rows)
    assert found.schema == columns_of(text)
    assert found.to_pylist() == one_by_one(text, values).to_pylist()


@many
@given(case=written(), data=st.data())
def test_what_was_altered_is_refused_or_read_as_it_is_one_by_one(case, data):
    """Never as another row, and never with bytes of the record beside it."""
    text, _, values = case
    number = data.draw(st.integers(0, len(values) - 1))
    value = bytearray(values[number])
    how = data.draw(st.sampled_from(["cut", "longer", "other"]))
    if how == "other" and value:
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    value = {"cut": value[:-1], "longer": value + b"\x00", "other": value}[how]
    altered = [*values[:number], bytes(value), *values[number + 1 :]]
    try:
        found = in_bulk(text, altered)
    except (ValueError, pa.ArrowInvalid):
        return
    try:
        expected = one_by_one(text, altered).to_pylist()
    except (OverflowError, ValueError, ArithmeticError):
        expected = None
    if expected is not None:
        assert repr(found.to_pylist()) == repr(expected)  # NaN is itself
    else:  # only of instants and dates has Python fewer than there are
        assert "timestamp" in text or '"date"' in text


@many
@given(case=written(), first=st.integers(0, 5))
def test_rows_become_the_records_that_are_read_back(case, first):
    text, rows, _ = case
    schema = columns_of(text)
    assume(pa.null() not in schema.types)
    try:
        told = json.dumps(record_type(schema, "result"))
    except TypeError:  # NULL alone, in a record
        assume(False)
    batch = pa.RecordBatch.from_pylist(rows, schema=schema).slice(first % len(rows))
    found = records_of(batch.columns, batch.num_rows, b"head").to_pylist()
    assert {one[:4] for one in found} == {b"head"}
    values = [one[4:] for one in found]
    assert one_by_one(told, values).to_pylist() == batch.to_pylist()
    assert in_bulk(told, values).to_pylist() == batch.to_pylist()


#: A type of Arrow, and its values.
ITEMS = st.recursive(
    st.sampled_from(
        [
            (pa.int64(), LONGS),
            (pa.string(), st.text(st.characters(codec="utf-8"), max_size=3)),
            (pa.bool_(), st.booleans()),
            (pa.timestamp("us", "UTC"), TIMES),
        ]
    ),
    lambda inner: (
        inner.map(lambda one: (pa.list_(one[0]), st.lists(st.none() | one[1], max_size=3)))
        | inner.map(lambda one: (pa.large_list(one[0]), st.lists(st.none() | one[1], max_size=3)))
        | inner.map(lambda one: (pa.list_(one[0], 2), st.tuples(one[1], one[1]).map(list)))
        | inner.map(
            lambda one: (
                pa.struct([("a", one[0]), ("b", pa.int32())]),
                st.fixed_dictionaries({"a": st.none() | one[1], "b": st.just(7)}),
            )
        )
    ),
    max_leaves=3,
)


@many
@given(data=st.data(), item=ITEMS, first=st.integers(0, 5))
def test_lists_are_those_that_fastavro_reads(data, item, first):
    lists = st.lists(st.none() | item[1], max_size=70)
    rows = data.draw(st.lists(st.none() | lists, min_size=1, max_size=6))
    schema = pa.schema([("n", pa.int64()), ("x", pa.list_(item[0]))])
    told = [{"n": number, "x": row} for number, row in enumerate(rows)]
    batch = pa.RecordBatch.from_pylist(told, schema=schema).slice(first % len(rows))
    values = records_of(batch.columns, batch.num_rows).to_pylist()
    parsed = fastavro.parse_schema(record_type(schema, "result"))
    found = [fastavro.schemaless_reader(io.BytesIO(one), parsed, None) for one in values]
    assert found == batch.to_pylist()


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
        *(pa.large_string(), pa.large_binary(), pa.timestamp("s", "UTC"), pa.timestamp("ms")),
        *(pa.decimal128(38, 10), pa.bool_(), pa.float32(), pa.date32()),
    ],
    ids=str,
)
def test_types_of_arrow_are_kept(kind):
    values = pa.array([0, 1, None, 100], pa.int64())
    if "binary" in str(kind) or "string" in str(kind):
        column = values.cast(pa.string()).cast(kind)
    else:
        column = values.cast(pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    told = json.dumps(record_type(pa.schema([("x", kind)]), "result"))
    (found,) = in_bulk(told, records_of([column], 4).to_pylist()).columns
    assert found.cast(kind).to_pylist() == column.to_pylist()


READER = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "b", "type": ["null", "string"], "default": None},
        {"name": "a", "type": "long"},
        {"name": "c", "type": "string", "default": "c"},
        {"name": "d", "type": ["null", logical("int", "date")], "default": None},
    ],
}
A, B = READER["fields"][1], {"name": "b", "type": "string"}


def more(kind):
    return {"name": "more", "type": kind}


@pytest.mark.parametrize(
    ("fields", "value", "is_bulk"),
    [
        (READER["fields"], None, True),
        ([B, more("bytes"), A], b"1", True),
        ([A], None, True),
        ([{"name": "a", "type": "int"}], None, False),
        ([A, more({"type": "array", "items": "int"})], [1, 2], False),
        ([A, more(["int", "string"])], "z", False),
        ([A, {"name": "b", "type": ["string", "null"]}], None, False),
        ([A, {"name": "before", "type": "string"}], None, False),
    ],
)
def test_records_of_other_writers_are_those_that_fastavro_makes(
    fields, value, is_bulk, monkeypatch
):
    row = {"a": 7, "b": "x", "c": "y", "d": dt.date(2026, 3, 1), "more": value, "before": "q"}
    reader = json.loads(json.dumps(READER))
    if fields[-1]["name"] == "before":
        reader["fields"][2]["aliases"] = ["before"]
    schemas = [fastavro.parse_schema({**READER, "fields": fields}), fastavro.parse_schema(reader)]
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, schemas[0], row)
    expected = fastavro.schemaless_reader(io.BytesIO(sink.getvalue()), *schemas)
    in_bulk = []

    def spy(*told):
        in_bulk.append(avro_decoding.columns(*told))
        return in_bulk[-1]

    class Known(Registry):
        def ask(self, path, sent=None, patience_s=0.0):
            return {"schema": json.dumps({**READER, "fields": fields})}

    monkeypatch.setattr(kafka_avro, "columns", spy)
    text, registry = json.dumps(reader), Known(f"http://{len(str(fields))}")
    sent = b"\x00\x00\x00\x00\x07" + sink.getvalue()
    assert read_avro([sent, sent], columns_of(text), text, registry).to_pylist() == [expected] * 2
    assert bool(in_bulk) is is_bulk


def test_records_have_names_of_their_own():
    """Column `a` with a field `b_c`, and column `a_b` with a field `c`, would share one."""
    inner = pa.struct([("n", pa.int64())])
    schema = pa.schema([("a", pa.struct([("b_c", inner)])), ("a_b", pa.struct([("c", inner)]))])
    parsed = fastavro.parse_schema(record_type(schema, "result"))
    names = [f["type"][1]["fields"][0]["type"][1]["name"] for f in parsed["fields"]]
    assert names == ["result_a_b_c", "result_a_b_c_"]
