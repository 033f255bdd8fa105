"""Sketches of many groups keep to their error, however they are divided and merged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from joinengine.model.aggregation import PANE, Aggregate, Grouping, Panes, Top, result_schema
from joinengine.predicates.sketching import (
    add_sketches,
    heaviest,
    size_for,
    sketch_counts,
)

MINUTE = 60_000_000
ERROR = 0.01


@pytest.fixture(scope="module")
def counts():
    """20,000 groups of Zipf's frequencies over two panes, as many instances would count them."""
    rng = np.random.default_rng(5)
    exact = np.floor(30_000 / np.arange(1, 20_001)).astype(np.int64) + 1
    return exact, [
        pa.table(
            {
                "g": pa.array(rng.permutation(len(exact))),
                PANE: pa.array(np.full(len(exact), pane)),
            }
        )
        for pane in (MINUTE, 2 * MINUTE)
        for _ in range(3)
    ]


def test_bounds_hold_and_no_heavy_group_is_missed(counts):
    exact, parts = counts
    count = Aggregate("n", "count", None, pa.int64())
    bounds = [Aggregate(name, "count", None, pa.int64()) for name in ("n_low", "n_high")]
    grouping = Grouping(("g",), (count,), Panes(2 * MINUTE, MINUTE), (), Top(200, "n", ERROR))
    schema = result_schema([pa.field("g", pa.int64())], [count, *bounds], pa.timestamp("us"))
    sketches = [
        sketch_counts(grouping, part.append_column("p0", pa.array(exact[part.column("g")])))
        for part in parts
    ]
    merged = add_sketches(grouping, pa.concat_tables(sketches))
    assert merged.column(PANE).to_pylist() == [MINUTE, 2 * MINUTE]
    found = heaviest(grouping, merged, (0, 2 * MINUTE), schema).to_pylist()
    truth, total = exact * len(parts), exact.sum() * len(parts)
    assert all(row["n_low"] <= truth[row["g"]] <= row["n_high"] for row in found)
    widths = [row["n_high"] - row["n_low"] for row in found]
    assert 0 < max(widths) <= ERROR * total
    assert {row["g"] for row in found} >= set(np.flatnonzero(truth > max(widths)).tolist())
    assert [row["n"] for row in found] == sorted((row["n"] for row in found), reverse=True)


def test_a_sketch_is_as_small_as_its_error_lets_it_be():
    assert [size_for(error) for error in (0.5, 0.01, 0.001, 1e-6)] == [5, 9, 12, 22]
