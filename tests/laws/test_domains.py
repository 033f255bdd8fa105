"""Instances that fail together never hold two copies of a key, whatever is planned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing.reasons import Cause
from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import Ftlb
from joinengine.layouts.key_based import KeyBased
from joinengine.model.keys import Placement
from joinengine.routing.base_functions import Backed, Modulo, following
from joinengine.routing.table import RoutingTable
from joinengine.state.wished import Relayout
from joinengine.world.memory import MemoryWorld
from tests.harness import LocalQuery, two_way
from tests.laws.cases import check_results, relaxed, skewed_batches
from tests.laws.intervals import counted
from tests.laws.losing import NERVOUS


def copies_of(layout):
    """The instances of the copies of each base home, and of each key of the table."""
    placed = [placement.holders for placement in layout.table.placements.values()]
    return [*layout.base.roles.tolist(), *placed]


@pytest.mark.parametrize("backups", [1, 2])
@relaxed
@given(
    st.integers(4, 9),
    st.integers(3, 4),
    st.dictionaries(
        st.integers(1, 5),
        st.lists(st.builds(Relayout, st.none(), st.integers(4, 9)), min_size=1, max_size=1),
        max_size=2,
    ),
    st.sampled_from([(), ({"name": "gold", "top": 3, "backups": 2},)]),
    st.integers(0, 99),
)
def test_no_two_copies_are_in_one_domain(backups, instances, domains, wishes, levels, seed):
    choice = Ftlb(backups=backups, domains=domains, levels=levels, **NERVOUS)
    query = LocalQuery(
        "/q",
        two_way(None, instances),
        "ftlb",
        choice=choice,
        settings=Settings(schedule=wishes),
        jobs=InlineJobs(world=MemoryWorld()),
    )
    batches = skewed_batches(7, seed=seed)
    for number, sides in enumerate(batches):
        query.run_tuples(number, *sides)
        for holders in copies_of(query.layout):
            assert len({one % domains for one in holders}) == len(holders)
    check_results(query, batches)


def test_keys_do_leave_their_base_homes():
    choice = Ftlb(domains=3, **NERVOUS)
    jobs = InlineJobs(world=MemoryWorld())
    query = LocalQuery("/q", two_way(None, 7), "ftlb", choice=choice, jobs=jobs)
    for number, sides in enumerate(skewed_batches(7)):
        query.run_tuples(number, *sides)
    moved = query.layout.table.placements
    assert moved
    homes = {placement.homes[0] for placement in moved.values()}
    assert len(homes) > 1


def test_without_domains_keys_go_where_they_went():
    for instances in range(2, 9):
        for backups in range(1, instances):
            plain = Backed.over(Modulo(instances), backups)
            assert plain == Backed.over(Modulo(instances), backups, instances)
            wrapped = (np.arange(instances)[:, None] + np.arange(backups + 1)) % instances
            assert np.array_equal(plain.roles, wrapped)


def test_with_more_domains_than_instances_each_instance_fails_alone():
    """A cluster may have more executors than a join has instances, also after a resize."""
    plain, wide = Ftlb().start(6), Ftlb(domains=10).start(6)
    assert plain == wide
    assert wide.copied.is_apart(10)
    assert Ftlb(domains=10).resized(wide, 4) == Ftlb().start(4)


def test_all_instances_follow_each_other():
    for domains in range(1, 7):
        found = list(following(4, 6, domains))
        assert sorted(found) == list(range(6))
        assert found[0] == 4
        assert len({one % domains for one in found[:domains]}) == domains


def test_the_next_plan_parts_copies_that_other_domains_hold_together():
    """As after a restart with another number of executors, which fail each alone."""
    interval = counted({number: (9_000, 1_000, 0) for number in range(0, 96, 12)}, 12)
    before, after = Ftlb(domains=2), Ftlb(domains=3)
    layout = before.plan(before.start(12), [interval._replace(work=None)]).layout
    assert layout.copied.is_apart(2)
    assert not layout.copied.is_apart(3)
    plan = after.plan(layout, [interval._replace(work=None)])
    assert plan.layout.copied.is_apart(3)
    keys = layout.table.placements
    stay = [hash_ for hash_ in keys if len({holder % 3 for holder in keys[hash_].holders}) == 2]
    assert stay
    placed = plan.layout.table.placements
    if plan.reason.cause is Cause.LEVELS:
        assert all(placed[hash_] == keys[hash_] for hash_ in stay)


def test_keys_that_are_not_apart_are_seen():
    base = Backed.over(Modulo(6), 1, 3)
    assert KeyBased(base).copied.is_apart(3)
    assert not KeyBased(Backed.over(Modulo(7), 1)).copied.is_apart(3)  # 6 and 0
    table = RoutingTable({5: Placement.whole(1, (4,)), 6: Placement.whole(1, (2,))})
    assert not KeyBased(base, table).copied.is_apart(3)
    assert KeyBased(base, table).copied.is_apart(4)
