"""Replicas of keys: copies stay apart, roles change without moves, and plans balance homes."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing.costs import Load
from joinengine.balancing.ftlb import _Plan, migration_index, plan_ftlb
from joinengine.balancing.loads import gather_loads
from joinengine.balancing.statistics import Interval, skew
from joinengine.driver.settings import Settings
from joinengine.kernels.hashing import hash_columns
from joinengine.layouts import Ftlb
from joinengine.model.keys import U_BITS
from joinengine.routing.base_functions import Backed, Modulo
from joinengine.routing.moves import plan_moves, replaced
from joinengine.routing.table import RoutingTable
from tests.harness import LEFT, LocalQuery, two_way
from tests.laws.cases import check_results, relaxed, skewed_batches, tries
from tests.laws.losing import NERVOUS


@st.composite
def cases(draw):
    """Counts of an interval, and a layout that balances without noise."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    instances = draw(st.integers(2, 12))
    exponent = draw(st.sampled_from([0.0, 0.8, 1.5]))
    hashes = np.unique(rng.integers(0, 1 << 40, draw(st.integers(1, 60))).astype(np.uint64))
    heavy = np.round(1000 * np.arange(1, len(hashes) + 1) ** -exponent)
    arrived = np.vstack([rng.permutation(heavy), rng.integers(0, 20, len(hashes))])
    counted = Interval(hashes, arrived, 2 * arrived, np.zeros(instances))
    layout = Ftlb(
        imbalance=draw(st.sampled_from([0.0, 0.1, 0.5])),
        backups=draw(st.integers(1, min(3, instances - 1))),
        backup_work=draw(st.sampled_from([0.0, 0.5, 1.0])),
        beta=draw(st.sampled_from([0.0, 1.5])),
        underload=draw(st.sampled_from([0.0, 0.2, 1.0])),
        spread=draw(st.sampled_from([None, 1, "all"])),
    )
    return layout, layout.start(instances), counted


@tries(200)
@given(cases())
def test_a_plan_keeps_copies_apart_and_loses_none(case):
    layout, start, counted = case
    base, table = start.base, start.table
    for _ in range(2):
        loads = layout.gather(base, table, [counted])
        new = layout.planned(base, table, loads)
        for hash_ in counted.hashes.tolist():
            holders = new.place(hash_, base).holders
            assert len(set(holders)) == len(holders) == 1 + layout.backups
            assert max(holders) < base.instances
        after = layout.gather(base, new, [counted]).per_instance()
        before = loads.per_instance()
        assert after.sum() == pytest.approx(before.sum())
        assert after.max() <= max(layout.limit(before), before.max()) * (1 + 1e-6)
        least = (1 - layout.underload) * before.mean()
        if before.max() <= layout.limit(before):  # nothing was to be unloaded
            short = [np.maximum(least - level, 0).sum() for level in (before, after)]
            assert short[1] <= short[0] * (1 + 1e-6)
        table, counted = new, counted._replace(arrived=counted.arrived[:, ::-1])


@tries(100)
@given(cases())
def test_who_only_changes_roles_moves_nothing(case):
    layout, start, counted = case
    new = layout.planned(start.base, start.table, layout.gather(start.base, start.table, [counted]))
    changed = replaced(start.table, new, start.base)
    switched = [one for one in changed if set(one.before.holders) == set(one.after.holders)]
    assert not plan_moves(switched)
    assert all(plan_moves([one]) for one in changed if one not in switched)


def test_an_instance_is_filled_without_a_try_of_each_key():
    """Of keys that are heavier than the room that is left."""
    rng = np.random.default_rng(3)
    hashes = np.unique(rng.integers(0, 1 << 40, 3_000).astype(np.uint64))
    arrived = np.vstack([np.ceil(9e4 / np.arange(1, len(hashes) + 1)), np.zeros(len(hashes))])
    layout = Ftlb(underload=0.01, spread=1)
    start = layout.start(16)
    counted = Interval(hashes, rng.permuted(arrived, axis=1), arrived, np.zeros(16))
    loads = layout.gather(start.base, start.table, [counted])
    with patch.object(_Plan, "_give", autospec=True, side_effect=_Plan._give) as tries:
        changed = plan_ftlb(loads, 0.02, 1.5, 1.0, layout.underload)
    assert len(changed) > 300
    assert tries.call_count < len(hashes)


@pytest.mark.parametrize(("underload", "filled"), [(1.0, 0), (0.5, 3), (0.2, 4)])
def test_an_instance_with_too_little_to_do_takes_keys_over(underload, filled):
    """Of four instances three have six keys each, and UL is far away; LL is 2.25, then 3.6."""
    hashes = np.array([n for n in range(24) if n % 4 != 3], np.uint64)
    arrived = np.vstack([np.ones(18), np.zeros(18)])
    counted = Interval(hashes, arrived, arrived, np.zeros(4))
    layout = Ftlb(imbalance=3.0, underload=underload, backup_work=0.0, min_gain=0.0, spread=1)
    start = layout.start(4)
    loads = layout.gather(start.base, start.table, [counted])
    assert loads.per_instance().tolist() == [6.0, 6.0, 6.0, 0.0]
    new = layout.planned(start.base, start.table, loads)
    after = layout.gather(start.base, new, [counted]).per_instance()
    assert after[3] == filled
    assert after.max() == 6.0
    moves = bool(plan_moves(replaced(start.table, new, start.base)))
    assert moves is (filled == 4), "first those of instance 2, which are backed there"
    assert layout.is_due(loads.per_instance()) is (filled > 0)
    strict = replace(layout, min_gain=0.1)
    assert strict.pays(loads.per_instance(), after) is (filled > 0)


def test_a_key_that_is_too_heavy_does_not_keep_others_idle():
    hashes = np.array([0, 1, 5, 9, 13], np.uint64)
    arrived = np.vstack([[100.0, 1.0, 1.0, 1.0, 1.0], np.zeros(5)])
    counted = Interval(hashes, arrived, arrived, np.zeros(4))
    layout = Ftlb(imbalance=0.0, underload=0.97, backup_work=0.0, spread=1)
    start = layout.start(4)
    loads = layout.gather(start.base, start.table, [counted])
    new = layout.planned(start.base, start.table, loads)
    after = layout.gather(start.base, new, [counted]).per_instance()
    assert sorted(after.tolist()) == [1.0, 1.0, 2.0, 100.0]


def heavy_pair(backup_work):
    """Instance 0 has two heavy keys, instance 1 a light one; each backs the other."""
    hashes = np.array([0, 2, 1], np.uint64)
    order = np.argsort(hashes)
    arrived = np.vstack([np.array([60.0, 50.0, 10.0])[order], np.zeros(3)])
    counted = Interval(hashes[order], arrived, arrived, np.zeros(2))
    return gather_loads([counted], RoutingTable(), Backed.over(Modulo(2), 1), backup_work)


def test_a_backup_takes_over_before_state_moves():
    assert heavy_pair(0.5).per_instance().tolist() == [115.0, 65.0]
    plan = plan_ftlb(heavy_pair(0.5), imbalance=0.1, beta=1.5, gamma=1.0)
    assert plan == {0: (1, 0)}, "the heavier of two keys with as much state a tuple"


def test_backups_that_cost_as_much_as_homes_leave_nothing_to_gain():
    assert heavy_pair(1.0).per_instance().tolist() == [120.0, 120.0]
    assert plan_ftlb(heavy_pair(1.0), imbalance=0.0, beta=1.5, gamma=1.0) == {}


def test_what_leaves_an_instance_first():
    """Little state, much load, few copies."""
    cost, state = np.array([4.0, 4.0, 9.0, 4.0, 0.0]), np.array([8.0, 2.0, 8.0, 8.0, 1.0])
    copies = np.array([2, 2, 2, 3, 2])
    found = migration_index(cost, state, copies, beta=0.5, gamma=2.0)
    assert found.tolist() == pytest.approx([16.0, 4.0, 32 / 3, 36.0, np.inf])


@relaxed
@given(st.integers(1, 3), st.booleans(), st.integers(0, 10**6))
def test_each_copy_holds_all_tuples_of_its_keys(backups, lazy, seed):
    """Whatever has been planned, resized and moved: what a home has its backups have."""
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(
            folder,
            two_way(None, 6),
            "ftlb",
            choice=Ftlb(backups=backups, **NERVOUS),
            settings=Settings(lazy=lazy),
        )
        batches = skewed_batches(5, seed=seed)
        for number, (left, right) in enumerate(batches):
            query.run_tuples(number, left, right)
        check_results(query, batches)
        assert any(record.joins[0].replanned for record in query.records)
        assert query.records[-1].joins[0].state.rows == (1 + backups) * sum(
            len(side) for batch in batches for side in batch
        )


def test_loads_of_homes_and_backups_are_told_apart(tmp_path):
    """The counts of a batch give back what each instance joined, and what it only kept."""
    choice, settings = Ftlb(imbalance=9.0), Settings(load=Load.TUPLES)
    query = LocalQuery(tmp_path, two_way(None, 4), "ftlb", choice=choice, settings=settings)
    (batch,) = skewed_batches(1)
    query.run_tuples(0, *batch)
    layout, (stored,) = query.layout, query.state.layouts.history
    interval = query.runner._counts[stored.name]
    homes, copies = np.zeros((2, 4))
    for side in batch:
        keys = Counter(key for key, _, _ in side)
        hashes = hash_columns([pa.array(list(keys), LEFT.field(0).type)]) >> np.uint64(U_BITS)
        for hash_, count in zip(hashes.tolist(), keys.values(), strict=True):
            home, *backups = layout.place(hash_).holders
            homes[home] += count
            copies[backups] += count
    for work in (0.0, 1.0):
        level = gather_loads([interval], layout.table, layout.base, work).per_instance()
        assert level.tolist() == (homes + work * copies).tolist()
    assert skew(homes) > 1
