"""Lazy moves: state stays where it is, and every pair still meets once."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.driver import relayout
from joinengine.driver.settings import Settings
from joinengine.kernels.hashing import make_words
from joinengine.layouts import LAYOUTS
from joinengine.layouts.versions import MOST_VERSIONS, AnyRouter, VersionedRouter
from joinengine.model.keys import PAIR, U_ONE
from joinengine.model.windows import within
from joinengine.routing.routes import BACKUP, PROBE, STORE, probe_flag
from joinengine.state.wished import Relayout
from tests.harness import LocalQuery, two_way
from tests.laws.cases import CHOICES, EACH_ROUTER, check_results, relaxed, skewed_batches


def lazily(folder, layout, schedule, window=None, instances=6):
    return LocalQuery(
        folder,
        two_way(window, instances),
        layout,
        choice=CHOICES[layout],
        settings=Settings(schedule=schedule, lazy=True),
    )


def live_versions(query):
    return [record.joins[0].layout_versions for record in query.records]


@pytest.mark.parametrize("layout", EACH_ROUTER)
def test_a_router_says_what_it_is_made_of(layout):
    """What carries routers to tasks goes by these types."""
    router = CHOICES[layout].start(6).router()
    assert type(router) in get_args(AnyRouter)
    assert get_type_hints(type(router)).keys() == {field.name for field in fields(router)}
    assert get_type_hints(VersionedRouter) == {"routers": tuple[AnyRouter, ...]}


words = st.lists(
    st.tuples(st.sampled_from([0, 1, 5, 77, (1 << 40) - 1]), st.integers(0, U_ONE - 1)),
    max_size=40,
)


@relaxed
@given(
    rows=words,
    versions=st.lists(
        st.tuples(st.sampled_from(list(LAYOUTS)), st.integers(4, 11)), min_size=2, max_size=9
    ),
    side=st.sampled_from(list(PAIR)),
)
def test_a_tuple_reaches_an_instance_once_with_the_flags_of_all_versions(rows, versions, side):
    routers = [CHOICES[name].start(n).router() for name, n in versions]
    columns = np.array(rows, np.uint64).reshape(-1, 2).T
    some = make_words(columns[0], columns[1])
    merged = VersionedRouter(tuple(routers)).route(side, some)
    found = {
        (row, instance): flag
        for row, instance, flag in zip(*(column.tolist() for column in merged), strict=True)
    }
    assert len(found) == len(merged.rows)
    expected = {}
    for slot, router in enumerate(routers):
        deliveries = router.route(side, some)
        assert (np.diff(deliveries.rows) >= 0).all()
        for row, instance, flag in zip(*(column.tolist() for column in deliveries), strict=True):
            ours = flag if slot == 0 else probe_flag(slot) * bool(flag & PROBE)
            if ours:
                expected[row, instance] = expected.get((row, instance), 0) | ours
    assert found == expected
    assert merged.flags.dtype.itemsize <= 2


@pytest.mark.parametrize("first", EACH_ROUTER)
@pytest.mark.parametrize("second", ["mnrt", "bi-k", "dynamic", "w-choices", "shuffle"])
def test_a_lazy_switch_moves_nothing(first, second, tmp_path):
    batches = skewed_batches()
    schedule = {2: [Relayout(CHOICES[second])], 4: [Relayout(CHOICES[first], 9)]}
    query = lazily(tmp_path, first, schedule)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
    check_results(query, batches)
    assert sum(record.joins[0].moved.rows for record in query.records) == 0
    assert max(live_versions(query)) >= 2


def test_a_version_dies_with_its_last_run(tmp_path):
    window = within("lt", "rt", lower="0 us", upper="20 us", delay="0 us")
    batches = [
        ([(k % 7, 100 * b + k, 10 * b) for k in range(40)], [(k % 7, k, 10 * b) for k in range(20)])
        for b in range(12)
    ]
    query = lazily(tmp_path, "hash", {3: [Relayout(CHOICES["dynamic"])]}, window)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
    versions = live_versions(query)
    assert versions[2:5] == [1, 2, 2]
    assert versions[-1] == 1
    assert query.state.layouts.older == {}
    check_results(query, batches, window)


def test_instances_that_go_are_probed_until_their_state_has_gone(tmp_path):
    batches = skewed_batches()
    query = lazily(tmp_path, "hash", {2: [Relayout(None, 2)]}, instances=8)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
    last = query.records[-1].joins[0]
    assert last.instances == 8
    assert all(last.work.stored[:2])
    assert not any(last.work.stored[2:])
    assert all(last.work.received[2:])
    check_results(query, batches)


@pytest.mark.parametrize("layout", ["mnrt", "mixed", "dynamic", "bi"])
def test_eager_again_gathers_what_the_versions_hold(layout, tmp_path):
    batches = skewed_batches(8)
    schedule = {
        2: [Relayout(CHOICES["shuffle"])],
        3: [Relayout(CHOICES["dynamic"])],
        4: [Relayout(CHOICES[layout])],
        6: [Relayout(None, 9)],
    }
    query = lazily(tmp_path, "hash", schedule)
    for number, (left, right) in enumerate(batches[:5]):
        query.run_tuples(number, left, right)
    assert live_versions(query)[-1] >= 3
    query.settings = Settings(schedule=schedule)
    query.restart()
    for number, (left, right) in enumerate(batches[5:], start=5):
        query.run_tuples(number, left, right)
    assert query.state.layouts.older == {}
    assert sum(record.joins[0].moved.rows for record in query.records) > 0
    check_results(query, batches)


def test_too_many_versions_are_gathered_into_one(tmp_path):
    n = MOST_VERSIONS + 4
    batches = [([(b % 5, b, 0), (1, 500 + b, 0)], [(b % 5, 900 + b, 0)]) for b in range(n)]
    schedule = {
        b: [Relayout(CHOICES["shuffle" if b % 2 else "dynamic"], 4 + b % 3)] for b in range(1, n)
    }
    query = lazily(tmp_path, "hash", schedule)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
    versions = live_versions(query)
    assert max(versions) == MOST_VERSIONS
    assert 1 in versions[1:]
    check_results(query, batches)


def test_too_many_plans_are_gathered_into_one(tmp_path, monkeypatch):
    most = 5
    monkeypatch.setattr(relayout, "MOST_VERSIONS", most)
    n = 2 * most + 4
    serial = iter(range(10**6))
    batches = [
        ([((b // 2) % 9, next(serial), 0) for _ in range(20)], [(b % 9, next(serial), 0)])
        for b in range(n)
    ]
    query = lazily(tmp_path, "mnrt", {}, instances=3)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
    versions = live_versions(query)
    assert max(versions) == most, versions
    assert 1 in versions[versions.index(most) :], versions
    check_results(query, batches)


@pytest.mark.parametrize("layout", EACH_ROUTER)
def test_a_full_instance_grows_its_layout_though_nothing_moves(layout, tmp_path):
    """Growth goes by what is stored since the last change, or it would never end."""
    query = LocalQuery(
        tmp_path,
        two_way(None, 4),
        layout,
        choice=CHOICES[layout],
        settings=Settings(capacity=300, lazy=True),
    )
    batches = skewed_batches(8)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
    used = [record.joins[0].instances for record in query.records]
    assert used[0] < used[-1] <= 16
    assert sum(record.joins[0].moved.rows for record in query.records) == 0
    check_results(query, batches)


def test_flags_of_versions_do_not_clash():
    flags = [int(STORE), int(BACKUP), *(probe_flag(slot) for slot in range(3 * MOST_VERSIONS))]
    assert len(set(flags)) == len(flags)
    assert sum(flags) < 1 << 63
