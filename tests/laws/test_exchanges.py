"""Planners that look only at what may help end where their slow definitions end."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing import llfd, mixed
from joinengine.balancing.loads import gather_loads
from joinengine.balancing.mixed import plan_llfd, plan_minmig, plan_mintable, plan_mixed_bf
from joinengine.balancing.readj import plan_readj
from joinengine.balancing.statistics import Interval
from joinengine.model.keys import Placement
from joinengine.routing.base_functions import Modulo
from joinengine.routing.table import RoutingTable
from tests.laws.cases import tries
from tests.reference import readjusting


@st.composite
def some_loads(draw, most_keys=40):
    """Loads of whole keys, some of them in the table; many are equal, some are no whole numbers."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    instances, keys = draw(st.integers(1, 7)), draw(st.integers(0, most_keys))
    hashes = np.unique(rng.integers(0, 1 << 40, keys).astype(np.uint64))
    heaviest, exponent = draw(st.sampled_from([5, 60, 1000])), draw(st.sampled_from([0, 0.8, 2]))
    left = rng.permutation(np.round(heaviest * np.arange(1, len(hashes) + 1.0) ** -exponent))
    if draw(st.booleans()):
        left *= rng.random(len(hashes))
    arrived = np.vstack([left, rng.integers(0, 3, len(hashes))])
    held = arrived * rng.integers(0, 3, arrived.shape)
    rest = rng.integers(0, 30, instances) * float(draw(st.booleans()))
    listed = hashes[rng.random(len(hashes)) < draw(st.sampled_from([0, 0.3, 1]))]
    table = {int(h): Placement.whole(int(rng.integers(instances))) for h in listed}
    interval = Interval(hashes, arrived, held, rest)
    return gather_loads([interval], RoutingTable(table), Modulo(instances))


@tries(150)
@given(
    loads=some_loads(),
    imbalance=st.sampled_from([0.0, 0.05]),
    sigma=st.sampled_from([None, 1e-1, 1e-9]),
)
def test_readj_makes_the_best_exchange_of_all(loads, imbalance, sigma):
    assert plan_readj(loads, imbalance, sigma) == readjusting.plan(loads, imbalance, sigma)


@pytest.mark.parametrize("rest", [[0.0, 0.0], [9.0, 0.0]])
def test_readj_without_keys_moves_nothing(rest):
    none = np.zeros((2, 0))
    interval = Interval(np.zeros(0, np.uint64), none, none, np.array(rest))
    assert plan_readj(gather_loads([interval], RoutingTable(), Modulo(2)), 0.05) == {}


def tried_everywhere(assignment, item):
    """The exchange of LLFD, looked for at every instance."""
    for instance in np.argsort(assignment.level, kind="stable").tolist():
        exchanged, fits = assignment.room_for(item, instance)
        if fits:
            return instance, exchanged
    instance = assignment.least_bad(item)
    return instance, assignment.room_for(item, instance)[0]


@pytest.mark.parametrize("planner", [plan_llfd, plan_mintable, plan_minmig])
@tries(100)
@given(loads=some_loads(), imbalance=st.sampled_from([0.0, 0.05]))
def test_llfd_looks_for_no_room_where_there_is_none(planner, loads, imbalance):
    ours = planner(loads, imbalance)
    with patch.object(llfd, "_exchange", tried_everywhere):
        assert planner(loads, imbalance) == ours


@pytest.mark.parametrize("degree", [None, 2])
@tries(75)
@given(loads=some_loads(), table_limit=st.sampled_from([0, 3, 3000]))
def test_ranks_of_priorities_are_as_good_as_the_priorities(degree, loads, table_limit):
    ours = plan_mixed_bf(loads, 0.05, table_limit=table_limit, degree=degree)
    with patch.object(mixed, "_ranked", lambda priority: priority):
        assert plan_mixed_bf(loads, 0.05, table_limit=table_limit, degree=degree) == ours
