"""Spines stay short, merges are metered, and nothing is lost or doubled while they go on."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.layouts import Qmmp
from joinengine.model.keys import Side
from joinengine.model.windows import within
from joinengine.operators.join import join_task as join_module
from joinengine.state.run import Run
from joinengine.state.spine import (
    FAN_IN,
    SMALL_PART,
    SMALL_ROWS,
    WINDOW_PART,
    cut_word,
    plan_merges,
)
from tests.harness import LocalQuery, two_way
from tests.laws.cases import matched


def spines(state):
    found = defaultdict(list)
    for run in state.shelves.state.values():
        found[run.instance, run.side].append(run)
    return found


def tuples_of(rng, batch, n, serial):
    left = [(rng.randrange(40), serial + i, 1000 * batch + i) for i in range(n)]
    right = [(rng.randrange(40), serial + n + i, 1000 * batch + i) for i in range(n // 4)]
    return left, right


@pytest.mark.parametrize(
    ("merge_rows", "batches"),
    [(30, 60), *(pytest.param(rows, 500, marks=pytest.mark.slow) for rows in (30, 1 << 18))],
)
def test_live_runs_stay_logarithmic(tmp_path, monkeypatch, merge_rows, batches):
    """With the allowance of a task and with one so small that merges take many batches."""
    monkeypatch.setattr(join_module, "MERGE_ROWS", merge_rows)
    query = LocalQuery(tmp_path, two_way(None, 2), "hash")
    rng = random.Random(1)
    most = 0
    for batch in range(batches):
        query.run_tuples(batch, *tuples_of(rng, batch, 12, 100 * batch), map_tasks=1)
        most = max(
            most, *(len({run.group for run in runs}) for runs in spines(query.state).values())
        )
    levels = math.log(batches, FAN_IN) + 2
    # At most three groups a level wait, and the inputs and outputs of merges in progress are there.
    assert 4 <= most <= (2 * FAN_IN) * levels
    assert query.state.shelves.rows == batches * 15


def test_merges_lose_nothing_while_keys_move(tmp_path, monkeypatch):
    """Partial merges, exclusions of moved keys and restarts, all at once."""
    monkeypatch.setattr(join_module, "MERGE_ROWS", 7)
    monkeypatch.setattr(join_module, "MERGE_PER_ROW", 1)
    choice = Qmmp(imbalance=0.0, intervals=1)
    query = LocalQuery(tmp_path, two_way(None, 4), "qmmp", choice=choice)
    rng = random.Random(2)
    all_left, all_right = [], []
    for batch in range(14):
        left, right = tuples_of(rng, batch, 20, 100 * batch)
        all_left += left
        all_right += right
        query.run_tuples(batch, left, right)
        if batch % 5 == 0:
            query.restart()
    assert query.output() == matched(all_left, all_right, None)
    assert any(run.into is not None for run in query.state.shelves.state.values())
    assert any(run.exclusions for run in query.state.shelves.state.values())


def test_under_a_window_old_runs_leave_and_merges_hold_back_little(tmp_path):
    window = within("lt", "rt", lower="-8000 us", upper="8000 us", delay="1000 us")
    query = LocalQuery(tmp_path, two_way(window, 2), "hash")
    rng = random.Random(3)
    all_left, all_right, expired = [], [], 0
    for batch in range(45):
        left, right = tuples_of(rng, batch, 24, 100 * batch)
        all_left += left
        all_right += right
        query.run_tuples(batch, left, right)
        for runs in spines(query.state).values():
            for run in runs:
                held_back = run.max_time - run.settled_time
                assert held_back <= window.span_us / WINDOW_PART
    expired = sum(record.joins[0].state.expired_rows for record in query.records)
    assert expired > 0
    # 8 ms on either side of the newest tuple, and 1 ms a batch: well under all batches' worth.
    assert query.state.shelves.rows < 30 * 30
    assert expired + query.state.shelves.rows == len(all_left) + len(all_right)
    assert query.output() == matched(all_left, all_right, window)


@given(
    st.lists(st.lists(st.integers(0, 50), min_size=1), min_size=1, max_size=4),
    st.integers(1, 60),
)
def test_cut_word_takes_what_fits_and_always_something(lists, max_rows):
    words = [np.sort(np.array(values, np.uint64)) for values in lists]
    cut = cut_word(words, max_rows)
    below = Counter(int(w) for part in words for w in part if int(w) < cut)
    total, lowest = sum(map(len, words)), min(int(part[0]) for part in words)
    if total <= max_rows:
        assert cut == 1 << 64
    else:
        ties = sum(int(w) == lowest for part in words for w in part)
        assert 0 < below.total() <= max(max_rows, ties)
        # One word further would be too much.
        more = sum(int(w) <= cut for part in words for w in part)
        assert more > max_rows


def sealed(group, rows):
    return Run(f"run-{group}", 0, Side.LEFT, 0, 1, rows, 8 * rows, group)


@pytest.mark.parametrize("rows", [1, 50])
def test_as_many_runs_of_like_size_as_make_a_merge_are_merged(rows):
    spine = [sealed(group, rows) for group in range(FAN_IN)]
    (step,) = plan_merges(spine, 100, None)
    assert sorted(run.group for run in step.inputs) == list(range(FAN_IN))
    assert plan_merges(spine[1:], 100, None) == []
    assert plan_merges([*spine[1:], sealed(9, 100 * rows)], 100, None) == []


def test_few_runs_are_merged_if_most_rows_are_gone_or_a_merge_is_in_progress():
    whole, sparse = sealed(1, 100), sealed(2, 100)._replace(excluded=60)
    assert plan_merges([whole], 1000, None) == []
    (step,) = plan_merges([whole, sparse], 1000, None)
    assert step.inputs == (sparse,)
    left = sealed(3, 100)._replace(into=9, excluded=10)
    (step,) = plan_merges([whole, left], 1000, None)
    assert (step.inputs, step.group) == ((left,), 9)


def test_all_small_runs_are_of_like_size_where_many_rows_may_be_merged():
    spine = [sealed(group, 1) for group in range(FAN_IN - 1)]
    small, large = (sealed(9, rows) for rows in (SMALL_ROWS - 1, SMALL_ROWS))
    (step,) = plan_merges([*spine, small], SMALL_PART * SMALL_ROWS, None)
    assert small in step.inputs
    assert plan_merges([*spine, small], SMALL_PART * SMALL_ROWS // 4, None) == []
    assert plan_merges([*spine, large], SMALL_PART * SMALL_ROWS, None) == []
