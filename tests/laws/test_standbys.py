"""Standbys: a copy of each whole instance, which takes over all its keys if it is lost."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing.reasons import Balance
from joinengine.balancing.statistics import Interval
from joinengine.driver.recovery.demands import standing_by
from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import Ftlb, Mnrt
from joinengine.model.errors import DamagedState, InvalidRequest
from joinengine.model.recovery import Recovery
from joinengine.model.speeds import Speed
from joinengine.reporting.words import plan_words
from joinengine.routing.routes import MAX_INSTANCES
from joinengine.spark.query.join_query import JoinQuery
from joinengine.state.wished import Relayout
from joinengine.world.memory import MemoryWorld
from tests.harness import LocalQuery, two_way
from tests.laws import cases
from tests.laws.cases import (
    check_results,
    kills,
    model,
    relaxed,
    skewed_batches,
    streams,
    tries,
    values,
    windows,
)
from tests.laws.losing import NEAR, NERVOUS, check_near, failing, feed, joins, lose

TWO = Ftlb(backups=2, standby=True, refill_rows=40, **NERVOUS)
losses = st.dictionaries(
    st.integers(1, 6), st.sets(st.integers(0, 11), min_size=1, max_size=1), min_size=1, max_size=2
)
wishes = st.dictionaries(
    st.integers(1, 6),
    st.lists(
        st.builds(
            Relayout,
            st.none() | st.sampled_from([TWO, Ftlb(backups=2, **NERVOUS)]),
            st.none() | st.integers(3, 6),
        ),
        min_size=1,
        max_size=1,
    ),
    max_size=2,
)


class Grouped(LocalQuery):
    """After each batch the keys of a layout with standbys are at groups."""

    def check_state(self):
        super().check_state()
        if self.chosen.choice.standby:
            base = self.layout.base
            groups = {tuple(sorted(row)) for row in base.roles.tolist()}
            n = base.single.instances
            assert groups == {tuple(d + n * i for i in range(len(base.roles[0]))) for d in range(n)}
            listed = self.layout.table.placements.values()
            assert {tuple(sorted(one.holders)) for one in listed} <= groups


@relaxed
@given(losses, wishes, kills, st.booleans(), st.integers(0, 99))
def test_no_result_is_lost_with_an_instance(losses, wishes, kills, twice, seed):
    """Whatever is planned, wished, killed or under way then, also a change to replicas."""
    with tempfile.TemporaryDirectory() as folder:
        query = Grouped(
            folder,
            two_way(None, 4),
            "ftlb",
            choice=TWO,
            settings=Settings(schedule=wishes),
            jobs=InlineJobs(twice=twice),
        )
        lost = set()

        def lose_then(name):
            batch = query.runner.manifest.batch + 1
            if name == "routed" and batch not in lost:
                lost.add(batch)
                lose(query, losses.get(batch, ()))

        batches = skewed_batches(7, seed=seed)
        cases.feed(query, batches, kills, before=lose_then)
        check_results(query, batches)


@relaxed
@given(streams(), windows, losses)
def test_windows_end_as_if_nothing_had_been_lost(batches, window, losses):
    with tempfile.TemporaryDirectory() as folder:
        query = Grouped(folder, two_way(window, 4), "ftlb", choice=TWO)
        feed(query, batches, losses)
        pairs, last = model(batches, window)
        assert values(query.output()) == pairs
        assert sum(join.refused.late for join in joins(query)) == last.late


@relaxed
@given(losses, st.integers(0, 99))
def test_bands_go_on_too(losses, seed):
    with tempfile.TemporaryDirectory() as folder:
        query = Grouped(folder, two_way(None, 4, on=NEAR), "ftlb", choice=TWO)
        batches = skewed_batches(6, seed=seed)
        feed(query, batches, losses)
        check_near(query, batches)


def test_all_keys_of_an_instance_go_on_at_its_standby(tmp_path):
    """Keys that a plan has moved there too; then the lost instance is the standby."""
    choice = Ftlb(standby=True, refill_rows=10**6, **NERVOUS)
    query = Grouped(tmp_path, two_way(None, 4), "ftlb", choice=choice)
    batches = skewed_batches(8)
    feed(query, batches[:4], {})
    query.choice = Ftlb(standby=True, refill_rows=10**6, imbalance=9.0)  # no plan follows
    query.restart()
    query.run_tuples(4, *batches[4])
    assert query.layout.instances == 8
    assert query.chosen.wanted == 4
    moved = Counter(one.homes[0] for one in query.layout.table.placements.values())
    assert moved, "the planner has moved keys between groups"
    lost = max(moved, key=moved.get)
    lose(query, {lost})
    query.run_tuples(5, *batches[5])
    join = joins(query)[5]
    assert join.lost.instances == [lost]
    words = f"instance {lost} lost its state; its standby has taken over its keys"
    assert plan_words(join.reason, {}, 8) == words
    for row in query.layout.base.roles.tolist():
        assert row[0] == (row[1] + 4 if lost in row else row[1] - 4)
    homes = {one.homes[0] for one in query.layout.table.placements.values()}
    assert lost not in homes
    assert lost + 4 in homes
    for number in range(6, 8):
        query.run_tuples(number, *batches[number])
    check_results(query, batches)
    assert query.layout.incomplete == ()
    assert sum(one.switched_roles for one in joins(query)) == 0
    assert joins(query)[-1].state.rows == 2 * sum(len(side) for one in batches for side in one)
    lose(query, {lost + 4})  # what was made anew takes over again
    more = skewed_batches(10)
    for number in (8, 9):
        query.run_tuples(number, *more[number])
    check_results(query, batches + more[8:])


def test_a_group_that_is_lost_whole_is_refused_or_read_from_a_store():
    batches = skewed_batches(4)
    for store in (None, Speed()):
        query = Grouped(
            "/nowhere/query",
            two_way(None, 3),
            "ftlb",
            choice=Ftlb(standby=True, imbalance=9.0),
            jobs=InlineJobs(world=MemoryWorld()),
            settings=failing({2: (1, 4)}, speed=store, recovery=Recovery.TASKB),
        )
        feed(query, batches[:2], {})
        if store is None:
            with pytest.raises(DamagedState, match=r"instances 1, 4 is lost, .* base home 1"):
                query.run_tuples(2, *batches[2])
            continue
        feed_from = batches[2:]
        for number, batch in enumerate(feed_from, start=2):
            query.run_tuples(number, *batch)
        check_results(query, batches)
        assert joins(query)[2].lost.instances == [1, 4]


@pytest.mark.parametrize("lost", [1, 6])
def test_resizes_grow_and_restarts_take_standbys_along(lost, tmp_path):
    """3 -> 5 -> 2 instances, one more where one is full, copies of keys instead, and back."""
    schedule = {2: [Relayout(instances=5)], 4: [Relayout(instances=2)]}
    choice = Ftlb(standby=True, refill_rows=10**6, **NERVOUS)
    query = Grouped(
        tmp_path, two_way(None, 3), "ftlb", choice=choice, settings=Settings(schedule=schedule)
    )
    batches = skewed_batches(14)
    sizes = []
    for number, batch in enumerate(batches):
        if number == 3:
            lose(query, {lost})
        if number == 6:
            query.settings = Settings(capacity=500)
            query.restart()
        if number == 9:
            query.settings, query.choice = Settings(), Ftlb(**NERVOUS)
            query.restart()
        if number == 11:
            query.choice = choice
            query.restart()
        query.run_tuples(number, *batch)
        sizes.append((query.chosen.wanted, query.layout.instances))
    check_results(query, batches)
    assert sizes[0] == sizes[1 - 1] == (3, 6)
    assert sizes[1] == (5, 10)
    assert sizes[3] == (2, 4)
    grown = [wanted for wanted, _ in sizes[6:9]]
    steps = {after - before for before, after in pairwise(grown)}
    assert steps - {0} == {1}, "one instance with its standby at a time"
    assert all(have == 2 * wanted for wanted, have in sizes[:9])
    assert sizes[9] == sizes[10] == (3, 3)
    assert sizes[11] == (3, 6)


def test_a_restart_takes_no_standbys_to_a_layout_that_has_none(tmp_path):
    """A user has switched to copies of keys since; the start asks for what it asked for before."""
    schedule = {2: [Relayout(Ftlb(**NERVOUS))]}
    query = Grouped(tmp_path, two_way(None, 3), "ftlb", choice=Ftlb(standby=True, **NERVOUS))
    query.settings = Settings(schedule=schedule)
    query.restart()
    batches = skewed_batches(6)
    feed(query, batches[:4], {})
    query.restart()
    assert not query.chosen.choice.standby
    for number in (4, 5):
        query.run_tuples(number, *batches[number])
    check_results(query, batches)
    assert query.layout.instances == 3


@tries(100)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 3), st.sampled_from([0.0, 1.5]))
def test_plans_balance_groups(seed, instances, backups, exponent):
    """A standby weighs nothing: a group has the load of its home, wherever roles are."""
    rng = np.random.default_rng(seed)
    hashes = np.unique(rng.integers(0, 1 << 40, 40).astype(np.uint64))
    heavy = np.round(1000 * np.arange(1, len(hashes) + 1) ** -exponent)
    arrived = np.vstack([rng.permutation(heavy), rng.integers(0, 20, len(hashes))])
    layout = Ftlb(backups=backups, standby=True, imbalance=0.1)
    start = layout.start(instances)
    counted = Interval(hashes, arrived, 2 * arrived, rng.integers(0, 50, start.instances))
    loads = layout.gather(start.base, start.table, [counted])
    before = loads.per_instance()
    assert len(before) == instances
    assert before.sum() == pytest.approx(arrived.sum() + counted.rest.sum())
    new = layout.planned(start.base, start.table, loads)
    assert Balance.of(before).total(start.instances) == pytest.approx(before.sum())
    after = layout.gather(start.base, new, [counted]).per_instance()
    assert after.sum() == pytest.approx(before.sum())
    assert after.max() <= max(layout.limit(before), before.max()) * (1 + 1e-6)
    rows = {tuple(row) for row in start.base.roles.tolist()}
    assert {(one.homes[0], *one.backups) for one in new.placements.values()} <= rows


def test_what_cannot_stand_by_is_refused():
    query, taskb = two_way(None, 4), Settings(recovery=Recovery.TASKB)
    found, _ = standing_by(query.operators, [Ftlb()], taskb)
    assert found == [Ftlb(standby=True)]
    with pytest.raises(InvalidRequest, match=r"recovery: taskb .* layout mnrt does not have"):
        standing_by(query.operators, [Mnrt()], taskb)
    asked = Settings(recovery=Recovery.TASKB, schedule={3: [Relayout(Ftlb()), Relayout(None, 5)]})
    _, granted = standing_by(query.operators, [Ftlb()], asked)
    assert granted.schedule == {3: [Relayout(Ftlb(standby=True)), Relayout(None, 5)]}
    with pytest.raises(InvalidRequest, match="layout mnrt does not have"):
        schedule = {3: [Relayout(Mnrt())]}
        standing_by(query.operators, [Ftlb()], replace(taskb, schedule=schedule))
    wished = []
    runner = SimpleNamespace(settings=taskb, relayout=wished.append)
    running = SimpleNamespace(isActive=True, _runner=runner)
    JoinQuery._ask(running, "switch_layout", Relayout(Ftlb()))
    assert wished == [Relayout(Ftlb(standby=True))]
    _, apart = standing_by(query.operators, [Ftlb()], replace(asked, recovery=Recovery.STORE), 3)
    assert apart.schedule[3][0] == Relayout(Ftlb(domains=3)), "wished layouts as those of the start"
    runner.settings = apart
    JoinQuery._ask(running, "switch_layout", Relayout(Ftlb()))
    assert wished[1] == Relayout(Ftlb(domains=3))
    most = MAX_INSTANCES // 2
    Ftlb(standby=True).check(query.operators[0].condition, most)
    with pytest.raises(InvalidRequest, match=f"needs from 1 to {most} instances"):
        Ftlb(standby=True).check(query.operators[0].condition, most + 1)
    with pytest.raises(InvalidRequest, match=r"standby: 'yes' \(str\) is not a boolean"):
        Ftlb(standby="yes")


def test_standbys_can_be_made_to_fail(tmp_path):
    for instance, known in ((7, True), (8, False)):
        options = failing({1: (instance,)}, recovery=Recovery.TASKB)
        choice, folder = Ftlb(standby=True), tmp_path / str(instance)
        if not known:
            with pytest.raises(InvalidRequest, match=r"instance 8 does not exist; give .* 0 to 7"):
                LocalQuery(folder, two_way(None, 4), "ftlb", choice=choice, settings=options)
            continue
        query = Grouped(folder, two_way(None, 4), "ftlb", choice=choice, settings=options)
        batches = skewed_batches(3)
        feed(query, batches, {})
        check_results(query, batches)
        assert joins(query)[1].lost.instances == [instance]
