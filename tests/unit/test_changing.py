"""From the layout of one planner to that of another."""

from __future__ import annotations

import numpy as np
import pytest

from joinengine.balancing.reasons import Cause
from joinengine.layouts import LAYOUTS
from joinengine.layouts.changing import Occasion, change
from joinengine.layouts.key_based import KeyBased
from joinengine.model.keys import U_ONE, Fragment, Mode, Placement
from joinengine.routing.table import RoutingTable

CUT = U_ONE // 4
#: Key 1: three quarters of it at instance 2; key 2: both fragments are alike.
DIVIDED = {
    1: Placement(Mode.COPIED, (Fragment(0, 0, CUT), Fragment(2, CUT, U_ONE))),
    2: Placement(Mode.SPLIT, (Fragment(3, 0, U_ONE // 2), Fragment(1, U_ONE // 2, U_ONE))),
    3: Placement.whole(1),
}


def switched(name):
    before = LAYOUTS["mnrt"]()
    layout = KeyBased(before.start(4).base, RoutingTable(DIVIDED))
    occasion = Occasion(Cause.SWITCH, np.zeros(4, int))
    return change(before, layout, 4, LAYOUTS[name](), 4, occasion)


@pytest.mark.parametrize("name", ["readj", "llfd", "mixed"])
def test_a_planner_of_whole_keys_puts_divided_keys_where_most_of_each_is(name):
    after = switched(name).layout.table.placements
    assert {hash_: placement.homes for hash_, placement in after.items()} == {
        1: (2,),
        2: (1,),
        3: (1,),
    }


def test_a_planner_that_divides_keys_takes_them_as_they_are():
    assert switched("qmmp").layout.table.placements == DIVIDED
