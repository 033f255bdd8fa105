"""Admitting: late tuples, those ahead of time, and those without a key or a time, in one batch."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest

from joinengine import sliding, within
from joinengine.exchange.admitting import Admitting
from joinengine.exchange.roles import Role
from joinengine.model.keys import Side
from joinengine.world.memory import MemoryWorld
from tests.harness import rows, two_way

INTERVAL = within("lt", "rt", lower="-9 us", upper="9 us", delay="0 us")
SLIDING = sliding("lt", "rt", size="9 us", slide="3 us", delay="0 us")
#: On time, late, ahead of time, without a time, without a key.
TUPLES = [(1, 0, 150), (1, 1, 50), (1, 2, 950), (1, 3, None), (None, 4, 160)]


@pytest.mark.parametrize(
    ("how", "window", "values", "matchless", "aside"),
    [
        ("inner", INTERVAL, [0], None, {1: "late", 2: "ahead", 3: "null", 4: "null"}),
        ("full", INTERVAL, [0, 3, 4], [False, True, True], {1: "late", 2: "ahead"}),
        ("left_anti", INTERVAL, [0, 3, 4], [False, True, True], {1: "late", 2: "ahead"}),
        ("left_semi", INTERVAL, [0], None, {1: "late", 2: "ahead", 3: "null", 4: "null"}),
        ("full", SLIDING, [0, 4], [False, True], {1: "late", 2: "ahead", 3: "null"}),
        ("left_semi", SLIDING, [0], None, {1: "late", 2: "ahead", 3: "null", 4: "null"}),
    ],
)
def test_what_enters_and_what_is_counted(how, window, values, matchless, aside):
    """A tuple without a time is neither late nor ahead. What can be no result is set aside."""
    (operator,) = two_way(window, 2, how=how).operators
    admission, world = operator.admission(Side.LEFT), MemoryWorld()
    watchers = 2 if operator.watched else 0
    role = Role(0, Side.LEFT, admission, 100.0, None, watchers, "/aside", latest=900.0)
    admitting = Admitting(role, world)
    found = admitting.admit(rows(Side.LEFT, TUPLES))
    assert found.batch.column("lv").to_pylist() == values
    assert (None if found.matchless is None else found.matchless.tolist()) == matchless
    report = admitting.report
    assert (report.rows, report.late_rows, report.ahead_rows, report.null_rows) == (5, 1, 1, 2)
    assert report.newest_time == 160
    admitting.close()
    refused = pq.read_table(io.BytesIO(world.storage("/aside").get(report.refused.name)))
    assert dict(zip(*refused.select(["lv", "reason"]).to_pydict().values(), strict=True)) == aside
