"""Layouts that move no keys: matrix and biclique, and those that fill candidates."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from joinengine.driver import relayout
from joinengine.driver.layout_fit import Naming, fitted
from joinengine.driver.settings import Settings
from joinengine.layouts import LAYOUTS, Auto, BiK, Chosen
from joinengine.layouts.auto import Unasked
from joinengine.layouts.biclique import Biclique, sized
from joinengine.layouts.matrix import Grid
from joinengine.model.conditions import equi, theta
from joinengine.model.keys import Side
from joinengine.model.windows import within
from joinengine.state.wished import Relayout
from tests.harness import LocalQuery, two_way
from tests.laws.cases import skewed_batches
from tests.laws.intervals import counted, traffic
from tests.unit.states import manifest_of


def test_without_keys_the_kind_follows_from_the_instances_and_the_traffic():
    choice = Auto(keyless=True)
    assert isinstance(choice.start(8), Grid)
    assert isinstance(choice.start(6), Biclique), "a matrix would use four of six"
    start = choice.start(48)
    plan = choice.plan(start, [traffic(1e5, 1e5, 1e4, 48, start)])
    assert isinstance(plan.layout, Grid), "tuples cost more than pairs"
    assert plan.rehome
    assert choice.plan(start, [traffic(1e3, 1e3, 1e6, 48, start)]) is None
    back = choice.restore(plan.layout.to_json())
    assert back.to_json() == plan.layout.to_json()
    assert choice.restore(start.to_json()) == start


def test_instances_that_a_matrix_does_not_use_come_back_with_a_biclique():
    """A matrix of four of seven instances, once pairs cost more than tuples."""
    choice = Auto(keyless=True)
    grid = choice.resized(Grid(np.arange(4, dtype=np.uint16).reshape(2, 2)), 7)
    assert grid.instances == 4
    history = [traffic(1e3, 1e3, 1e8, 4, grid)]
    assert choice.plan(grid, history, 4) is None
    assert choice.plan(grid, [traffic(1e5, 1e5, 1e4, 4, grid)], 7) is None, "tuples cost more"
    query = two_way(None, 7, on=theta("left.lv < right.rv"))
    (state,) = manifest_of(query, choice).operators
    layouts = replace(state.layouts, newest=Chosen(choice, grid, 7))
    (operator,), state = query.operators, replace(state, layouts=layouts)
    state, _ = relayout.after_batch(operator, state, history, [], capacity=None, lazy=False)
    assert state.layouts.newest.layout.instances == 7


def test_a_join_without_keys_makes_it_keyless():
    near = theta("left.lv < right.rv")
    (by_keys,) = two_way(None, 4).operators
    (any_pair,) = two_way(within("lts", "rts", upper="5s"), 4, on=near).operators
    for choice in (Auto(), Unasked(), Auto(keyless=True)):
        assert not fitted(choice, by_keys, 1, Naming()).keyless
        assert fitted(choice, any_pair, 1, Naming()).keyless
        assert type(fitted(choice, any_pair, 1, Naming())) is type(choice)
    assert isinstance(by_keys.condition, type(equi("a", "b")))


@pytest.mark.parametrize("sizes", [(6, 1, 5), (8, 1, 2), (2, 1), (1, 6, 3)])
def test_a_join_without_keys_runs_on_any_number_of_instances(sizes, tmp_path):
    """Six instances are a biclique; of one there is none."""
    first, *later = sizes
    near = theta("left.lv % 5 = right.rv % 5")
    query = LocalQuery(
        tmp_path,
        two_way(None, first, on=near),
        "auto",
        settings=Settings(schedule={n: [Relayout(instances=m)] for n, m in enumerate(later, 1)}),
    )
    batches = skewed_batches(len(sizes) + 1)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
    assert sizes[-1] / 2 < query.layout.instances <= sizes[-1], "a matrix has powers of two"
    lefts, rights = (Counter(row[1] % 5 for both in batches for row in both[n]) for n in (0, 1))
    assert query.output().total() == sum(n * rights[rest] for rest, n in lefts.items())


def test_candidates_are_filled_by_what_instances_work():
    """An instance with the pairs of a hot key begins the next batch as full as that makes it."""
    choice, history = LAYOUTS["pkg"](), [counted({3: (50.0, 50.0, 400 * 500.0)}, 8)]
    assert choice.plan(choice.start(8), [history[0]._replace(work=None)]).layout.loads == (0.0,) * 8
    loads = np.array(choice.plan(choice.start(8), history).layout.loads)
    home = 4 * 977 % 8
    assert loads[home] > 0
    assert loads.argmax() == home
    spent = history[0].work.seconds()
    times = history[0].stored.sum() / spent.sum()
    assert np.allclose(loads, (spent - spent.min()) * times)


@pytest.mark.parametrize("layout", ["w-choices", "d-choices"])
def test_the_head_is_of_keys_that_make_work(layout):
    """A key with as many tuples as others, and half of all pairs, gets more candidates."""
    choice, interval = LAYOUTS[layout](), counted({3: (50.0, 50.0, 400 * 500.0)}, 8)
    (degree,) = choice.plan(choice.start(8), [interval]).layout.degrees
    assert degree.hash_ == 4 * 977
    assert not choice.plan(choice.start(8), [interval._replace(work=None)]).layout.degrees


def test_a_side_with_few_tuples_gets_instances_for_its_pairs():
    """By tuples two of sixteen are enough for it, which then find half of all pairs."""
    choice = LAYOUTS["bi"]()
    uneven = sized(16, 14, 1)
    interval = traffic(1e5, 1e4, 1e8, 16, uneven)
    assert choice.plan(uneven, [interval._replace(work=None)]) is None
    plan = choice.plan(uneven, [interval])
    assert 7 <= len(plan.layout.units(Side.LEFT)) <= 9
    assert plan.reason.before.greatest > 3 * plan.reason.after.greatest


def test_only_instances_that_change_sides_are_moved():
    """Two of six right ones become left ones; each other one stays in its subgroup."""
    choice = BiK(subgroup_count=3)
    layout = choice.start(12)
    rows = np.zeros((2, 12))
    rows[0, layout.units(Side.LEFT)], rows[1, layout.units(Side.RIGHT)] = 2_000, 1_000
    interval = traffic(0, 0, 0, 12, layout)._replace(stored=rows, state=rows, work=None)
    plan = choice.plan(layout, [interval])
    left, right = ([[one for one, _ in group] for group in side] for side in plan.layout.groups)
    assert left == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert right == [[9], [10], [8, 11]]
    assert plan.reason.cost.moved == 2 * 1_000
    assert all(low == 0 for side in plan.layout.groups for (_, low), *_ in side)
