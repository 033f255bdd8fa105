"""Records of keys that are alike: rounded loads sum to the loads, and plans over them hold."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joinengine.balancing import mixed
from joinengine.balancing.compact import discretise, neighbours, records
from joinengine.layouts import Mixed
from joinengine.model.errors import InvalidRequest
from tests.unit.cases import after, level, loads_of, moved, table_size, zipf_loads


def scanned(values, degree):
    """One by one in descending order, as the paper has it; the representatives found."""
    kinds = np.unique(values)
    lower, upper = neighbours(kinds, degree)
    found, deviation = [], 0
    for x in sorted(values, reverse=True):
        i = int(np.searchsorted(kinds, x))
        y = int(upper[i] if deviation > 0 else lower[i])
        deviation += x - y
        found.append(y)
    return sorted(found)


@settings(max_examples=200)
@given(
    values=st.lists(st.integers(0, 300) | st.integers(1, 12), min_size=1, max_size=60),
    degree=st.integers(0, 6),
)
def test_equal_values_at_once_are_rounded_as_one_by_one(values, degree):
    found = discretise(np.array(values, float), np.zeros(len(values), int), degree)
    assert sorted(found.tolist()) == scanned(values, degree)


@settings(max_examples=100)
@given(
    values=st.lists(st.integers(1, 1000), min_size=1, max_size=80),
    degree=st.integers(0, 8),
    n_groups=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_representatives_are_next_to_their_values_and_sums_are_kept(values, degree, n_groups, seed):
    exact = np.array(values, float)
    groups = np.random.default_rng(seed).integers(0, n_groups, len(values))
    found = discretise(exact, groups, degree)
    step = 1 << degree
    allowed = {1 << i for i in range(degree)} | set(range(step, 2000, step))
    assert set(found.tolist()) <= allowed
    assert (np.abs(found - exact) < np.maximum(step, 1)).all()
    # Values above all representatives have one candidate; later ones may make up for it.
    above = np.bincount(groups, exact % step * (exact > found.max()), n_groups)
    off = np.bincount(groups, exact - found, n_groups)
    assert (np.abs(off) <= above + step).all()


def test_rounding_takes_memory_for_the_values_that_there_are():
    """Not for all values times all instances: with 190,000 values and 256 of these a gigabyte."""
    values = np.arange(20_000.0)
    tracemalloc.start()
    discretise(values, np.arange(20_000) % 256, 4)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 500 * len(values)


def errors(degree, *, one_deviation):
    """The estimated loads of 15 instances against the true ones, greatest difference over mean."""
    rng = np.random.default_rng(3)
    loads = np.maximum(np.round(2e6 / 84 * np.arange(1, 10_001) ** -0.85), 1)
    homes = rng.integers(0, 15, len(loads))
    groups = np.zeros_like(homes) if one_deviation else homes
    found = discretise(loads, groups, degree)
    exact, estimated = (np.bincount(homes, x, 15) for x in (loads, found))
    return np.abs(estimated - exact).max() / exact.mean()


@pytest.mark.parametrize("degree", range(9))
def test_loads_are_estimated_within_one_per_cent(degree):
    """Fang et al., 2016, figure 11: R = 1 to 256."""
    assert errors(degree, one_deviation=False) < 0.01


def test_one_deviation_for_all_instances_fails():
    """The paper's one deviation: right in total, and wrong by per cents on an instance."""
    assert errors(8, one_deviation=True) > 0.01
    assert errors(8, one_deviation=False) < errors(8, one_deviation=True) / 10


PLANNERS = {
    "llfd": mixed.plan_llfd,
    "mintable": mixed.plan_mintable,
    "minmig": mixed.plan_minmig,
    "mixed": mixed.plan_mixed,
}


def light_loads(seed):
    """As `zipf_loads`, with counts as small as 7, so that many keys are alike."""
    loads = zipf_loads(seed)
    homes = after(loads, {})
    cost, held = np.round(loads.spread / 100), np.round(loads.held / 100)
    return loads_of(cost, loads.homes, homes, held, loads.n_instances)


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("degree", [0, 3, 6])
def test_plans_over_records_balance_as_those_over_keys(name, degree):
    for seed in range(4):
        loads = light_loads(seed)
        homes = after(loads, PLANNERS[name](loads, 0.05, degree=degree))
        found = level(loads, homes)
        # R = 64 is 0.5 % of an instance's load here, and a handful of keys come to one.
        assert found.max() <= (1.05 + (0.02 if degree else 1e-9)) * found.mean()
        kinds = records(loads, after(loads, {}), loads.spread, degree).counts
        assert len(kinds) < len(loads.hashes) * (0.4 if degree else 0.9)


@pytest.mark.parametrize("degree", [None, 3])
def test_mixed_over_records_keeps_its_limit_and_moves_little(degree):
    rows = []
    for seed in range(6):
        loads = light_loads(seed)
        plan = after(loads, mixed.plan_mixed(loads, 0.05, table_limit=150, degree=degree))
        mintable = after(loads, mixed.plan_mintable(loads, 0.05, degree=degree))
        assert table_size(loads, plan) <= max(150, table_size(loads, mintable))
        rows.append((moved(loads, plan), moved(loads, mintable)))
    ours, theirs = np.mean(rows, axis=0)
    assert 0 < ours < theirs


def test_of_a_kind_the_keys_of_greatest_priority_move():
    """Ten keys of load 8 to R = 8; exact loads and states say which of them go."""
    cost = [8, 9, 8, 9, 8, 9, 8, 9, 8, 9]
    loads = loads_of(cost, [0] * 10, held=[8] * 10)
    changes = mixed.plan_minmig(loads, 0.1, degree=3)
    assert 1 <= len(changes) <= 6
    assert all(cost[key] == 9 for key in list(changes)[:5])


def test_a_split_key_is_gathered_over_records_too():
    loads = loads_of([10, 1, 1], [0, 1, 1])
    split = loads.__class__(
        **{
            **{name: getattr(loads, name) for name in loads.__dataclass_fields__},
            "keys": np.array([0, 0, 1, 2]),
            "instances": np.array([0, 1, 1, 1]),
            "shares": np.array([0.3, 0.7, 1.0, 1.0]),
        }
    )
    assert mixed.plan_llfd(split, 10.0, degree=0) == {0: {1: 1.0}}


def test_impossible_degrees_are_refused():
    with pytest.raises(InvalidRequest, match=r"mixed: degree must be from 0 to 16, .* found 17"):
        Mixed(degree=17)
