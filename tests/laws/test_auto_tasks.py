"""`auto` where tasks have many instances, and keys are many: it moves what counts for a batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing.hosting import at_instances, over_tasks
from joinengine.balancing.loads import gather_loads
from joinengine.balancing.reasons import Cause
from joinengine.layouts import Auto
from joinengine.layouts import auto as rules
from joinengine.model.keys import U_ONE, Fragment, Mode, Placement, Side
from joinengine.routing.moves import Moves, Pull
from joinengine.routing.table import RoutingTable
from tests.laws.cases import tries
from tests.laws.intervals import counted

TASK_PART = rules.TASK_PART
#: A key that a task cannot bear.
HOT = (40_000, 40_000, 1e8)
#: Whatever its plans cost.
EVERY = Auto(payback=0.0, most_moved=1.0)


@pytest.fixture(autouse=True)
def judged_by_tasks(monkeypatch):
    """As in a query; other laws have tasks that work next to nothing."""
    monkeypatch.setattr(rules, "TASK_PART", TASK_PART)


def plan_of(interval, instances, choice=None, repeated=1):
    choice = choice or Auto()
    return choice.plan(choice.start(instances), [interval] * repeated)


@tries(60)
@given(
    seed=st.integers(0, 10**6),
    part=st.sampled_from([0.0, 0.01, 0.5, 3.0]),
    hosts=st.sampled_from([0, 2]),
)
def test_loads_without_light_keys_are_the_same_at_each_instance(seed, part, hosts):
    rng = np.random.default_rng(seed)
    heavy = {key: (*rng.integers(1, 900, 2), 10.0 ** rng.uniform(0, 6)) for key in range(6)}
    interval = counted(heavy, 4, keys=300, hosts=hosts)
    hash_ = int(interval.hashes[rng.integers(len(interval.hashes))])
    split = Placement(Mode.SPLIT, (Fragment(1, 0, 1 << 20), Fragment(2, 1 << 20, U_ONE)))
    table = RoutingTable({hash_: split})
    loads = gather_loads([interval], table, Auto().start(4).base)
    least = part * float(loads.per_instance().mean())
    some = loads.heavy(least, table)
    assert np.allclose(some.per_instance(), loads.per_instance())
    assert np.allclose(some.as_planned(), loads.as_planned())
    assert hash_ in some.hashes.tolist()
    kept = np.isin(loads.hashes, some.hashes)
    assert ((loads.spread + loads.fixed)[~kept] < least).all()
    assert np.allclose(np.bincount(some.keys, some.shares, len(some.hashes)), 1.0)


def test_keys_without_weight_stay_where_they_are_beside_a_hot_one(monkeypatch):
    """To level what a hot key leaves over takes hundreds of moves that nobody would see."""
    light = {1 + 64 * number: (12, 12, 1) for number in range(1, 300)}  # of one instance
    heavy = {0: (20_000, 20_000, 4e6), **light}
    interval = counted(heavy, 64, tuples=2.0, pairs=1.0, keys=20_000)
    plan = plan_of(interval, 64)
    assert plan.reason.cause is Cause.HEAVY_KEY
    assert len(plan.layout.table.placements) <= 3
    monkeypatch.setattr(rules, "LIGHT", 0.0)
    assert len(plan_of(interval, 64).layout.table.placements) > 100


@pytest.mark.parametrize(("instances", "most"), [(8, 8), (64, 24)])
def test_a_hot_key_has_as_many_homes_as_a_batch_gains_by(instances, most):
    """Of two tasks with 32 instances each, which work one after another, a few suffice."""
    interval = counted({0: HOT}, instances, hosts=2)
    plan = plan_of(interval, instances)
    (placed,) = plan.layout.table.placements.values()
    assert 2 <= len(placed.homes) <= most
    loads = gather_loads([interval], plan.layout.table, plan.layout.base)
    tasks = np.bincount(loads.tasks, loads.per_instance())
    assert tasks.max() <= 1.15 * tasks.mean()


@pytest.mark.parametrize(("hosts", "readers"), [(0, 3), (2, 1), (3, 3), (4, 2)])
def test_what_moves_is_read_by_tasks_and_not_by_instances(hosts, readers):
    loads = gather_loads([counted({}, 8, hosts=hosts)], RoutingTable(), Auto().start(8).base)
    pulls = tuple(Pull(Side.LEFT, 1, target, 0, 9) for target in (0, 2, 4, 4))
    assert rules._readers(loads, Moves(pulls)) == readers
    assert rules._readers(loads, Moves()) == 1


def test_intervals_that_agree_save_no_more_than_one():
    """The same loads, seen once for four intervals' life, or four times for one interval's."""
    interval = counted({0: (4_000, 100, 1e5)}, 8, state=60.0)
    lives = []
    for payback in np.geomspace(0.1, 100, 40):
        choice = Auto(payback=float(payback))
        lives.append([bool(plan_of(interval, 8, choice, n).moves) for n in (1, 4)])
    once, often = np.array(lives).sum(axis=0)
    # Seen four times it is expected to last four times as long.
    ratio = (100 / 0.1) ** ((often - once) / 39)
    assert 0 < once < often < 40
    assert ratio == pytest.approx(4, rel=0.3)


def test_intervals_without_tuples_are_none():
    """Quiet batches neither lengthen what is expected nor make what was saved smaller."""
    interval = counted({0: (4_000, 100, 1e5)}, 8, state=60.0)
    quiet = counted({}, 8, tuples=0.0, pairs=0.0)
    quiet = quiet._replace(held=interval.held, state=interval.state)
    histories = [interval] * 2, [interval, quiet, quiet, quiet, interval]
    for payback in np.geomspace(0.1, 100, 40):
        choice = Auto(payback=float(payback))
        plans = [choice.plan(choice.start(8), history) for history in histories]
        assert bool(plans[0].moves) is bool(plans[1].moves)


def told_in_part(interval, instances, part):
    """The interval, of keys that have one in `part` of an instance's tuples of a side or pairs."""
    homes, keys = (interval.hashes % instances).astype(int), len(interval.hashes)
    told = np.zeros(keys, bool)
    for values in (*interval.arrived, interval.work.candidates[0]):
        told |= values * part > np.bincount(homes, values, instances)[homes]
    work, left = interval.work, interval.arrived.sum(axis=0)
    each = [left, left, left, work.candidates.sum(axis=0), np.zeros(keys)]
    others = np.array([np.bincount(homes[~told], one[~told], instances) for one in each])
    work = work._replace(
        **{name: getattr(work, name)[:, told] for name in ("probed", "candidates", "results")},
        others=others,
    )
    columns = {name: getattr(interval, name)[:, told] for name in ("arrived", "held")}
    return interval._replace(hashes=interval.hashes[told], work=work, **columns)


@pytest.mark.parametrize("instances", [4, 16])
@pytest.mark.parametrize(("zipf", "crowd"), [(0.0, 0), (0.0, 25), (0.8, 0), (1.2, 0)])
def test_a_plan_needs_no_light_keys(zipf, crowd, instances):
    """What a report of `auto` leaves out is too light to be moved.

    `crowd`: so many keys of one instance have each a fiftieth of what an instance has as a mean.
    """
    rng, keys = np.random.default_rng(3), 20_000
    parts = rng.permutation(np.arange(1, keys + 1) ** -zipf)
    parts /= parts.sum()
    parts[np.flatnonzero((np.arange(1, keys + 1) * 977) % instances == 0)[:crowd]] += (
        0.02 / instances
    )
    tuples = rng.poisson(2e6 * parts, (2, keys)).T.tolist()
    heavy = {key: (left, right, left + right) for key, (left, right) in enumerate(tuples)}
    if not crowd:
        heavy = {key: (left, right, 0.3 * left * right) for key, (left, right, _) in heavy.items()}
    interval = counted(heavy, instances, keys=keys)
    layout, choice = Auto().start(instances), Auto()
    some = told_in_part(interval, instances, choice.heavy_part)
    assert len(some.hashes) < len(interval.hashes) / 2
    plans = [choice.plan(layout, [one]) for one in (interval, some)]
    assert [plan is None for plan in plans] == [not (zipf or crowd)] * 2
    greatest = [
        choice.gather(layout.base, (plan.layout if plan else layout).table, [interval])
        .per_instance()
        .max()
        for plan in plans
    ]
    assert greatest[1] <= 1.02 * greatest[0]


@tries(60)
@given(
    seed=st.integers(0, 10**6),
    hosts=st.sampled_from([2, 3, 4]),
    each=st.sampled_from([2, 8, 16]),
)
def test_tasks_end_as_level_as_instances_of_their_own(seed, hosts, each):
    """However many instances a task hosts, it is relieved as if it was one."""
    rng = np.random.default_rng(seed)
    heavy = {
        int(key): (*rng.integers(1, 40_000, 2), 10.0 ** rng.uniform(3, 8))
        for key in rng.choice(300, 4, replace=False)
    }
    greatest = list[float]()
    for instances, told in ((hosts, 0), (hosts * each, hosts)):
        interval, choice = counted(heavy, instances, hosts=told), EVERY
        layout = choice.start(instances)
        plan = choice.plan(layout, [interval])
        table = (plan.layout if plan else layout).table
        loads = choice.gather(layout.base, table, [interval])
        tasks = np.bincount(np.arange(instances) % hosts, loads.per_instance())
        greatest.append(float(tasks.max()))
    assert greatest[1] <= greatest[0] * rules.EVENNESS * 1.05


@pytest.mark.parametrize(("pairs", "wide"), [(1e9, True), (3e5, False)])
def test_homes_beyond_the_tasks_must_cost_next_to_nothing(pairs, wide):
    """A key whose pairs dominate lies at many instances; one whose copies do, once at a task."""
    interval = counted({0: (40_000, 20_000, pairs)}, 16, tuples=1.0, pairs=1.0, hosts=2)
    plan = plan_of(interval, 16, EVERY)
    (placed,) = plan.layout.table.placements.values()
    assert (len(placed.homes) > 2) is wide
    assert {home % 2 for home in placed.homes} == {0, 1}
    assert plan.reason.before.places == 2, "the decision saw tasks"


def test_a_key_keeps_its_home_at_a_task():
    """So that a plan over tasks moves no more than it must."""
    interval = counted({0: (40_000, 20_000, 3e5)}, 16, tuples=1.0, pairs=1.0, hosts=2)
    base_home = int(interval.hashes[0]) % 16
    (placed,) = plan_of(interval, 16, EVERY).layout.table.placements.values()
    assert base_home in placed.homes


@tries(60)
@given(seed=st.integers(0, 10**6), hosts=st.sampled_from([2, 3]))
def test_loads_of_tasks_are_those_of_their_instances(seed, hosts):
    rng = np.random.default_rng(seed)
    heavy = {key: (*rng.integers(1, 900, 2), 10.0 ** rng.uniform(0, 6)) for key in range(6)}
    interval = counted(heavy, 6, keys=300, hosts=hosts)
    cuts = np.sort(rng.integers(1, U_ONE, 3)).tolist()
    homes = rng.permutation(6)[:4].tolist()
    fragments = [Fragment(*one) for one in zip(homes, [0, *cuts], [*cuts, U_ONE], strict=True)]
    split = Placement(Mode.SPLIT, tuple(fragments))
    table = RoutingTable({int(interval.hashes[0]): split})
    loads = gather_loads([interval], table, Auto().start(6).base)
    tasks = over_tasks(loads)
    expected = np.bincount(np.arange(6) % hosts, loads.as_planned())
    assert np.allclose(tasks.as_planned(), expected)
    assert np.allclose(np.bincount(tasks.keys, tasks.shares), 1.0)
    assert at_instances({0: dict(_shares_of(tasks, 0))}, loads) == {}, "nothing has changed"


def _shares_of(loads, key):
    ours = loads.keys == key
    return zip(loads.instances[ours].tolist(), loads.shares[ours].tolist(), strict=True)


def test_a_key_that_comes_to_a_task_takes_its_emptiest_instance():
    interval = counted({0: (900, 900, 1e6), 1: (900, 900, 1e6)}, 8, hosts=2)
    loads = gather_loads([interval], RoutingTable(), Auto().start(8).base)
    away = {key: 1 - int(loads.homes[key]) % 2 for key in (0, 1)}
    found = at_instances({key: {away[key]: 1.0} for key in (0, 1)}, loads)
    level = loads.as_planned()
    for key in (0, 1):
        (home,) = found[key]
        at_task = [one for one in range(8) if one % 2 == away[key]]
        assert home == min(at_task, key=lambda one: level[one])
        level[home] += loads.spread[key] + loads.fixed[key]


def test_homes_at_all_instances_that_do_not_pay_give_way_to_one_at_each_task():
    """What levels instances moves more; a key that is hot for a short time gets the fewer homes."""
    interval = counted({0: (40_000, 20_000, 1e9)}, 16, tuples=1.0, pairs=1.0, hosts=2, state=60.0)
    homes = list[int]()
    for payback in np.geomspace(1, 1e5, 40):
        plan = plan_of(interval, 16, Auto(payback=float(payback), most_moved=1.0))
        placed = plan.layout.table.placements.values()
        homes.append(sum(len(one.homes) for one in placed))
    assert homes == sorted(homes, reverse=True)
    assert [*dict.fromkeys(homes)][-2:] == [2, 0]
    assert homes[0] > 2
