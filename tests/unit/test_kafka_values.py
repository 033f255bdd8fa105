"""Values of messages become columns, and what cannot be decoded is named."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.model.errors import UnreadableMessage
from joinengine.sources.kafka_values import INCLUDED, Decoding, OnError, ValueFormat, decoded

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


@dataclass
class Sent:
    """A message as the client hands it over."""

    its_value: bytes | None
    number: int = 0
    its_key: bytes | None = b"k"
    its_headers: list = field(default_factory=lambda: [("h", b"1")])

    def value(self):
        return self.its_value

    def key(self):
        return self.its_key

    def headers(self):
        return self.its_headers

    def offset(self):
        return self.number

    def partition(self):
        return 3

    def topic(self):
        return "clicks"

    def timestamp(self):
        return 1, 1_700_000_000_000 + self.number


def sent(*values):
    return [Sent(value, number) for number, value in enumerate(values)]


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
