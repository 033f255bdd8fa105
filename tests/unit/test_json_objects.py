"""Rows that are written as JSON objects are read back as they were, whatever is inside them."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joinengine.results.json_objects import objects_of
from joinengine.sources.json_values import Refused, objects

INSTANT = pa.timestamp("us", "UTC")
PLAIN = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"])) | st.just("NaN"),
    pa.binary(): st.binary(max_size=9),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    INSTANT: st.datetimes(timezones=st.just(dt.UTC), min_value=dt.datetime(1000, 1, 1)),
    pa.decimal128(20, 2): st.decimals(-(10**18) + 1, 10**18 - 1, places=2),
    pa.decimal128(17, 17): st.integers(1 - 10**17, 10**17 - 1).map(
        lambda n: Decimal(n).scaleb(-17)
    ),
}
FINITE = PLAIN | {pa.float64(): st.floats(allow_nan=False, allow_infinity=False)}


@st.composite
def columns(draw, depth=2, plain=PLAIN):
    """A type, and what makes values of it or None."""
    shape = draw(st.sampled_from(["plain", "plain", "struct", "list"] if depth else ["plain"]))
    if shape == "struct":
        parts = {f'{name} "{depth}"': draw(columns(depth - 1, plain)) for name in "xä"}
        kind = pa.struct([(name, part[0]) for name, part in parts.items()])
        values = st.fixed_dictionaries({name: part[1] for name, part in parts.items()})
    elif shape == "list":  # where "NaN" is a text
        kind, values = draw(columns(depth - 1, FINITE))
        kind, values = pa.list_(kind), st.lists(values, max_size=3)
    else:
        kind = draw(st.sampled_from(list(plain)))
        values = plain[kind]
    return kind, st.none() | values


@settings(max_examples=40)
@given(st.data())
def test_what_is_written_is_read_back(data):
    (one, some), (two, more) = data.draw(columns()), data.draw(columns())
    rows = data.draw(st.lists(st.tuples(some, more), min_size=1, max_size=5))
    batch = pa.record_batch(
        [pa.array([row[n] for row in rows], kind) for n, kind in enumerate((one, two))],
        schema=pa.schema([("x", one), ("b.c", two)]),
    )
    values = objects_of(batch).to_pylist()
    for value in values:
        json.loads(value, parse_constant=pytest.fail)  # NaN alone is no JSON
    read = objects(values, batch.schema).to_pylist()
    assert repr(read) == repr(batch.to_pylist())


def test_maps_and_fine_instants_are_written():
    noon = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
    rows = pa.record_batch(
        {
            "m": pa.array([[("a", noon)], None], pa.map_(pa.string(), INSTANT)),
            "f": pa.array([[noon]] * 2, pa.list_(pa.timestamp("ns", "UTC"))),
            "n": pa.array([[noon.replace(tzinfo=None)]] * 2, pa.list_(pa.timestamp("ns"))),
            "l": pa.array([[math.nan, -math.inf], []]),
            "id": pa.array([b"0123456789abcdef", None], pa.binary(16)),
        }
    )
    first, second = map(json.loads, objects_of(rows).to_pylist())
    assert first == {
        "m": {"a": "2026-01-02T12:00:00.000000Z"},
        "f": ["2026-01-02T12:00:00.000000Z"],
        "n": ["2026-01-02T12:00:00.000000000"],
        "l": ["NaN", "-Infinity"],
        "id": "MDEyMzQ1Njc4OWFiY2RlZg==",
    }
    assert (second["m"], second["l"], second["id"]) == (None, [], None)


def test_decimals_keep_their_digits():
    """Beside values that DuckDB would not write as JSON by itself, and below 1."""
    wide, small = (
        Decimal("123456789012345678.91"),
        Decimal("-0.12345678901234567890123456789012345678"),
    )
    inner = pa.struct({"d": pa.decimal128(20, 2), "x": pa.float64()})
    rows = pa.record_batch(
        {
            "s": pa.array([{"d": wide, "x": math.inf}], inner),
            "m": pa.array(
                [[(small, {"d": wide, "x": 1.5})]], pa.map_(pa.decimal128(38, 38), inner)
            ),
            "l": pa.array([[small]], pa.list_(pa.decimal128(38, 38))),
            "d": pa.array([small], pa.decimal128(38, 38)),
        }
    )
    (value,) = objects_of(rows).to_pylist()
    assert json.loads(value, parse_float=Decimal) == {
        "s": {"d": wide, "x": "Infinity"},
        "m": {str(small): {"d": wide, "x": Decimal("1.5")}},
        "l": [small],
        "d": small,
    }


def test_bytes_that_are_no_base64_are_refused():
    with pytest.raises(Refused, match="its bytes are not base64"):
        objects([b'{"b": "a b"}'], pa.schema([("b", pa.binary())]))


def test_instants_with_more_digits_are_cut_to_microseconds():
    """As Go and Java write them, also before 1970, and inside other values."""
    schema = pa.schema([("t", INSTANT), ("l", pa.list_(INSTANT)), ("x", pa.float64())])
    texts = [
        b'{"t": "2026-01-02T12:00:00.123456789Z", "l": ["1969-12-31T23:59:59.9999999Z"], "x": 1}',
        b'{"t": "2026-01-02T12:00:00Z", "l": null, "x": "NaN"}',
        b'{"t": null, "l": [null, "2026-01-02T12:00:00.5Z"], "x": null}',
    ]
    first, second, third = objects(texts, schema).to_pylist()
    noon = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
    assert first["t"] == noon.replace(microsecond=123456)
    assert first["l"] == [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC)]
    assert second["t"] == noon
    assert math.isnan(second["x"])
    assert third["l"] == [None, noon.replace(microsecond=500000)]
    with pytest.raises(pa.ArrowInvalid, match="timestamp"):
        objects([b'{"t": "2026-01-02T12:00:00.1234567891Z"}'], schema)


def test_fields_that_differ_in_case_alone_are_told_apart():
    kind = pa.struct([("a", pa.float64()), ("A", INSTANT), ("x", pa.struct([("B", pa.binary())]))])
    value = {"a": 1.5, "A": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "x": {"B": b"\xff"}}
    batch = pa.record_batch([pa.array([value, None], kind)], ["s"])
    written = [json.loads(one)["s"] for one in objects_of(batch).to_pylist()]
    assert written == [
        {"a": 1.5, "A": "2026-01-01T00:00:00.000000Z", "x": {"B": "/w=="}},
        None,
    ]


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        (INSTANT, dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "2026-01-01T00:00:00.000000Z"),
        (pa.binary(), b"\xff", "/w=="),
        (pa.int64(), 7, "7"),
    ],
)
def test_keys_of_maps_are_written_as_values_are(kind, key, text):
    batch = pa.record_batch([pa.array([[(key, 0.5)]], pa.map_(kind, pa.float64()))], ["m"])
    assert json.loads(objects_of(batch)[0].as_py()) == {"m": {text: 0.5}}
