"""A plan's reason is true: what it saw, what it promises, which keys it places, what it costs."""

from __future__ import annotations

import tempfile
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine.balancing.reasons import Cause, Cost
from joinengine.balancing.statistics import loads_of, skew
from joinengine.driver import relayout
from joinengine.driver.settings import Settings
from joinengine.layouts import LAYOUTS
from joinengine.layouts.biclique import Biclique, worked
from joinengine.layouts.choices import CandidateBased
from joinengine.layouts.key_based import KeyBased
from joinengine.model.keys import U_BITS, U_ONE, Side
from joinengine.state.operator_state import Move
from joinengine.state.wished import Relayout
from tests.harness import LocalQuery, two_way
from tests.laws.cases import (
    CHOICES,
    HOT,
    HOT_AMONG_OTHERS,
    PLANNED,
    SHAPED,
    SPLITTING,
    enough,
    relaxed,
    skewed_batches,
    streams,
)


@pytest.fixture
def told(monkeypatch):
    """Of each batch: (layouts before, history, layouts after, reason)."""
    found = []
    original = relayout.after_batch

    def after_batch(operator, state, history, wishes, **settings):
        after, reason = original(operator, state, history, wishes, **settings)
        found.append((state.layouts, history, after.layouts, reason))
        return after, reason

    monkeypatch.setattr(relayout, "after_batch", after_batch)
    return found


def feed(query, batches):
    """All batches, and one more that makes the last moves."""
    last = [(0, 10**6, 0)], [(0, 10**6 + 1, 0)]
    for number, (left, right) in enumerate([*batches, last]):
        query.run_tuples(number, left, right)


def paid(query):
    """Per batch with a reason, the last batch aside, how many tuples moved until the next one."""
    joins = [record.joins[0] for record in query.records]
    given_in = [number for number, join in enumerate(joins) if join.reason is not None]
    return {
        first: sum(join.moved.rows for join in joins[first + 1 : last + 1])
        for first, last in pairwise([*given_in, len(joins) - 1])
        if first < last
    }


def placed_anew(before, after):
    """The hashes whose placements differ."""
    hashes = before.table.placements.keys() | after.table.placements.keys()
    return {hash_ for hash_ in hashes if before.place(hash_) != after.place(hash_)}


def counted_cost(layouts, interval):
    """The tuples that the pending moves read, by the counts."""
    held = dict(zip(interval.hashes.tolist(), interval.held.T.tolist(), strict=True))
    nothing = (0.0, 0.0)
    return sum(
        held.get(pull.lower >> U_BITS, nothing)[pull.side] * (pull.upper - pull.lower) / U_ONE
        for pull in layouts.moves.pulls
    )


def balances(name, before, after, history):
    """(skew, or greatest where all are alike) that a planner sees and expects."""
    if name in PLANNED:
        gather = CHOICES[name].gather
        loads = [gather(one.base, one.table, history) for one in (before, after)]
        levels = [one.per_instance() for one in loads]
        if name == "auto":  # which judges tasks
            levels = [one.at_tasks(level) for one, level in zip(loads, levels, strict=True)]
        return [skew(level) for level in levels]
    if name in SHAPED:
        return None
    return [skew(loads_of(history)), None]


def means_of(layout, interval):
    """What a planner of shapes may see: the mean of what instances store, or of what they work."""
    n, found = layout.instances, [interval.state.sum() / layout.instances]
    if isinstance(layout, Biclique) and interval.work is not None:
        size, subgroups = len(layout.units(Side.LEFT)), len(layout.groups[0])
        found.append(worked(interval, n, subgroups)[size].mean)
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@relaxed
@example(batches=HOT, instances=4)
@example(batches=HOT_AMONG_OTHERS, instances=4)
@given(batches=streams(), instances=st.integers(1, 6))
def test_a_reason_says_what_its_plan_does(layout, told, acting, batches, instances):
    with tempfile.TemporaryDirectory() as folder:
        instances = enough(layout, instances)
        query = LocalQuery(folder, two_way(None, instances), layout, choice=CHOICES[layout])
        del told[:]
        feed(query, batches)
        assert [record.joins[0].reason for record in query.records] == [one[-1] for one in told]
        moved = paid(query)
    for number, (layouts, history, after, reason) in enumerate(told):
        old, new = layouts.newest.layout, after.newest.layout
        if reason is None:
            assert old.to_json() == new.to_json()
            continue
        stays = reason.cause in {Cause.LOADS, Cause.DECLINED}
        assert stays or old.to_json() != new.to_json()
        if reason.cause is Cause.DECLINED:
            assert old.to_json() == new.to_json()
            assert reason.after.greatest <= reason.before.greatest
            continue
        if isinstance(old, CandidateBased):
            assert (reason.cause is Cause.HEAD) == (old.degrees != new.degrees)
        assert len(reason.keys) + reason.more_keys == len(placed_anew(old, new))
        assert {one.hash_ for one in reason.keys} == placed_anew(old, new)
        for one in reason.keys:
            assert (one.before, one.after) == (old.place(one.hash_), new.place(one.hash_))
        assert sum(one.cost.rows for one in reason.keys) == pytest.approx(
            reason.cost.rows if isinstance(old, KeyBased) else 0.0
        )
        seen = balances(layout, old, new, history)
        if seen is None:
            means = means_of(old, history[-1])
            assert any(reason.before.mean == pytest.approx(mean) for mean in means)
            assert reason.after.greatest < reason.before.greatest
        else:
            assert reason.before.skew == pytest.approx(seen[0])
            assert (reason.after and reason.after.skew) == (seen[1] and pytest.approx(seen[1]))
        if isinstance(after.pending, Move):
            assert reason.cost.rows == pytest.approx(counted_cost(after, history[-1]))
        if layout not in SPLITTING and number in moved:
            assert reason.cost.rows == moved[number], reason


@pytest.mark.parametrize("layout", sorted(SPLITTING))
def test_the_cost_of_shares_is_about_what_moves(layout, tmp_path):
    """A share of a key is taken for that share of its tuples."""
    query = LocalQuery(tmp_path, two_way(None, 6), layout, choice=CHOICES[layout])
    feed(query, skewed_batches())
    moved = paid(query)
    costs = {n: query.records[n].joins[0].reason.cost.rows for n in moved}
    assert sum(moved.values()) > 200
    assert sum(costs.values()) == pytest.approx(sum(moved.values()), rel=0.05)


WISHES = {
    Cause.SWITCH: {3: [Relayout(CHOICES["hash"])]},
    Cause.RESIZE: {3: [Relayout(None, 9)]},
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("cause", WISHES)
@pytest.mark.parametrize("layout", ["mixed", "dlb-h", "dynamic", "bi", "w-choices", "shuffle"])
def test_wishes_have_reasons(layout, cause, lazy, tmp_path):
    query = LocalQuery(
        tmp_path,
        two_way(None, 6),
        layout,
        choice=CHOICES[layout],
        settings=Settings(schedule=WISHES[cause], lazy=lazy),
    )
    held = []
    for number, (left, right) in enumerate(skewed_batches(4)):
        query.run_tuples(number, left, right)
        held.append(query.records[-1].joins[0].state.held)
    reason, moved = query.records[2].joins[0].reason, query.records[3].joins[0].moved.rows
    assert reason.cause is cause
    assert not query.records[2].joins[0].replanned
    assert reason.before.greatest == max(held[2])
    assert reason.after is None
    if lazy and query.state.layouts.older:
        assert reason.cost == Cost()
        assert moved == 0
    elif cause is Cause.SWITCH and layout in PLANNED and not lazy:
        assert reason.keys, "the table is given up"
        assert {one.cause for one in reason.keys} == {Cause.SWITCH}
        assert reason.cost.rows == moved > 0
    elif not lazy and not (layout == "dynamic" and cause is Cause.RESIZE):
        assert reason.cost is None


def test_growth_and_restarts_have_reasons(tmp_path):
    query = LocalQuery(
        tmp_path, two_way(None, 4), "hash", choice=CHOICES["hash"], settings=Settings(capacity=80)
    )
    batches = skewed_batches(3)
    query.run_tuples(0, *batches[0])
    assert query.records[0].joins[0].reason.cause is Cause.CAPACITY
    assert query.records[0].joins[0].reason.before.greatest > 80
    query.settings = Settings()
    query.choice = CHOICES["dynamic"]
    query.restart()
    query.run_tuples(1, *batches[1])
    assert query.records[1].joins[0].reason.cause is Cause.RESTART
    query.run_tuples(2, [], batches[2][1][:1])
    reason = query.records[2].joins[0].reason
    assert reason is None or reason.cause is Cause.SHAPE, "a restart is told of once"
