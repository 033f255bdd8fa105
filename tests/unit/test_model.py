"""Durations, windows, conditions."""

from __future__ import annotations

from datetime import timedelta

import pytest

from joinengine import band, equi, sliding, theta, tumbling, within
from joinengine.model.conditions import Equi, condition
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 seconds", 10_000_000),
        ("-1 hour", -3_600_000_000),
        ("1 minute 30 seconds", 90_000_000),
        ("interval 2 days", 172_800_000_000),
        ("0.5s", 500_000),
        ("180s", 180_000_000),
        ("106751991 days 1 us", 9_223_372_022_400_000_001),
        (timedelta(milliseconds=3), 3_000),
    ],
)
def test_durations(text, expected):
    assert microseconds(text) == expected


@pytest.mark.parametrize("text", ["", "10", "ten seconds", "1 month", "5 s later", "s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(InvalidRequest, match="number and a unit"):
        microseconds(text)


def test_within_takes_one_delay_or_two():
    one = within("a", "b", lower="0 s", upper="1 s", delay="2 s")
    two = within("a", ["b", "c"], lower="0 s", upper="1 s", delay=("2 s", "3 s"))
    assert one.delays_us == (2_000_000, 2_000_000)
    assert two.delays_us == (2_000_000, 3_000_000)
    assert two.times == (("a",), ("b", "c"))


@pytest.mark.parametrize(
    ("lower", "upper", "left", "right", "span"),
    [
        ("0 s", "5 s", 5, 0, 5),
        ("-3 s", "5 s", 5, 3, 8),
        ("2 s", "5 s", 5, -2, 5),
        ("-5 s", "-2 s", -2, 5, 5),
    ],
)
def test_when_a_tuple_leaves(lower, upper, left, right, span):
    window = within("a", "b", lower=lower, upper=upper)
    assert window.last_partners(Side.LEFT, 0) == left * 10**6
    assert window.last_partners(Side.RIGHT, 0) == right * 10**6
    assert window.span_us == span * 10**6


def test_impossible_windows_are_refused():
    with pytest.raises(InvalidRequest, match="swap"):
        within("a", "b", lower="2 s", upper="1 s")
    with pytest.raises(InvalidRequest, match="negative"):
        within("a", "b", lower="0 s", upper="1 s", delay="-1 s")
    with pytest.raises(InvalidRequest, match="positive"):
        within("a", "b", lower="0 s", upper="1 s", idle_after="0 s")
    with pytest.raises(InvalidRequest, match="positive"):
        tumbling("a", "b", size="0 s")
    with pytest.raises(InvalidRequest, match="positive"):
        sliding("a", "b", size="1 s", slide="-1 s")


def test_conditions():
    assert condition(["a", "b"]) == Equi(("a", "b"), ("a", "b"), using=True)
    assert equi(["a", "b"], ["c", "d"]).using is False
    assert band("a", "b", upper=3).lower is None
    assert theta("left.a < right.b").predicate == "left.a < right.b"


def test_impossible_conditions_are_refused():
    for wrong in (
        lambda: equi(["a"], ["b", "c"]),
        lambda: equi([], []),
        lambda: band("a", "b"),
        lambda: band("a", "b", lower=2, upper=1),
        lambda: theta("  "),
        lambda: condition([]),
    ):
        with pytest.raises(InvalidRequest):
            wrong()
