"""Planners reach the tolerance, place each key wholly, and change nothing that is in balance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing.loads import gather_loads
from joinengine.balancing.mnrt import plan_mnrt
from joinengine.balancing.qmmp import plan_qmmp
from joinengine.balancing.shares import build_table
from joinengine.balancing.statistics import Interval, skew
from joinengine.model.keys import U_ONE
from joinengine.routing.base_functions import Modulo
from joinengine.routing.table import RoutingTable
from tests.laws.cases import tries

PLANNERS = [plan_qmmp, plan_mnrt]


@st.composite
def intervals(draw, *, both_sides):
    """Key counts of one interval; with one side only, loads divide without a fixed part."""
    n_keys = draw(st.integers(1, 40))
    seed = draw(st.integers(0, 10**6))
    exponent = draw(st.sampled_from([0.0, 0.8, 1.5, 3.0]))
    instances = draw(st.integers(1, 12))
    rng = np.random.default_rng(seed)
    hashes = np.unique(rng.integers(0, 1 << 40, n_keys).astype(np.uint64))
    heavy = np.round(1000 * np.arange(1, len(hashes) + 1) ** -exponent) + 1
    light = rng.integers(0, 50, len(hashes)) if both_sides else np.zeros(len(hashes))
    arrived = np.vstack([rng.permutation(heavy), light])
    return Interval(hashes, arrived, arrived * 2, np.zeros(instances)), instances


def replan(planner, interval, instances, table, imbalance):
    loads = gather_loads([interval], table, Modulo(instances))
    new = build_table(table, loads, planner(loads, imbalance))
    return new, gather_loads([interval], new, Modulo(instances)).per_instance()


@pytest.mark.parametrize("planner", PLANNERS)
@tries(150)
@given(case=intervals(both_sides=False), imbalance=st.sampled_from([0.0, 0.02, 0.3]))
def test_any_tolerance_is_reached(planner, case, imbalance):
    interval, instances = case
    table, loads = replan(planner, interval, instances, RoutingTable(), imbalance)
    assert skew(loads) <= 1 + imbalance + 1e-3
    assert loads.sum() == pytest.approx(interval.arrived.sum())
    # Again from the new table, with the loads turned over: tables are built upon tables.
    turned = interval._replace(arrived=interval.arrived[:, ::-1], held=interval.held[:, ::-1])
    _, loads = replan(planner, turned, instances, table, imbalance)
    assert skew(loads) <= 1 + imbalance + 1e-3


@pytest.mark.parametrize("planner", PLANNERS)
@tries(150)
@given(case=intervals(both_sides=True), imbalance=st.sampled_from([0.0, 0.02, 0.3]))
def test_each_key_is_placed_wholly(planner, case, imbalance):
    interval, instances = case
    table, loads = replan(planner, interval, instances, RoutingTable(), imbalance)
    before = gather_loads([interval], RoutingTable(), Modulo(instances)).per_instance()
    assert np.isfinite(loads).all()
    # Nothing gets worse, but by what the last key that is cut brings along: its smaller side.
    limit = max(before.max(), (1 + imbalance) * loads.mean())
    assert loads.max() <= limit * (1 + 1e-6) + interval.arrived[1].max()
    for placement in table.placements.values():
        assert sum(f.u_upper - f.u_lower for f in placement.fragments) == U_ONE
        assert set(placement.homes) <= set(range(instances))


@pytest.mark.parametrize("planner", PLANNERS)
def test_balance_is_left_alone(planner):
    hashes = np.arange(8, dtype=np.uint64)
    arrived = np.vstack([np.full(8, 10.0), np.zeros(8)])
    interval = Interval(hashes, arrived, arrived, np.zeros(4))
    loads = gather_loads([interval], RoutingTable(), Modulo(4))
    assert planner(loads, 0.0) == {}


def test_mnrt_gathers_a_key_that_has_cooled():
    """A key split while it was hot is put together once another key is hot."""
    hashes = np.arange(12, dtype=np.uint64)
    instances = 3

    def counted(hot):
        arrived = np.vstack([np.where(hashes == hot, 1000.0, 50.0), np.zeros(12)])
        return Interval(hashes, arrived, arrived, np.zeros(instances))

    table, _ = replan(plan_mnrt, counted(0), instances, RoutingTable(), 0.05)
    assert len(table.place(0, Modulo(instances)).homes) > 1
    table, loads = replan(plan_mnrt, counted(5), instances, table, 0.05)
    assert table.place(0, Modulo(instances)).homes == (table.place(0, Modulo(instances)).homes[0],)
    assert len(table.place(5, Modulo(instances)).homes) > 1
    assert skew(loads) <= 1.06
