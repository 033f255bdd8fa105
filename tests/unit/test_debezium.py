"""Changes of a database, as Debezium sends them, become rows that come and go."""

from __future__ import annotations

import io
import json
from collections import Counter

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joinengine.model.errors import UnreadableMessage
from joinengine.sources.avro_schemas import columns_of
from joinengine.sources.kafka_values import INCLUDED, Decoding, OnError, ValueFormat, decoded
from tests.unit.messages import sent

ROW = pa.schema([("id", pa.int64()), ("name", pa.string())])
CHANGES = ROW.append(pa.field("_change", pa.int8()))
#: As the converter of Avro writes it: the row is named again.
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.people",
    "fields": [
        {
            "name": "before",
            "default": None,
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [
                        {"name": "id", "type": "long"},
                        {"name": "name", "type": ["null", "string"], "default": None},
                    ],
                },
            ],
        },
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [{"name": "db", "type": "string"}],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}
PARSED = fastavro.parse_schema(ENVELOPE)


def bare(op, before, after):
    envelope = {"before": before, "after": after, "op": op, "source": {"db": "x"}}
    return json.dumps(envelope).encode()


def wrapped(op, before, after):
    return b'{"schema": {}, "payload": %b}' % bare(op, before, after)


def avro(op, before, after):
    sink = io.BytesIO()
    row = {"before": before, "after": after, "op": op, "source": {"db": "x"}}
    fastavro.schemaless_writer(sink, PARSED, row)
    return sink.getvalue()


WAYS = {"bare": bare, "wrapped": wrapped, "avro": avro}


def read(way, messages, names=(*CHANGES.names, "offset"), on_error=OnError.FAIL, skipped=None):
    kind = ValueFormat.AVRO if way == "avro" else ValueFormat.DEBEZIUM
    decoding = Decoding(
        kind, CHANGES, ("offset",), on_error, json.dumps(ENVELOPE), None, changes=True
    )
    asked = [*CHANGES, pa.field("offset", INCLUDED["offset"])]
    return decoded(messages, decoding, [one for one in asked if one.name in names], skipped)


def rows_of(batch):
    return [tuple(row.values()) for row in batch.to_pylist()]


ANN, ANNE = {"id": 1, "name": "ann"}, {"id": 1, "name": "anne"}


@pytest.mark.parametrize("way", WAYS)
def test_an_update_is_two_changes_and_a_tombstone_is_none(way):
    write = WAYS[way]
    messages = sent(
        *(write("r", None, ANN), None, write("u", ANN, ANNE), write("d", ANNE, None)),
        *(None, write("c", None, {"id": 2, "name": None})),
    )
    batch = read(way, messages)
    assert rows_of(batch) == [
        *((1, "ann", 1, 0), (1, "ann", -1, 2), (1, "anne", 1, 2)),
        *((1, "anne", -1, 3), (2, None, 1, 5)),
    ]
    assert rows_of(read(way, messages, ["_change"])) == [(1,), (-1,), (1,), (-1,), (1,)]
    assert rows_of(read(way, messages, ["name"]))[1:3] == [("ann",), ("anne",)]
    assert read(way, messages, []).num_rows == 5
    assert read(way, sent(None, None)).num_rows == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_change_that_does_not_say_which_row_goes_is_refused_by_name(way):
    write = WAYS[way]
    good = write("c", None, ANN)
    for bad, why in {
        write("d", None, None): "its field before is NULL, .* replica identity full",
        write("u", None, ANNE): "its field before is NULL, .* binlog_row_image",
        write("u", ANN, None): "its field after is NULL",
        write("t", None, None): "its op is 't', which changes no row",
    }.items():
        said = f"topic 'clicks', partition 3, offset 1: cannot be read as .*{why}"
        with pytest.raises(UnreadableMessage, match=said):
            read(way, sent(good, bad))
        skipped = []
        batch = read(way, sent(good, bad, good), on_error=OnError.SKIP, skipped=skipped)
        assert [row[-1] for row in rows_of(batch)] == [0, 2]
        assert [one.file for one in skipped] == ["clicks[3] offset 1"]


names = st.none() | st.sampled_from(["a", "b"])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), names), max_size=30), st.data())
@pytest.mark.parametrize("way", WAYS)
def test_the_net_of_a_topic_is_the_table(way, steps, data):
    """However it is cut into chunks."""
    table, values = {}, []
    for ident, deletes, name in steps:
        before, after = table.get(ident), None if deletes else {"id": ident, "name": name}
        if before is None and after is None:
            values.append(None)
            continue
        op = "c" if before is None else "d" if after is None else "u"
        values.append(WAYS[way](op, before, after))
        if after is None:
            del table[ident]
        else:
            table[ident] = after
    cut = data.draw(st.integers(0, len(values)))
    messages, net = sent(*values), Counter()
    for chunk in (messages[:cut], messages[cut:]):
        for *row, change, _ in rows_of(read(way, chunk)):
            net[tuple(row)] += change
    assert {row: n for row, n in net.items() if n} == {tuple(r.values()): 1 for r in table.values()}


def test_only_the_fields_of_an_envelope_have_to_be_known():
    text = json.dumps(ENVELOPE).replace(
        '"name": "db", "type": "string"', '"name": "x", "type": MAP'
    )
    text = text.replace("MAP", '{"type": "map", "values": "string"}')
    envelope = columns_of(text, ("op", "before", "after"))
    assert envelope.field("after").type == envelope.field("before").type == pa.struct(list(ROW))


def test_records_of_avro_are_read_by_columns(monkeypatch):
    monkeypatch.setattr(fastavro, "schemaless_reader", None)
    assert rows_of(read("avro", sent(avro("d", ANNE, None)))) == [(1, "anne", -1, 0)]
