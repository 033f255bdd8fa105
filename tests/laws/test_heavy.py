"""Keys that match as much as they can: right results, bounded memory, and no trouble with time."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from joinengine.driver.settings import Settings
from joinengine.model.conditions import band
from joinengine.model.windows import within
from tests.harness import LEFT, RIGHT, LocalQuery, two_way
from tests.laws.cases import CHOICES, EACH_ROUTER, enough, feed, matched

MB = 1 << 20


def sides(left, right, values=1000):
    """Tuples of one key and one time, and their values."""
    rng = np.random.default_rng(4)
    found = []
    for schema, rows in ((LEFT, left), (RIGHT, right)):
        columns = [np.full(rows, 7), rng.integers(0, values, rows), np.full(rows, 1000)]
        found.append(
            pa.record_batch(
                [
                    pa.array(column).cast(field.type)
                    for column, field in zip(columns, schema, strict=True)
                ],
                schema=schema,
            )
        )
    return found


@pytest.mark.parametrize("layout", EACH_ROUTER)
def test_all_rows_are_of_one_key(layout, tmp_path):
    """In several batches, so that planners see it, and divide it where they can."""
    instances = enough(layout, 4)
    batches = [
        (
            [(7, 100 * batch + i, batch) for i in range(30)],
            [(7, 10_000 + 100 * batch + i, batch) for i in range(20)],
        )
        for batch in range(3)
    ]
    query = LocalQuery(tmp_path, two_way(None, instances), layout, choice=CHOICES[layout])
    feed(query, batches)
    everything = [[row for one in batches for row in one[side]] for side in (0, 1)]
    expected = matched(*everything, None)
    assert len(expected) == 90 * 60
    assert query.output() == expected


@pytest.mark.parametrize("layout", ["auto", "hash", "mnrt"])
@pytest.mark.parametrize("length", ["0s", "5s"])
def test_a_window_of_nothing_and_times_that_are_all_equal(layout, length, tmp_path):
    """With a window of zero the tuples of one instant match, and no others."""
    window = within("lt", "rt", lower="0s", upper=length)
    left = [(i % 3, i, 1000) for i in range(40)]
    right = [(i % 3, 100 + i, 1000 + (i % 2)) for i in range(40)]
    query = LocalQuery(tmp_path, two_way(window, 4), layout, choice=CHOICES[layout])
    query.run_tuples(0, left[:20], right[:20])
    query.run_tuples(1, left[20:], right[20:])
    expected = matched(left, right, window)
    assert expected
    assert query.output() == expected


@pytest.mark.parametrize("layout", ["auto", "hash"])
@pytest.mark.parametrize(
    ("rows", "budget"), [(3_000, 8 * MB), pytest.param(10_000, 64 * MB, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("on", [None, band("lk", "rk", lower=-1, upper=1)], ids=["equi", "band"])
def test_millions_of_pairs_of_one_key_in_little_memory(layout, rows, budget, on, tmp_path):
    """All tuples of one key and one time, so that nothing narrows what is compared.

    Under equal keys the predicate is evaluated in a grid, under a band for pair after pair.
    """
    left, right = sides(rows, rows)
    query = LocalQuery(
        tmp_path,
        two_way(within("lt", "rt", lower="0s", upper="5s"), 4, on, where="left.lv + right.rv = 0"),
        layout,
        settings=Settings(memory_per_task=budget),
    )
    tracemalloc.start()
    try:
        query.run(0, [[(0, left), (1, right)]])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    zeros = [int((np.asarray(side.column(1)) == 0).sum()) for side in (left, right)]
    (record,) = query.records[-1].joins
    assert record.work.candidates >= rows**2
    assert sum(record.work.made) == zeros[0] * zeros[1] > 0
    assert most < 6 * budget


def test_a_task_that_may_hold_a_byte_asks_of_pair_after_pair(tmp_path):
    schemas = [s.append(pa.field(f"{s.names[0]}_text", pa.string())) for s in (LEFT, RIGHT)]
    plan = two_way(None, 1, schemas=schemas, where="lk_text < rk_text")
    query = LocalQuery(tmp_path, plan, "hash", settings=Settings(memory_per_task=1))
    tuples = [
        pa.RecordBatch.from_arrays(
            [
                pa.array([0, 0]),
                pa.array([1, 2]),
                pa.nulls(2, LEFT.field("lt").type),
                pa.array(texts),
            ],
            schema=schema,
        )
        for schema, texts in zip(schemas, (["a", "c"], ["b", "d"]), strict=True)
    ]
    query.run(0, [list(enumerate(tuples))])
    assert query.output().total() == 3
