"""Rectangles of pairs: what they find is what a comparison of all pairs finds."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.kernels.expanding import expand_pairs
from joinengine.model.conditions import theta
from joinengine.model.keys import Side
from joinengine.model.windows import sliding, tumbling, within
from joinengine.operators.join import grids
from joinengine.predicates.dialect import compile_predicate
from joinengine.predicates.theta import Grid, columns_of, holds
from tests.harness import LocalQuery, two_way
from tests.laws.cases import joined, relaxed

ALONG, DOWN = pa.schema([("v", pa.float64()), ("n", pa.int32())]), pa.schema([("p", pa.float64())])
PREDICATES = [
    "left.v - right.p < 0.5 and right.p - left.v < 0.5",
    "left.v * right.p <> 2 or left.n = right.p",
    "not (left.v between right.p - 1 and 3)",
    "left.n > 2",
    "right.p = 1.0",
]


def small(cells=8, width=4, few=1):
    """Rectangles of so few pairs that small cases have many."""
    stack = ExitStack()
    for name, value in (("CELLS", cells), ("WIDTH", width), ("FEW", few)):
        stack.enter_context(patch.object(grids, name, value))
    return stack


@st.composite
def stretches(draw):
    """(n,) rows of a few groups, each of which meets a stretch of some others."""
    n, others = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    groups = sorted(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    ends = [sorted(draw(st.tuples(*[st.integers(0, others)] * 2))) for _ in range(n)]
    begin, end = np.array(ends).T
    return others, np.array(groups), begin, end - begin


@relaxed
@given(stretches())
def test_a_block_has_neighbours_of_one_group_and_all_that_they_meet(asked):
    _, groups, begin, lengths = asked
    with small():
        blocks, others = grids.blocks_of(groups, begin, lengths)
    taken = np.zeros(len(groups), int)
    for first, last, low, high in zip(*blocks, strict=True):
        taken[first:last] += 1
        assert len(set(groups[first:last])) == 1
        assert low <= begin[first:last].min()
        assert high >= (begin + lengths)[first:last].max()
        within_it = lengths[first:last].sum()
        assert within_it >= (1 - grids.SPARE) * (last - first) * (high - low) > 0
    assert (taken == ~others).all()


@pytest.mark.parametrize("parts", [1, 4, 16])
def test_a_part_of_the_rows_of_a_divided_key_has_blocks_too(parts):
    """Of `parts` homes each has a row in `parts`: what these meet lies further apart."""
    begin = np.arange(0, 64_000, parts)
    lengths = np.full(len(begin), 1_000)
    blocks, others = grids.blocks_of(np.zeros(len(begin), int), begin, lengths)
    assert others.mean() < 0.01  # the last rows may be too few
    cells = ((blocks.last - blocks.first) * (blocks.high - blocks.low)).sum()
    assert cells < lengths.sum() / (1 - grids.SPARE)
    assert len(blocks.first) * grids.FEW < cells


@pytest.mark.parametrize("text", PREDICATES)
@relaxed
@given(stretches(), st.randoms(use_true_random=False), st.integers(1, 5))
def test_the_pairs_found_are_those_that_meet_and_hold(text, asked, random, limit):
    others, groups, begin, lengths = asked
    predicate = compile_predicate(text, (ALONG, DOWN), "where")
    numbers = [float(random.randint(0, 4)) for _ in range(others)]
    along = pa.record_batch({"v": numbers, "n": list(range(others))}, ALONG)
    down = pa.record_batch({"p": [float(random.randint(0, 4)) for _ in groups]}, DOWN)
    order = np.array(random.sample(range(others), others))
    grid = Grid.of(
        predicate,
        columns_of(predicate, Side.RIGHT, down, np.arange(len(groups))),
        columns_of(predicate, Side.LEFT, along, order),
    )
    with small(), patch.object(grids, "SPARE", 1.0):
        blocks, alone = grids.blocks_of(groups, begin, lengths)
        found = list(grids.find(grid, blocks, begin, lengths, limit))
    pairs = [pair for some in found for pair in zip(some.rows, some.met, strict=True)]
    everything = np.arange(len(groups))[~alone]
    expected = [
        (row, met)
        for rows, places in expand_pairs(everything, begin[~alone], lengths[~alone], 100)
        for row, met, true in zip(
            rows, places, holds(predicate, (along, down), (order[places], rows)), strict=True
        )
        if true
    ]
    assert sorted(pairs) == sorted(expected)
    assert all(len(some.rows) < limit + 8 for some in found)


WINDOWS = {
    "none": None,
    "interval": within("lt", "rt", lower="-9 s", upper="20 s", delay="1 day"),
    "tumbling": tumbling("lt", "rt", "15 s", delay="1 day"),
    "sliding": sliding("lt", "rt", "16 s", "4 s", delay="1 day"),
}
HOWS = ["inner", "full", "left_semi", "left_anti"]
TEXT = "left.lv - right.rv < 3 and right.rv - left.lv < 3"


def rows_of(n, sign):
    """One hot key and some others, a tuple a second."""
    return [(0 if i % 5 else i, sign * i * i % 97, 1_000_000 * i) for i in range(n)]


def hot_cases():
    """Each window with each type that it may have; NULLs and tumbling windows take the same way."""
    for window, how, nulls in product(WINDOWS, HOWS, [False, True]):
        if window != "none" or how == "inner":
            is_slow = window == "tumbling" or (nulls and window != "interval")
            yield pytest.param(window, how, nulls, marks=[pytest.mark.slow] * is_slow)


@pytest.mark.parametrize(("window", "how", "nulls"), list(hot_cases()))
@pytest.mark.parametrize("on", ["equi", "theta"])
def test_a_hot_key_with_a_predicate(window, how, on, nulls, tmp_path):
    """Where a value is NULL, DuckDB is asked, pair by pair."""
    left, right = rows_of(90, 1), rows_of(90, -1)
    if nulls:
        left[7] = (left[7][0], None, left[7][2])
    condition, where = (None, TEXT) if on == "equi" else (theta(TEXT), None)
    layout = "hash" if on == "equi" else "dynamic"
    plan = two_way(WINDOWS[window], 2, on=condition, where=where, how=how)
    asked = list[int]()

    def where_of(self, down, along):
        asked.append((down.stop - down.start) * (along.stop - along.start))
        return ask(self, down, along)

    ask = Grid.where
    with small(cells=64, width=16, few=12), patch.object(Grid, "where", where_of):
        query = LocalQuery(tmp_path, plan, layout)
        query.run_tuples(0, left[:50], right[:50])
        query.run_tuples(1, left[50:], right[50:])
        query.finish(2)

    def matches(a, b):
        alike = on == "theta" or a[0] == b[0]
        return alike and a[1] is not None and abs(a[1] - b[1]) < 3

    expected = joined(left, right, WINDOWS[window], how, matches)
    assert query.output() == expected
    assert expected
    assert max(asked, default=0) >= 32, "no rectangle was asked"
