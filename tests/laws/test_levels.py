"""Service levels: keys have as many backups as they should, and results stay the same."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing.backup_levels import Levels, wanted_backups, with_backups
from joinengine.balancing.reasons import Cause
from joinengine.balancing.statistics import Interval
from joinengine.driver.settings import Settings
from joinengine.kernels.hashing import hash_columns
from joinengine.layouts import Ftlb, Mixed
from joinengine.model.conditions import band, equi
from joinengine.model.keys import U_BITS
from joinengine.state.wished import Relayout
from tests.harness import LEFT, LocalQuery, two_way
from tests.laws.cases import (
    CHOICES,
    HOT,
    check_results,
    everything,
    relaxed,
    skewed_batches,
    streams,
    tries,
)
from tests.laws.losing import NERVOUS

LISTED = {"keys": [1, 5], "backups": 3}
WHERE = {"where": "lk % 4 = 2", "backups": 2}
TOP = {"top": 1, "backups": 4}
levels = st.sampled_from(
    [
        {"listed": LISTED},
        {"listed": LISTED, "where": WHERE},
        {"where": WHERE | {"where": "rk between 1 and 6"}, "top": TOP},
        {"listed": LISTED, "where": WHERE, "top": TOP, "more": {"top": 3, "backups": 2}},
    ]
)


def hash_of(key):
    (found,) = (hash_columns([pa.array([key], LEFT.field(0).type)]) >> np.uint64(U_BITS)).tolist()
    return found


def backups(query, key):
    return len(query.layout.place(hash_of(key)).backups)


@relaxed
@given(streams(), st.booleans(), levels, st.booleans(), st.sampled_from([{}, NERVOUS]))
def test_results_do_not_depend_on_levels(batches, restarts, levels, lazy, nervous):
    batches = [*HOT, *batches]
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(
            folder,
            two_way(None, 6),
            "ftlb",
            choice=Ftlb(levels=levels, **nervous),
            settings=Settings(lazy=lazy),
        )
        for number, (left, right) in enumerate(batches):
            query.run_tuples(number, left, right)
            if restarts:
                query.restart()
        check_results(query, batches)


@relaxed
@given(levels, st.booleans(), st.integers(0, 10**6))
def test_keys_have_the_backups_of_their_levels(levels, restarts, seed):
    """After each batch, of the heaviest key, of listed ones, and of those of the predicate."""
    with tempfile.TemporaryDirectory() as folder:
        choice = Ftlb(levels=levels, **NERVOUS)
        query = LocalQuery(folder, two_way(None, 6), "ftlb", choice=choice)
        batches = skewed_batches(4, seed=seed)
        for number, (left, right) in enumerate(batches):
            query.run_tuples(number, left, right)
            if restarts:
                query.restart()
            named = [level["backups"] for level in levels.values() if "top" in level]
            assert backups(query, 0) == max([1, *named]), "two in five tuples have key 0"
            for key in LISTED["keys"] if "listed" in levels else ():
                assert backups(query, key) >= 3
            text = levels.get("where", {}).get("where", "")
            named = [2, 6, 10, 14] if "%" in text else [1, 2, 3, 4, 5, 6] if text else []
            assert all(backups(query, key) >= 2 for key in named if key in seen(batches[number]))
        check_results(query, batches)


def seen(batch):
    return {row[0] for side in batch for row in side}


def test_a_level_by_rank_says_why_it_copies(tmp_path):
    choice = Ftlb(imbalance=9.0, levels={"hot": {"top": 1, "backups": 2}})
    query = LocalQuery(tmp_path, two_way(None, 4), "ftlb", choice=choice)
    batches = skewed_batches(3)
    for number, batch in enumerate(batches):
        query.run_tuples(number, *batch)
    reasons = [record.joins[0].reason for record in query.records]
    assert [reason and reason.cause for reason in reasons] == [Cause.LEVELS, None, None]
    rows = sum(row[0] == 0 for side in batches[0] for row in side)
    assert reasons[0].cost.copied == rows
    assert "keys need other backups" in str(reasons[0])


def test_another_start_gives_up_its_levels(tmp_path):
    """What the last start gave more backups has one again, and state follows."""
    choice = Ftlb(imbalance=9.0, levels={"hot": TOP, "listed": LISTED})
    query = LocalQuery(tmp_path, two_way(None, 6), "ftlb", choice=choice)
    batches = skewed_batches(5)
    for number, batch in enumerate(batches):
        if number == 2:
            assert [backups(query, key) for key in (0, 1, 2)] == [4, 3, 1]
            query.choice = Ftlb(imbalance=9.0)
            query.restart()
        query.run_tuples(number, *batch)
    assert [backups(query, key) for key in (0, 1, 2)] == [1, 1, 1]
    check_results(query, batches)


@relaxed
@given(st.integers(1, 4), st.integers(4, 9), st.integers(0, 99))
def test_levels_outlive_switches_and_resizes(at, instances, seed):
    wish = Ftlb(levels={"listed": LISTED, "where": WHERE}, **NERVOUS)
    schedule = {at: [Relayout(wish)], at + 1: [Relayout(instances=instances)]}
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(
            folder,
            two_way(None, 5),
            "mixed",
            choice=Mixed(**NERVOUS),
            settings=Settings(schedule=schedule),
        )
        batches = skewed_batches(7, seed=seed)
        for number, batch in enumerate(batches):
            query.run_tuples(number, *batch)
            query.restart()  # the wish is known from the manifest alone
        assert backups(query, 1) == backups(query, 5) == 3
        assert backups(query, 2) == 2
        check_results(query, batches)


def test_levels_of_a_band_go_by_rank(tmp_path):
    near = two_way(None, 5, on=band("lv", "rv", lower=-3, upper=3))
    query = LocalQuery(tmp_path, near, "ftlb", choice=Ftlb(levels={"hot": TOP}, **NERVOUS))
    batches = skewed_batches(3)
    for number, batch in enumerate(batches):
        query.run_tuples(number, *batch)
    left, right = everything(batches)
    pairs = Counter(a + b for a in left for b in right if abs(b[1] - a[1]) <= 3)
    assert pairs and query.output() == pairs
    copies = Counter(len(p.backups) for p in query.layout.table.placements.values())
    assert copies[4] == 1


@st.composite
def planned(draw):
    """Loads under a layout whose keys have one backup, levels, and what predicates say."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    hashes = np.unique(rng.integers(0, 1 << 40, draw(st.integers(1, 40))).astype(np.uint64))
    arrived = rng.integers(0, 1000, (2, len(hashes))).astype(float)
    layout = Ftlb(backup_work=draw(st.sampled_from([0.0, 0.5])))
    start = layout.start(draw(st.integers(4, 9)))
    counted = Interval(hashes, arrived, arrived, np.zeros(start.instances))
    some = rng.choice(hashes, min(3, len(hashes)), replace=False).tolist()
    listed = dict.fromkeys(some, 3)
    given_ = Levels(1, listed, {draw(st.integers(1, 50)): 2})
    loads = layout.gather(start.base, start.table, [counted])
    return loads, given_, rng.integers(0, 4, len(hashes))


@tries(150)
@given(planned())
def test_copies_come_and_go_apart_and_homes_stay(case):
    loads, levels, named = case
    wanted = wanted_backups(loads, levels, (loads.hashes, named))
    homes = dict(zip(loads.keys.tolist(), loads.instances.tolist(), strict=True))
    changed = with_backups(loads, wanted, np.zeros((len(loads.hashes), 2), np.uint16))
    assert set(changed) == set(np.flatnonzero(wanted != 1).tolist())
    for key, holders in changed.items():
        assert holders[0] == homes[key]
        assert len(set(holders)) == len(holders) == 1 + wanted[key]
        assert max(holders) < loads.n_instances
    for hash_, copies in levels.listed.items():
        assert wanted[np.searchsorted(loads.hashes, np.uint64(hash_))] >= copies


def backed(loads, keys, instances):
    return loads.backups._replace(keys=np.array(keys), instances=np.array(instances))


def some_loads(costs, backups):
    """Keys 0, 1, .. of these loads at instance 0 of 5, with so many backups at those after it."""
    hashes = np.arange(len(costs), dtype=np.uint64)
    arrived = np.vstack([costs, np.zeros(len(costs))])
    choice = Ftlb(levels=[])
    start = choice.start(5)
    loads = choice.gather(
        start.base, start.table, [Interval(hashes, arrived, arrived, np.zeros(5))]
    )
    keys = np.repeat(np.arange(len(costs)), backups)
    return replace(loads, backups=backed(loads, keys, np.ones(len(keys), np.int64)))


NOBODY = np.zeros(0, np.uint64), np.zeros(0, np.int64)


def test_a_key_keeps_its_rank_until_it_is_far_below_it():
    levels = Levels(1, {}, {1: 2})
    assert wanted_backups(some_loads([5, 9, 7], [1, 1, 1]), levels, NOBODY).tolist() == [1, 2, 1]
    held = wanted_backups(some_loads([5, 9, 7], [1, 1, 2]), levels, NOBODY).tolist()
    assert held == [1, 2, 2], "the second was the first before"
    lost = wanted_backups(some_loads([5, 9, 7], [2, 1, 1]), levels, NOBODY).tolist()
    assert lost == [1, 2, 1], "the third is beyond twice the rank"
    idle = replace(some_loads([5, 9], [1, 1]), spread=np.zeros(2))
    assert wanted_backups(idle, levels, NOBODY).tolist() == [1, 1], "no load is no rank"


def test_a_key_that_leaves_a_level_lies_like_other_keys_again():
    """It gives up the backup that it got, though the one of its base home is at a fuller place."""
    loads = some_loads([5], [1])
    rest = np.array([0.0, 9.0, 0.0, 0.0, 0.0])
    loads = replace(loads, rest=rest, backups=backed(loads, [0, 0], [1, 3]))
    plain = np.array([[0, 1]], np.uint16)
    assert with_backups(loads, np.array([1]), plain) == {0: (0, 1)}
    assert with_backups(loads, np.array([1]), np.array([[0, 2]], np.uint16)) == {0: (0, 3)}


@pytest.mark.parametrize(
    ("backups", "wanted", "holders"),
    [((1, 2), 1, (0, 1)), ((2,), 1, (0, 3)), ((2, 4), 2, (0, 4, 3)), ((1, 3), 2, None)],
)
def test_the_backup_that_fails_together_with_another_copy_goes_first(backups, wanted, holders):
    """The home is at 0, and the even ones of 5 instances are in one domain; 3 is the emptiest."""
    loads = some_loads([5], [1])
    loads = replace(loads, backups=backed(loads, [0] * len(backups), backups))
    changed = with_backups(loads, np.array([wanted]), np.array([[3, 4]], np.uint16), domains=2)
    assert changed.get(0) == holders


def test_the_most_backups_that_a_level_gives_count():
    levels = Levels(1, {0: 2, 1: 3}, {2: 2})
    named = np.arange(3, dtype=np.uint64), np.array([3, 0, 0])
    assert wanted_backups(some_loads([5, 9, 7], [1, 1, 1]), levels, named).tolist() == [3, 3, 2]


def test_a_level_may_give_fewer_than_others_have(tmp_path):
    choice = Ftlb(backups=3, levels={"minor": {"keys": [0], "backups": 1}})
    query = LocalQuery(tmp_path, two_way(None, 5), "ftlb", choice=choice)
    batches = skewed_batches(2)
    for number, batch in enumerate(batches):
        query.run_tuples(number, *batch)
    assert (backups(query, 0), backups(query, 1)) == (1, 3)
    assert CHOICES["ftlb"].levels == ()


def test_predicates_are_asked_of_the_right_side_too(tmp_path):
    """A key that only right tuples have is named by the left name of its column."""
    choice = Ftlb(levels={"where": {"where": "lk = 7", "backups": 2}}, imbalance=9.0)
    query = LocalQuery(tmp_path, two_way(None, 4), "ftlb", choice=choice)
    query.run_tuples(0, [], [(7, 1, 0), (8, 2, 0)])
    assert (backups(query, 7), backups(query, 8)) == (2, 1)


def test_a_predicate_may_ask_for_any_column_of_the_key(tmp_path):
    levels = {"where": {"where": "rv = 3 and lk > 7", "backups": 2}}
    both = two_way(None, 4, on=equi(("lk", "lv"), ("rk", "rv")))
    query = LocalQuery(tmp_path, both, "ftlb", choice=Ftlb(levels=levels, imbalance=9.0))
    query.run_tuples(0, [(8, 3, 0), (7, 3, 0), (3, 8, 0)], [(9, 3, 0), (9, 4, 0)])
    columns = [pa.array([8, 7, 3, 9, 9]), pa.array([3, 3, 8, 3, 4])]
    hashes = (hash_columns(columns) >> np.uint64(U_BITS)).tolist()
    copies = [len(query.layout.place(hash_).backups) for hash_ in hashes]
    assert copies == [2, 1, 1, 2, 1]


@pytest.mark.parametrize("levels", [{}, [], ()])
def test_no_levels_are_no_levels(levels):
    assert Ftlb(levels=levels) == Ftlb()
