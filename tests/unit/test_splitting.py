"""Planners that split keys: the cost of a cut, and the loads that they gather."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from joinengine.balancing.levelling import filled
from joinengine.balancing.loads import gather_loads
from joinengine.balancing.mnrt import _emptiest, _gather, plan_mnrt
from joinengine.balancing.qmmp import plan_qmmp
from joinengine.balancing.shares import build_table
from joinengine.balancing.statistics import Interval
from joinengine.balancing.workspace import Piece, Workspace
from joinengine.model.keys import U_ONE, Fragment, Mode, Placement
from joinengine.routing.base_functions import Modulo
from joinengine.routing.table import RoutingTable
from tests.unit.cases import loads_of


def counted(keys, instances):
    """(left, right) tuples of each key hash, stored in this interval and held as many."""
    hashes = np.array(sorted(keys), np.uint64)
    arrived = np.array([keys[int(h)] for h in hashes], float).T
    return Interval(hashes, arrived, arrived, np.zeros(instances))


def mnrt(interval, imbalance, table=None):
    table, base = table or RoutingTable(), Modulo(len(interval.rest))
    loads = gather_loads([interval], table, base)
    new = build_table(table, loads, plan_mnrt(loads, imbalance))
    return new, gather_loads([interval], new, base).per_instance()


def test_a_key_of_one_side_is_cut_before_one_that_would_be_probed_at_two_homes():
    """Instance 0 has 200 tuples too many. If key 2 were cut, its tuples would probe two homes."""
    table, loads = mnrt(counted({0: (600, 0), 2: (250, 250), 1: (350, 350)}, 2), 0.0)
    assert list(table.placements) == [0]
    assert table.placements[0].mode is Mode.COPIED
    assert loads.round(1).tolist() == [900, 900]


def test_copies_of_the_small_side_count():
    """A second home of key 0 would store the 300 tuples of its small side; key 2 has one side."""
    table, _ = mnrt(counted({0: (600, 300), 2: (500, 0), 1: (700, 0)}, 2), 0.0)
    assert list(table.placements) == [2]


@pytest.mark.parametrize(("tasks", "homes"), [([0, 0, 1, 1], {0, 2}), ([0, 1, 0, 1], {0, 1})])
def test_the_homes_of_a_key_are_spread_over_tasks_if_that_costs_nothing(tasks, homes):
    """Two of four empty instances are enough: one of each task."""
    key = filled(np.zeros(4), 100.0, 0.0, 50.0, np.array(tasks))
    assert key.shares == dict.fromkeys(homes, 0.5)
    assert key.peak == 50.0


def test_a_key_that_cannot_be_gathered_does_not_keep_others_split():
    """Key 0 comes first, with 80 tuples to divide; each home stores 30 of the other side too."""
    half = U_ONE // 2

    def split(mode, one, other):
        return Placement(mode, (Fragment(one, 0, half), Fragment(other, half, U_ONE)))

    table = RoutingTable({0: split(Mode.COPIED, 0, 1), 2: split(Mode.SPLIT, 2, 3)})
    interval = counted({0: (80, 30), 2: (45, 45)}, 4)
    work = Workspace(gather_loads([interval], table, Modulo(4)))
    assert work.level.tolist() == [70, 70, 45, 45]
    _gather(work, limit=100.0)
    assert work.n_homes.tolist() == [2, 1]


@pytest.mark.parametrize(("hosts", "cut", "taken"), [(2, True, 1), (2, False, 2), (0, True, 2)])
def test_a_part_of_a_key_goes_to_a_task_that_has_none_of_it(hosts, cut, taken):
    """Of two tasks one hosts instances 0 and 2; key 0 is at 0, and 2 is the emptiest."""
    interval = counted({0: (100, 0), 1: (10, 0), 2: (5, 0), 3: (20, 0)}, 4)
    work = Workspace(replace(gather_loads([interval], RoutingTable(), Modulo(4)), hosts=hosts))
    low = np.array([False, True, True, True])
    assert _emptiest(work, Piece(0, 0.5, 0, cut), low) == taken


@pytest.mark.parametrize("planner", [plan_qmmp, plan_mnrt])
def test_a_key_stays_whole_whose_parts_raise_no_level(planner):
    """What each home of it pays is so much more that its tuples are lost in rounding."""
    loads = loads_of([1e-12], [0], instances=3)
    loads = replace(loads, fixed=np.array([1e6]), rest=np.full(3, 1e5))
    ((_, shares),) = planner(loads, 0.05).items()
    assert shares == {0: 1.0}


@pytest.mark.parametrize(("home", "listed"), [(0, {}), (1, {0: Placement.whole(1)})])
def test_a_share_that_is_less_than_u_can_cut_off_leaves_a_key_whole(home, listed):
    loads = loads_of([8], [0], instances=2)
    dust = {home: 1 - 1e-9, 1 - home: 1e-9}
    assert build_table(RoutingTable(), loads, {0: dust}).placements == listed
