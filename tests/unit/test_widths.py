"""Bytes of values of no fixed width, and results that are cut by them."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa
import pytest

from joinengine.driver.settings import Settings
from joinengine.exchange.task_results import Results
from joinengine.kernels.widths import widths_at
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
