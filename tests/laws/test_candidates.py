"""Candidates: the pairs that a join looks at are hardly more than those that are near in time."""

from __future__ import annotations

import tempfile
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.kernels.timelines import Timeline, covered
from joinengine.model.conditions import band, theta
from joinengine.model.keys import PAIR, Side
from joinengine.model.windows import INT_MAX, INT_MIN, Sliding, Within, sliding, tumbling, within
from tests.harness import LocalQuery, two_way
from tests.laws.cases import ENDS, everything, feed, matched, relaxed, streams, windows

#: Times that are likely to show an overflow, and others.
TIMES = st.sampled_from([INT_MIN, INT_MIN + 1, -1, 0, 1, *ENDS, INT_MAX - 1, INT_MAX])
TIMES |= st.integers(-20, 20) | st.integers(INT_MIN, INT_MAX)
GROUPED = st.lists(st.tuples(st.integers(0, 3), TIMES), min_size=1, max_size=30)


@given(rows=GROUPED, asked=st.lists(st.tuples(st.integers(0, 29), TIMES, TIMES), max_size=20))
def test_a_timeline_finds_what_a_loop_finds(rows, asked):
    groups, times = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    line = Timeline.of(groups, times)
    wanted = np.array([groups[i % len(rows)] for i, _, _ in asked], np.int64)
    first, last = (np.array([one[i] for one in asked], np.int64) for i in (1, 2))
    begin, lengths = line.between(wanted, first, last)
    everything = set()
    for i, group in enumerate(wanted):
        found = set(line.order[begin[i] : begin[i] + lengths[i]].tolist())
        near = (groups == group) & (times >= first[i]) & (times <= last[i])
        assert found == set(np.flatnonzero(near).tolist())
        everything |= found
    assert set(line.order[covered(len(rows), begin, lengths)].tolist()) == everything


LENGTHS = st.sampled_from([-INT_MAX, -5, -1, 0, 1, 4, INT_MAX - 3, INT_MAX]) | st.none()
INTERVALS = (
    st.tuples(LENGTHS, LENGTHS)
    .filter(lambda ends: ends != (None, None))
    .filter(lambda ends: None in ends or ends[0] <= ends[1])
    .map(lambda ends: Within((("lt",), ("rt",)), *ends))
)
SIZES = st.sampled_from([1, 2, 3, 5, 10, 1 << 62, INT_MAX])
WINDOWS = INTERVALS | st.builds(Sliding, st.just((("lt",), ("rt",))), SIZES, SIZES).filter(
    lambda one: one.most_windows <= 10
)


@given(window=WINDOWS, pairs=st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=40))
def test_partners_are_the_times_that_are_near(window, pairs):
    left, right = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    near = window.near(left, right)
    for side, mine, theirs in ((Side.LEFT, left, right), (Side.RIGHT, right, left)):
        first, last = window.partners(side, mine)
        assert (((theirs >= first) & (theirs <= last)) == near).all()


def candidates_of(query):
    return sum(record.joins[0].work.candidates for record in query.records)


def is_near(window, one, other):
    times = (np.array([row[2] or 0]) for row in (one, other))
    return window is None or bool(window.near(*times).all())


def bound(batches, window, key):
    """Per key the pairs that are near, and per batch the tuples that meet: arrived and stored."""

    def able(side):
        timed = (row for row in side if window is None or row[2] is not None)
        return [(key(row), row) for row in timed if key(row) is not None]

    left, right = (able(side) for side in everything(batches))
    near = 0
    for k in {k for k, _ in left}:
        times = [np.array([row[2] or 0 for at, row in side if at == k]) for side in (left, right)]
        (n, m) = map(len, times)
        pairs = np.repeat(times[0], m), np.tile(times[1], n)
        near += n * m if window is None else int(window.near(*pairs).sum())
    tuples, held = 0, (Counter(), Counter())
    for batch in batches:
        arrived = [Counter(k for k, _ in able(side)) for side in batch]
        for side in PAIR:
            held[side].update(arrived[side])
        for side in PAIR:
            tuples += sum(n + held[side.other][k] for k, n in arrived[side].items())
    return near + tuples


#: A condition, and what must be equal for two tuples to be compared; None: the tuple has no key.
CONDITIONS = {
    "equi": (None, lambda row: row[0]),
    "open band": (band("lv", "rv", lower=0), lambda row: 0),
    "predicate": (theta("left.lv % 7 = right.rv % 5"), lambda row: 0),
}


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("how", ["inner", "left_semi", "full"])
@relaxed
@given(batches=streams(max_rows=80), window=windows)
def test_candidates_are_the_pairs_of_the_window_and_the_tuples(condition, how, batches, window):
    """At one instance, where every tuple meets all others."""
    on, key = CONDITIONS[condition]
    how = "inner" if window is None and how == "full" else how
    with tempfile.TemporaryDirectory() as folder:
        layout = "hash" if condition == "equi" else "dynamic"
        query = LocalQuery(folder, two_way(window, 1, on=on, how=how), layout)
        feed(query, batches)
        assert candidates_of(query) <= bound(batches, window, key)


def rows_of(n, key=0):
    """Tuples of one key, one a second."""
    return [(key, i, 1_000_000 * i) for i in range(n)]


NARROW = {
    "interval": within("lt", "rt", lower="-2 s", upper="0 s", delay="1 day"),
    "tumbling": tumbling("lt", "rt", "3 s", delay="1 day"),
    "sliding": sliding("lt", "rt", "3 s", "1 s", delay="1 day"),
    "gaps": sliding("lt", "rt", "3 s", "10 s", delay="1 day"),
}


@pytest.mark.parametrize("window", NARROW)
@pytest.mark.parametrize("instances", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_a_hot_key_under_a_short_window(window, instances, tmp_path):
    """200 tuples of one key on each side: 40,000 pairs, of which few are near."""
    window, tuples = NARROW[window], rows_of(200)
    query = LocalQuery(tmp_path, two_way(window, instances), "hash")
    query.run_tuples(0, tuples[:100], tuples[:100])
    query.run_tuples(1, tuples[100:], tuples[100:])
    near = {a + b for a in tuples for b in tuples if is_near(window, a, b)}
    output = query.output()
    assert {row[:6] for row in output} == near
    assert sum(sum(record.joins[0].work.made) for record in query.records) == output.total()
    assert candidates_of(query) == len(near)


def test_a_run_that_is_near_as_a_whole_is_not_searched(tmp_path, monkeypatch):
    """With a window of a day no time of these tuples is looked at."""
    window = within("lt", "rt", lower="-1 day", upper="1 day", delay="1 day")
    query = LocalQuery(tmp_path, two_way(window, 1), "hash")
    monkeypatch.setattr(Timeline, "of", None)
    query.run_tuples(0, rows_of(20), rows_of(30))
    assert query.output() == matched(rows_of(20), rows_of(30), window)


@pytest.mark.parametrize(("how", "rows"), [("left_semi", 60), ("left_anti", 0)])
def test_a_semi_join_looks_at_tuples_where_pairs_would_be_many(how, rows, tmp_path):
    """Each tuple that has a partner is marked once."""
    window = within("lt", "rt", lower="-2 s", upper="0 s", delay="1 day")
    query = LocalQuery(tmp_path, two_way(window, 1, how=how), "hash")
    query.run_tuples(0, rows_of(60), rows_of(60))
    assert candidates_of(query) == 60  # of the side that arrived second
    query.finish(1)
    assert query.output().total() == rows


@pytest.mark.parametrize("keys", [(2, 2), (2, 1), (1, 2)])
def test_tuples_of_another_key_with_the_same_hash_stay_apart(keys, tmp_path, monkeypatch):
    """What dense keys have in common is looked at, not believed: keys may share a hash."""
    monkeypatch.setattr(
        "joinengine.exchange.keying.hash_columns", lambda columns: np.zeros(len(columns[0]), "u8")
    )
    window = within("lt", "rt", lower="-2 s", upper="0 s", delay="1 day")
    left, right = ([row for key in range(n) for row in rows_of(160, key)] for n in keys)
    query = LocalQuery(tmp_path, two_way(window, 1), "hash")
    for number in range(8):  # which of two keys comes first is drawn
        query.run_tuples(number, left[number::8], right[number::8])
    assert query.output() == matched(left, right, window)
