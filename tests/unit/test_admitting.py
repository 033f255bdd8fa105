"""Admitting: late tuples, those ahead of time, and those without a key or a time, in one batch."""

from __future__ import annotations

import pytest

from joinengine import within
from joinengine.exchange.admitting import Admitting
from joinengine.exchange.roles import Role
from joinengine.model.keys import Side
from joinengine.world.memory import MemoryWorld
from tests.harness import rows, two_way

WINDOW = within("lt", "rt", lower="-9 us", upper="9 us", delay="0 us")
#: On time, late, ahead of time, without a time, without a key.
TUPLES = [(1, 0, 150), (1, 1, 50), (1, 2, 950), (1, 3, None), (None, 4, 160)]


@pytest.mark.parametrize(
    ("watchers", "values", "matchless"),
    [(0, [0], None), (2, [0, 3, 4], [False, True, True])],
)
def test_what_enters_and_what_is_counted(watchers, values, matchless):
    """A tuple without a time is neither late nor ahead; only a watched side has such tuples."""
    (operator,) = two_way(WINDOW, 2, how="full").operators
    admission = operator.admission(Side.LEFT)
    role = Role(0, Side.LEFT, admission, 100.0, None, watchers=watchers, latest=900.0)
    admitting = Admitting(role, MemoryWorld())
    found = admitting.admit(rows(Side.LEFT, TUPLES))
    assert found.batch.column("lv").to_pylist() == values
    assert (None if found.matchless is None else found.matchless.tolist()) == matchless
    report = admitting.report
    assert (report.rows, report.late_rows, report.ahead_rows, report.null_rows) == (5, 1, 1, 2)
    assert report.newest_time == 160
