"""Bytes of values of no fixed width, and results that are cut by them."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa
import pytest

from joinengine.driver.settings import MOST_MEMORY, Settings
from joinengine.exchange import blocks
from joinengine.exchange.blocks import Tuples
from joinengine.exchange.exchange import FileExchange
from joinengine.exchange.keying import Keying
from joinengine.exchange.task_results import Results
from joinengine.kernels.hashing import key_hash
from joinengine.kernels.widths import widths_at
from joinengine.model.keys import Side
from joinengine.operators.hot import texts_at
from joinengine.operators.join import matching
from tests.harness import LocalQuery, two_way

ROWS = np.array([2, 0, 0, 3])
TIME = pa.timestamp("us", "UTC")


@pytest.mark.parametrize("part", [slice(0, None), slice(1, None)])
@pytest.mark.parametrize(
    ("kind", "values", "widths"),
    [
        (pa.string(), ["abc", None, "", "é"], [3, 0, 0, 2]),
        (pa.large_string(), ["abc", None, "", "é"], [3, 0, 0, 2]),
        (pa.binary(), [b"abc", None, b"", b"x"], [3, 0, 0, 1]),
        (pa.large_binary(), [b"abc", None, b"", b"x"], [3, 0, 0, 1]),
        (pa.list_(pa.int64()), [[1, 2], None, [], [3]], [16, 0, 0, 8]),
        (pa.large_list(pa.int64()), [[1, 2], None, [], [3]], [16, 0, 0, 8]),
        (pa.map_(pa.int64(), pa.int64()), [[(1, 2)], None, [], [(1, 2)]], [16, 0, 0, 16]),
        (
            pa.struct([("a", pa.string()), ("b", pa.int8())]),
            [{"a": "ab"}, None, {}, {}],
            [2, 0, 0, 0],
        ),
        (pa.int64(), [1, 2, 3, 4], None),
        (pa.binary(1), [b"a", None, b"b", b"c"], None),
        (pa.struct([("b", pa.int8())]), [{"b": 1}, None, {}, {}], None),
    ],
    ids=str,
)
def test_widths_of_values(kind, values, widths, part):
    column = pa.array([values[-1], *values], kind)[1:][part]
    rows = np.arange(len(column))[::-1]
    found = widths_at(column, rows)
    assert (found if found is None else found.tolist()[::-1]) == (widths and widths[part])


def test_a_long_value_of_a_hot_key_is_cut_into_chunks_that_fit(monkeypatch):
    """The mean of all rows says nothing of the row that goes into every result."""
    sizes, real = [], Results.add

    def add(self, columns):
        sizes.append(sum(column.nbytes for column in columns))
        return real(self, columns)

    monkeypatch.setattr(Results, "add", add)
    left = pa.schema([("lk", pa.int64()), ("lv", pa.string()), ("lt", TIME)])
    right = pa.schema([("rk", pa.int64()), ("rv", pa.int64()), ("rt", TIME)])
    longs = [(0, "x" * 50_000, 0), *((n, "small", 0) for n in range(1, 5000))]
    batches = [
        pa.table(dict(zip(schema.names, zip(*rows, strict=True), strict=True)), schema)
        for rows, schema in ((longs, left), ([(0, n, 0) for n in range(500)], right))
    ]
    spec, settings = two_way(None, 1, schemas=(left, right)), Settings(memory_per_task=8 << 20)
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(folder, spec, "hash", settings=settings)
        query.run(0, [[(n, table.to_batches()[0]) for n, table in enumerate(batches)]])
        query.finish(1)
        assert sum(query.output().values()) == 500
    assert 20 < len(sizes) < 40
    assert max(sizes) < (1 << 20) + 60_000


def test_a_predicate_is_asked_of_as_many_pairs_as_fit(monkeypatch, tmp_path):
    """The text of a row may be compared with those of thousands of others."""
    sizes, real = [], matching.holds

    def holds(predicate, sides, rows):
        sizes.append(sides[0].column("lv").take(pa.array(rows[0])).nbytes)
        return real(predicate, sides, rows)

    monkeypatch.setattr(matching, "holds", holds)
    left, right = (pa.schema([(f"{s}k", pa.int64()), (f"{s}v", pa.string())]) for s in "lr")
    frame = [
        pa.record_batch([pa.array(column) for column in zip(*rows, strict=True)], schema=schema)
        for schema, rows in (
            (left, [(0, "x" * 50_000), *((n, "small") for n in range(1, 5000))]),
            (right, [(0, f"y{n}") for n in range(500)]),
        )
    ]
    spec = two_way(None, 1, schemas=(left, right), where="lower(lv) > rv")
    query = LocalQuery(tmp_path, spec, "hash", settings=Settings(memory_per_task=8 << 20))
    query.run(0, [list(enumerate(frame))])
    assert 20 < len(sizes) < 40
    assert max(sizes) < (1 << 20) + 60_000


def test_the_hottest_groups_are_named_wherever_they_lie():
    """Values are looked up in the batch that has them; together they may be too long for one."""
    schema = pa.schema([("k", pa.string())])
    batches = [pa.record_batch([pa.array(part)], schema=schema) for part in (["a", "b"], ["c"])]
    keying = Keying((("k",), ("k",)), groups=True)
    arrived = [Tuples(keying.stored(Side.LEFT, b), np.empty(0), b) for b in batches]
    words = np.concatenate([tuples.words for tuples in arrived])
    order = np.argsort(words)
    texts = texts_at(keying, order, words[order], arrived)
    assert texts(key_hash(words)[[2, 0, 1]]) == ["c", "a", "b"]


@pytest.mark.parametrize("long", [10_000, 100])
def test_copies_of_tuples_leave_in_pieces_that_fit(monkeypatch, long):
    """Sixteen instances of a matrix get four copies of each tuple."""
    sizes, batches = [], FileExchange.batches
    monkeypatch.setattr(blocks, "PUT_BYTES", 40_000)

    def seen(self, block):
        sizes.extend(batch.nbytes for batch in batches(self, block))
        return batches(self, block)

    monkeypatch.setattr(FileExchange, "batches", seen)
    left = pa.schema([("lk", pa.int64()), ("lv", pa.string()), ("lt", TIME)])
    right = pa.schema([("rk", pa.int64()), ("rv", pa.int64()), ("rt", TIME)])
    n = 200_000 // long
    columns = [range(n), ["x" * long] * n, range(n)], [range(n), range(n), range(n)]
    frame = [
        (
            side,
            pa.record_batch(
                [pa.array(c, f.type) for c, f in zip(own, schema, strict=True)], schema=schema
            ),
        )
        for side, (own, schema) in enumerate(zip(columns, (left, right), strict=True))
    ]
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(folder, two_way(None, 16, schemas=(left, right)), "dynamic")
        query.run(0, [frame])
        query.finish(1)
        assert sum(query.output().values()) == n
    assert max(sizes) < 60_000


def test_a_task_holds_no_more_than_columns_of_text_can():
    assert Settings(memory_per_task=1 << 40).held_bytes == MOST_MEMORY
