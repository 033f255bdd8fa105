"""What a query says unasked: rows that it leaves out, and state that grows for ever."""

from __future__ import annotations

import pytest

from joinengine.driver.records import BatchRecord, OperatorRecord, Refused
from joinengine.model.keys import Side
from joinengine.model.windows import within
from joinengine.reporting.alerts import MARKED, Alerts
from tests.harness import two_way


def batch(number, left=None, right=None, **more):
    entry = OperatorRecord(3, refused=[left or Refused(100), right or Refused(100)], **more)
    return BatchRecord(number, 0.0, {"elapsed_s": 0.0}, joins=[entry])


@pytest.fixture
def alerts():
    window = within("lt", "rt", lower="0 s", upper="1 s", delay="0 s")
    return Alerts(two_way(window))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("late", "arrived later than the join's delay allows"),
        ("null", "have no key or no event time"),
        ("ahead", "further ahead of the clock than max_ahead"),
    ],
)
def test_a_stream_is_named_once_and_in_the_end(reason, words, alerts):
    few = Refused(1000, **{reason: int(MARKED * 1000) - 1})
    assert alerts.take(batch(0, left=few)) == []
    many = Refused(1000, **{reason: int(MARKED * 1000)})
    (said,) = alerts.take(batch(1, left=many))
    assert said.startswith("batch 1: 10 of 1,000 rows (1%) of ")
    assert words in said
    assert alerts.take(batch(2, left=many)) == []
    (other,) = alerts.take(batch(3, left=many, right=many))
    assert other != said
    first, second = alerts.sums()
    assert first.startswith("in total, 39 of 4,000 rows (1%) of ")
    assert second.startswith("in total, 10 of 1,300 rows (1%) of ")
    assert words in first


def test_reasons_are_named_one_by_one(alerts):
    said = alerts.take(batch(0, right=Refused(10, late=4, null=3, ahead=2)))
    assert len(said) == len(alerts.sums()) == 3


def test_a_side_that_brings_nothing_is_not_named(alerts):
    assert alerts.take(batch(0, left=Refused(), right=Refused())) == []
    assert alerts.sums() == []


def test_a_join_without_a_window_says_once_how_its_state_grows():
    alerts = Alerts(two_way(None))
    assert alerts.take(batch(0)) == []
    (said,) = alerts.take(batch(1, state_rows=200, state_bytes=6000))
    assert said.startswith("join 0 has no window, so its state grows without bound: by 30.0 MB per")
    assert alerts.take(batch(2, state_rows=400, state_bytes=12_000)) == []
    assert alerts.sums() == []


@pytest.mark.parametrize("why", ["it ends", "a window", "a table"])
def test_state_that_does_not_grow_for_ever_needs_no_word(why):
    window = within("lt", "rt", lower="0 s", upper="1 s", delay="0 s") if "window" in why else None
    query = two_way(window, table=Side.RIGHT if "table" in why else None)
    alerts = Alerts(query, ends="ends" in why)
    assert alerts.take(batch(1, state_rows=200, state_bytes=6000)) == []
