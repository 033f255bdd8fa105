"""Reasons on cases that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from joinengine.balancing import reasons
from joinengine.balancing.loads import gather_loads
from joinengine.balancing.reasons import Balance, Cause, Cost, Counted, Reason, reason_of
from joinengine.balancing.statistics import Interval
from joinengine.layouts import Mnrt
from joinengine.layouts.key_based import KeyBased
from joinengine.model.keys import U_ONE, Fragment, Mode, Placement, Side
from joinengine.routing.base_functions import Modulo
from joinengine.routing.moves import plan_moves, replaced
from joinengine.routing.table import RoutingTable

BASE = Modulo(4)
HALF = U_ONE // 2
WHOLE = Placement.whole(0)
SPLIT = Placement(Mode.SPLIT, (Fragment(0, 0, HALF), Fragment(1, HALF, U_ONE)))
COPIED = Placement(
    Mode.COPIED, (Fragment(0, 0, HALF), Fragment(1, HALF, U_ONE)), split_side=Side.LEFT
)


def reason(old, new, *, left=100, right=10, limit=np.inf, cause=Cause.OVERLOAD):
    """From one table to the other, every key with these tuples of each side."""
    hashes = np.unique(np.array([*old, *new], np.uint64))
    counts = np.array([[left], [right]]) * np.ones((2, len(hashes)))
    interval = Interval(hashes, counts, counts, np.zeros(4))
    tables = RoutingTable(old), RoutingTable(new)
    changed = replaced(*tables, BASE)
    counted = Counted(gather_loads([interval], tables[0], BASE), interval, limit)
    balance = Balance(2.0, 1.0)
    return reason_of(cause, (balance, None), changed, plan_moves(changed), counted)


@pytest.mark.parametrize(
    ("old", "new", "cost"),
    [
        (WHOLE, Placement.whole(3), Cost(moved=110)),
        (WHOLE, SPLIT, Cost(moved=55)),
        (WHOLE, COPIED, Cost(moved=50, copied=10)),
        (COPIED, WHOLE, Cost(moved=50)),
        (SPLIT, COPIED, Cost(copied=10)),
        (COPIED, SPLIT, Cost()),
        (SPLIT, Placement.whole(2), Cost(moved=110)),
    ],
)
def test_tuples_that_stay_at_a_home_are_copied_the_others_move(old, new, cost):
    found = reason({8: old}, {8: new})
    assert found.cost == cost
    assert [one.cost for one in found.keys] == [cost]


def test_each_key_has_a_cause_of_its_own():
    found = reason({0: SPLIT, 1: SPLIT, 2: WHOLE}, {0: WHOLE, 1: SPLIT, 2: Placement.whole(3)})
    assert [(one.hash_, one.cause) for one in found.keys] == [
        (0, Cause.COOLED_KEY),
        (2, Cause.OVERLOAD),
    ]
    assert found.cause is Cause.OVERLOAD
    heavy = reason({0: WHOLE}, {0: SPLIT}, limit=99.0)
    assert [one.cause for one in heavy.keys] == [Cause.HEAVY_KEY]
    assert heavy.cause is Cause.HEAVY_KEY
    wished = reason({0: WHOLE}, {0: SPLIT}, limit=99.0, cause=Cause.SWITCH)
    assert [one.cause for one in wished.keys] == [wished.cause] == [Cause.SWITCH]


def test_the_heaviest_keys_are_told_and_the_others_counted(monkeypatch):
    monkeypatch.setattr(reasons, "MOST_KEYS", 3)
    hashes = np.arange(8, dtype=np.uint64)
    counts = np.vstack([[5.0, 9, 1, 8, 2, 7, 9, 9], np.zeros(8)])
    interval = Interval(hashes, counts, counts, np.zeros(4))
    new = RoutingTable({h: Placement.whole((h + 1) % 4) for h in range(7)})
    changed = replaced(RoutingTable(), new, BASE)
    counted = Counted(gather_loads([interval], RoutingTable(), BASE), interval)
    told = (Balance(1.0, 1.0), None), changed, plan_moves(changed), counted
    found = reason_of(Cause.OVERLOAD, *told)
    assert [(one.hash_, one.load) for one in found.keys] == [(1, 9.0), (6, 9.0), (3, 8.0)]
    assert found.more_keys == 4
    assert found.cost == Cost(moved=41.0), "of all keys, not of those that are told"


def test_without_counts_keys_are_told_and_costs_are_not():
    changed = replaced(RoutingTable({8: WHOLE}), RoutingTable({8: SPLIT}), BASE)
    balances = Balance(1.0, 1.0), None
    found = reason_of(Cause.RESTART, balances, changed, plan_moves(changed), None)
    assert (found.cost, found.keys[0].cost, found.keys[0].load) == (None, None, None)
    assert (found.keys[0].before, found.keys[0].after) == (WHOLE, SPLIT)


def test_a_reason_reads_as_a_sentence():
    hashes = np.arange(4, dtype=np.uint64)
    counts = np.vstack([[900.0, 100, 100, 100], np.zeros(4)])
    interval = Interval(hashes, counts, counts, np.zeros(4))
    plan = Mnrt().plan(KeyBased(BASE), [interval])
    assert str(plan.reason) == (
        "a key is too heavy for one instance: load skew 3.00, 1.05 expected; "
        "rows to move: 585, to copy: 0; keys placed anew: 1"
    )
    assert str(Reason(Cause.RESIZE, Balance(4.0, 2.0))) == (
        "another number of instances is requested: load skew 2.00"
    )
