"""`auto`: per key the cheapest mode, plans that pay, and none that flap."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing import dividing
from joinengine.balancing.costs import Costs
from joinengine.balancing.dividing import COOLED, Shape, choose_way, costs_of, ways_over
from joinengine.balancing.loads import gather_loads
from joinengine.balancing.reasons import Cause
from joinengine.balancing.statistics import Interval, skew
from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs, Timeless
from joinengine.layouts import Auto, Mnrt
from joinengine.layouts.auto import TURN_PART, Unasked, _listing
from joinengine.layouts.key_based import KeyBased
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Mode, Side
from joinengine.routing.table import RoutingTable
from tests.harness import LocalQuery, two_way
from tests.laws.cases import feed, matched, relaxed, tries
from tests.laws.intervals import counted


def planned(choice, layout, history):
    """The layout that is planned, its plan, and loads under it."""
    plan = choice.plan(layout, history[-choice.history_intervals :])
    after = layout if plan is None else plan.layout
    level = choice.gather(after.base, after.table, history[-1:]).per_instance()
    return after, plan, level


def placement(layout, key):
    return layout.table.place((key + 1) * 977, layout.base)


# The cheapest mode


@tries(150)
@given(seed=st.integers(0, 10**6), instances=st.sampled_from([2, 3, 5, 8, 16]))
def test_the_way_is_the_best_of_all(seed, instances):
    """Beside each mode over each number of homes, reckoned one by one."""
    rng = np.random.default_rng(seed)
    left, right = rng.integers(0, 10**5, 2) + 1.0
    interval = counted({0: (left, right, 10.0 ** rng.uniform(3, 9))}, instances)
    layout = Auto().start(instances)
    loads = gather_loads([interval], layout.table, layout.base)
    whole, level = float(loads.spread[0] + loads.fixed[0]), loads.per_instance()
    others, limit = float(level.sum()) - whole, 1.05 * float(level.mean())
    ours, _ = choose_way(loads, 0, others, limit, None)
    lefts, rights = loads.parts.whole[:, 0]
    carried, pairs = loads.parts.carried[:, 0].sum(), loads.parts.pairs[0]
    found = {}
    for rows, columns in product(range(instances + 1), range(1, instances + 1)):
        homes = max(rows, 1) * columns
        if homes > instances or (rows == 0 and columns == 1):
            continue
        total = pairs + lefts * columns + rights * rows
        if rows == 0:
            total = whole + (homes - 1) * carried
        top = max(total / homes, (others + total) / instances, limit)
        found[Shape(rows, columns)] = top, total
    lowest = min(top for top, _ in found.values())
    near = [total for top, total in found.values() if top <= lowest * (1 + dividing.CLOSE)]
    top, total = found[ours]
    assert top <= lowest * (1 + dividing.CLOSE)
    assert total <= min(near) * dividing.UNEVEN, "grids must be that much better"


def test_ways_are_all_there_once():
    for instances in (1, 2, 7, 64):
        ways = ways_over(instances)
        pairs = list(zip(ways.rows.tolist(), ways.columns.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
        assert max(max(r, 1) * c for r, c in pairs) == instances
        loads = gather_loads(
            [counted({0: (9.0, 4.0, 0.0)}, 4)], RoutingTable(), Auto().start(4).base
        )
        each, total = costs_of(loads, 0, ways)
        homes = np.maximum(ways.rows, 1) * ways.columns
        assert np.allclose(each * homes, total)
        assert total.min() == pytest.approx(loads.spread[0] + loads.fixed[0])


@pytest.mark.parametrize(
    ("left", "right", "pairs", "mode"),
    [
        (200_000, 3_000, 1e8, Mode.COPIED),
        (3_000, 200_000, 1e8, Mode.COPIED),
        (200_000, 200_000, 1e8, Mode.GRID),
    ],
)
@pytest.mark.parametrize("instances", [16, 64])
def test_a_hot_key_is_divided_the_way_that_suits_its_sides(left, right, pairs, mode, instances):
    interval = counted({0: (left, right, pairs)}, instances)
    layout, plan, level = planned(Auto(), Auto().start(instances), [interval])
    before = gather_loads([interval], RoutingTable(), layout.base).per_instance()
    found = placement(layout, 0)
    assert plan.reason.cause is Cause.HEAVY_KEY
    assert found.mode is mode
    if mode is Mode.COPIED:
        assert found.split_side is (Side.LEFT if left > right else Side.RIGHT)
    assert level.max() < 0.15 * before.max()
    assert skew(level) < 1.2
    _, _, theirs = planned(Mnrt(), Mnrt().start(instances), [interval])
    assert level.max() <= theirs.max() * 1.02, "no worse than the modes of the paper"


def test_one_silent_side_is_never_a_reason_for_copies():
    interval = counted({0: (100_000, 0, 0)}, 8)
    layout, _, level = planned(Auto(), Auto().start(8), [interval])
    found, loads = placement(layout, 0), gather_loads([interval], layout.table, layout.base)
    assert len(found.homes) > 1
    assert level.sum() == pytest.approx(loads.spread.sum() + loads.fixed.sum() + loads.rest.sum())


def test_all_rows_of_one_key():
    interval = counted({0: (50_000, 50_000, 1e9)}, 8, keys=1)
    layout, _, level = planned(Auto(), Auto().start(8), [interval])
    assert len(placement(layout, 0).homes) == 8
    assert skew(level) < 1.05


def test_a_key_that_makes_pairs_goes_before_one_that_brings_tuples():
    """The first has ten times the tuples, the second a hundred times the work."""
    heavy = {0: (20_000, 20, 1e4), 1: (2_000, 2_000, 4e7)}
    layout, plan, _ = planned(Auto(), Auto().start(8), [counted(heavy, 8)])
    assert len(placement(layout, 1).homes) > len(placement(layout, 0).homes)
    assert plan.reason.keys[0].hash_ == 2 * 977


def test_a_hot_key_among_many_is_seen():
    interval = counted({7: (30_000, 3_000, 3e7)}, 16, tuples=1.0, pairs=1.0, keys=200_000)
    layout, _, level = planned(Auto(), Auto().start(16), [interval])
    assert len(placement(layout, 7).homes) > 1
    assert skew(level) < 1.1


def test_keys_without_weight_stay_hashed():
    interval = counted({}, 8)
    layout, plan, _ = planned(Auto(), Auto().start(8), [interval])
    assert plan is None
    assert not layout.table.placements


def test_where_instances_share_tasks_a_task_does_not_work_more():
    """Two tasks with four instances each: copies to all eight would cost more than they level."""
    interval = counted({0: (200_000, 200_000, 1e6)}, 8, hosts=2)
    start = Auto().start(8)
    loads = gather_loads([interval], start.table, start.base)
    _, _, level = planned(Auto(), start, [interval])
    tasks = [np.bincount(loads.tasks, one).max() for one in (loads.per_instance(), level)]
    assert tasks[1] <= tasks[0]


# When a plan is made


def test_what_does_not_pay_back_is_declined_and_told():
    """A key that has much state and a little too much work."""
    interval = counted({0: (4_000, 100, 1e5)}, 8, state=500.0)
    choice = Auto(intervals=1)
    layout, plan, _ = planned(choice, choice.start(8), [interval])
    assert plan.reason.cause is Cause.DECLINED
    assert not plan.moves and not layout.table.placements
    assert plan.reason.cost.rows > 0
    assert plan.reason.after.greatest < plan.reason.before.greatest
    assert "cost more than it saves" in str(plan.reason)
    cheap = replace(choice, payback=0.0)
    _, plan, _ = planned(cheap, cheap.start(8), [interval])
    assert plan.reason.cause.is_replan and plan.moves


def test_two_keys_that_turn_hot_by_turns_do_not_flap():
    choice, layout, history, moved = Auto(), Auto().start(8), [], []
    hot = (20_000, 2_000, 2e7)
    for number in range(16):
        history.append(counted({number % 2: hot}, 8))
        layout, plan, _ = planned(choice, layout, history)
        moved.append(0 if plan is None or not plan.moves else plan.reason.cost.rows)
    assert sum(1 for one in moved[4:] if one) == 0, moved
    assert all(len(placement(layout, key).homes) > 1 for key in (0, 1))


def test_a_key_is_gathered_once_it_has_cooled_by_half_and_not_before():
    choice = Auto(intervals=2)
    hot = (20_000, 2_000, 2e7)
    layout, _, _ = planned(choice, choice.start(8), [counted({0: hot}, 8)])
    assert len(placement(layout, 0).homes) > 1
    cold = counted({}, 8)
    for _ in range(3):
        layout, plan, _ = planned(choice, layout, [cold, cold])
    assert len(placement(layout, 0).homes) == 1
    layout, _, _ = planned(choice, choice.start(8), [counted({0: hot}, 8)])
    loads = gather_loads([cold], RoutingTable(), layout.base)
    limit = choice.limit(loads.per_instance())
    part = (COOLED + 1) / 2 * limit / 2  # of one key, below the limit and above half of it
    warm = counted({0: (part, part / 10, 0)}, 8)
    after, plan, _ = planned(choice, layout, [warm, warm])
    assert plan is None or len(placement(after, 0).homes) > 1


def test_a_slow_drift_is_followed():
    """A key that gains 10 % an interval is divided before it has doubled what is allowed."""
    choice, layout, history = Auto(), Auto().start(8), []
    for number in range(30):
        size = 300.0 * 1.1**number
        history.append(counted({0: (size, size / 10, size**2 / 10)}, 8))
        layout, _, level = planned(choice, layout, history)
        assert skew(level) < 1.35, number


def test_a_large_change_is_spread_over_intervals():
    """Many keys that have to move, and more state than may move at once."""
    rng = np.random.default_rng(2)
    heavy = {key: (rng.integers(400, 900), 100, 1e5) for key in range(0, 400, 8)}
    interval = counted(heavy, 8, state=3.0)
    every = Auto(most_moved=1.0, payback=0.0)
    _, at_once, _ = planned(every, every.start(8), [interval])
    state = float(interval.state.sum())
    part = at_once.reason.cost.rows / state / 3
    choice = Auto(most_moved=part, payback=0.0, min_gain=0.0)
    layout, costs = choice.start(8), []
    for _ in range(8):
        layout, plan, level = planned(choice, layout, [interval])
        if plan is not None and plan.moves:
            costs.append(plan.reason.cost.rows)
    assert len(costs) > 1
    assert costs[0] < at_once.reason.cost.rows
    assert skew(level) < 1.1


def test_a_batch_so_small_that_tasks_work_anyway_is_not_planned():
    """What a task works whatever comes counts as its load; nobody would see the gain."""
    layout, interval = Auto().start(4), counted({0: (4000.0, 4000.0, 1e6)}, 4)
    work_s = interval.work.seconds()
    assert planned(Auto(), layout, [interval] * 4)[1] is not None
    for turn_s, due in ((work_s.mean() / 10, True), (work_s.max() * 100, False)):
        small = interval._replace(work=interval.work._replace(turn_s=float(turn_s)))
        assert (planned(Auto(), layout, [small] * 4)[1] is not None) is due
        again = Interval.from_bytes(small.to_bytes())
        assert again.work.turn_s == turn_s


@pytest.mark.parametrize(("turns", "due"), [(0.9, True), (1.1, False)])
def test_a_first_key_is_listed_if_that_saves_half_a_turn(turns, due, monkeypatch):
    """Tasks count listed keys from then on; where some are listed, it costs no more.

    `turns`: what a plan could save, of that.
    """
    monkeypatch.setattr("joinengine.layouts.auto.TURN_PART", TURN_PART)
    layout, interval = Auto().start(4), counted({0: (4000.0, 4000.0, 1e6)}, 4)
    work_s = interval.work.seconds()
    turn_s = turns * float(work_s.max() - work_s.mean()) / TURN_PART
    small = interval._replace(work=interval.work._replace(turn_s=turn_s))
    loads = Auto().gather(layout.base, layout.table, [small] * 4)
    assert Auto()._is_due(loads, loads.per_instance()) is due
    assert (planned(Auto(), layout, [small] * 4)[1] is not None) is due
    listing = planned(Auto(), layout, [interval] * 4)[0]
    cold = Auto().gather(layout.base, layout.table, [small])
    assert _listing(layout.table, cold) > _listing(listing.table, cold) == 0


def test_counts_of_the_version_before_have_no_turns():
    interval = counted({0: (4000.0, 4000.0, 1e6)}, 4)
    with np.load(io.BytesIO(interval.to_bytes())) as arrays:
        earlier = {name: arrays[name] for name in arrays if not name.endswith("turn_s")}
    buffer = io.BytesIO()
    np.savez(buffer, **earlier)
    work = Interval.from_bytes(buffer.getvalue()).work
    assert work.turn_s == 0 and work.hosts == interval.work.hosts


# In a query


def test_a_first_batch_that_measures_nothing_is_no_obstacle(tmp_path):
    """One without tuples, and tasks that have worked no time: planners go on by known prices."""
    jobs = InlineJobs(world=Timeless())
    spec = two_way(None, 4, where="left.lv = right.rv")
    query = LocalQuery(tmp_path, spec, "auto", choice=Auto(), jobs=jobs)
    left, right = ([(7, i, 0) for i in range(rows)] for rows in (6000, 300))
    query.run_tuples(0, [], [])
    query.run_tuples(1, left, right[:200])
    assert query.state.costs.scales == Costs().scales
    assert len(query.layout.table.placements) == 1
    query.run_tuples(2, [], right[200:])
    (placed,) = query.layout.table.placements.values()
    assert len(placed.homes) > 1
    assert query.output().total() == 300


def test_a_divided_key_that_stays_is_no_obstacle_to_a_plan(tmp_path, monkeypatch):
    """It is divided while it is hot; then others are, by few tuples, which move while it stays."""
    monkeypatch.undo()  # small batches are small
    plan, settings = two_way(None, 4, how="left_semi"), Settings(lazy=True)
    query = LocalQuery(tmp_path, plan, "auto", choice=Auto(), settings=settings)
    query.check_state = lambda: None  # of so many tuples of a key two have the same word
    query.run_tuples(0, *[[(7, i, 0) for i in range(5000)]] * 2)
    (divided,) = query.layout.table.placements.values()
    assert len(divided.homes) > 1
    query.run_tuples(1, *[[(i % 3, i, 1000) for i in range(300)]] * 2)
    query.finish(2)
    assert query.output().total() == 5300


@relaxed
@given(seed=st.integers(0, 10**6), instances=st.sampled_from([4, 6, 9]))
def test_grids_join_exactly(seed, instances, tmp_path_factory):
    """Both sides of a key are hot, then another key is; results are those of the nested loop."""
    rng = np.random.default_rng(seed)
    serial = iter(range(10**6))
    batches = []
    for batch in range(6):
        hot = batch // 3
        sides = [
            [
                (hot if rng.random() < 0.8 else int(rng.integers(30)), next(serial), batch)
                for _ in range(60)
            ]
            for _ in PAIR
        ]
        batches.append(tuple(sides))
    choice = Auto(imbalance=0.0, min_gain=0.0, intervals=1, payback=0.0, most_moved=1.0)
    query = LocalQuery(
        tmp_path_factory.mktemp("grid"), two_way(None, instances), "auto", choice=choice
    )
    feed(query, batches)
    everything = [[row for one in batches for row in one[side]] for side in PAIR]
    expected = matched(*everything, None)
    assert expected
    assert query.output() == expected


def test_a_checkpoint_keeps_the_layout_that_it_was_begun_with(tmp_path):
    batches = [([(i % 5, i, 0) for i in range(20)], [(i % 5, 100 + i, 0) for i in range(20)])]
    query = LocalQuery(tmp_path, two_way(None, 4), "mnrt", choice=Mnrt())
    feed(query, batches)
    again = LocalQuery(tmp_path, two_way(None, 4), "auto", choice=Unasked())
    assert again.state.layouts.newest.choice.name == "mnrt"
    asked = LocalQuery(tmp_path, two_way(None, 4), "auto", choice=Auto())
    assert asked.state.layouts.newest.choice.name == "auto"
    assert isinstance(asked.layout, KeyBased)


def test_a_checkpoint_keeps_a_greater_number_of_instances_unless_a_start_gives_one(tmp_path):
    batches = [([(i % 5, i, 0) for i in range(20)], [(i % 5, 100 + i, 0) for i in range(20)])]
    query = LocalQuery(tmp_path, two_way(None, 4), "hash")
    feed(query, batches)
    fewer, more = (replace(two_way(None, n), unsized=frozenset({0})) for n in (2, 8))
    again = LocalQuery(tmp_path, fewer, "hash")
    assert again.layout.instances == 4
    again.run_tuples(1, *batches[0])
    assert again.layout.instances == 4
    with pytest.raises(InvalidRequest, match="layout bi-k needs from 6"):
        LocalQuery(tmp_path, fewer, "bi-3")
    sized = LocalQuery(tmp_path, two_way(None, 2), "hash")
    assert sized.layout.instances == 2
    sized.run_tuples(2, *batches[0])
    grown = LocalQuery(tmp_path, more, "hash")
    assert grown.layout.instances == 8  # as many as there are cores now
    grown.run_tuples(3, *batches[0])
    assert LocalQuery(tmp_path, fewer, "hash").layout.instances == 8
    assert LocalQuery(tmp_path / "new", fewer, "hash").layout.instances == 2


def test_a_layout_that_a_checkpoint_keeps_needs_its_instances(tmp_path):
    """A start that names a number and no layout."""
    batches = [([(1, 1, 0)], [(1, 2, 0)])]
    feed(LocalQuery(tmp_path, two_way(None, 6), "bi-3"), batches)
    with pytest.raises(InvalidRequest, match=r"layout bi-k needs from 6 .* found 2"):
        LocalQuery(tmp_path, two_way(None, 2), "auto", choice=Unasked())
