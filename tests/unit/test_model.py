"""Durations, windows, conditions."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine import band, equi, sliding, theta, tumbling, within
from joinengine.lab.cli import main
from joinengine.model.conditions import Equi, condition
from joinengine.model.durations import microseconds
from joinengine.model.errors import (
    CheckpointMismatch,
    DamagedState,
    InvalidRequest,
    TakenOver,
    taken_over,
)
from joinengine.model.keys import PAIR, Side
from joinengine.model.windows import INT_MAX, INT_MIN


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


@pytest.mark.parametrize("text", ["", "10", "ten seconds", "5 s later", "s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(InvalidRequest, match="number and a unit"):
        microseconds(text)


@pytest.mark.parametrize("text", ["1 month", "interval 2 years", "1 day 3 months", "1 quarter"])
def test_months_and_years_are_no_durations(text):
    with pytest.raises(InvalidRequest, match=f"'{text}': months and years have no fixed length"):
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


def test_without_a_bound_one_side_never_leaves():
    later, earlier = within("a", "b", lower="2 s"), within("a", "b", upper="-3 s")
    times = np.array([0, 5])
    assert later.last_partners(Side.LEFT, times).tolist() == [INT_MAX] * 2
    assert later.last_partners(Side.RIGHT, times).tolist() == [-2_000_000, -1_999_995]
    assert earlier.last_partners(Side.LEFT, 0) == -3_000_000
    assert earlier.last_partners(Side.RIGHT, 0) == INT_MAX
    assert (later.endless, earlier.endless) == PAIR
    assert later.span_us is earlier.span_us is None


def test_the_time_of_the_side_that_ends_alone_bounds_the_age_of_a_pair():
    """A row made now may have a left time of any age if the interval has no upper bound."""
    assert within("a", "b", lower="2 s").output_lag_us(Side.LEFT) is None
    assert within("a", "b", lower="2 s").output_lag_us(Side.RIGHT) == 0
    assert within("a", "b", lower="-2 s").output_lag_us(Side.RIGHT) == 2_000_000
    assert within("a", "b", upper="2 s").output_lag_us(Side.LEFT) == 2_000_000
    assert within("a", "b", upper="2 s").output_lag_us(Side.RIGHT) is None


def test_impossible_windows_are_refused():
    with pytest.raises(InvalidRequest, match="neither lower nor upper"):
        within("a", "b", delay="1 s")
    with pytest.raises(InvalidRequest, match="swap"):
        within("a", "b", lower="2 s", upper="1 s")
    with pytest.raises(InvalidRequest, match="negative"):
        within("a", "b", lower="0 s", upper="1 s", delay="-1 s")
    with pytest.raises(InvalidRequest, match="tumbling: max_ahead -1 s is negative; use 0 or"):
        tumbling("a", "b", size="1 s", max_ahead="-1 s")
    with pytest.raises(InvalidRequest, match="positive"):
        within("a", "b", lower="0 s", upper="1 s", idle_after="0 s")
    with pytest.raises(InvalidRequest, match="positive"):
        tumbling("a", "b", size="0 s")
    with pytest.raises(InvalidRequest, match="positive"):
        sliding("a", "b", size="1 s", slide="-1 s")


@pytest.mark.parametrize("name", ["lower", "upper", "delay", "idle_after", "max_ahead"])
def test_lengths_that_64_bits_cannot_hold_are_refused(name):
    long = {name: "-9999999999 days" if name == "lower" else "9999999999 days"}
    settings = {"lower": "0 s", "upper": "1 s"} | long
    with pytest.raises(InvalidRequest, match=f"within: {name} .* is too long"):
        within("a", "b", **settings)


def test_windows_that_64_bits_cannot_hold_are_refused():
    with pytest.raises(InvalidRequest, match=r"size .* is too long"):
        tumbling("a", "b", size="9999999999 days")
    with pytest.raises(InvalidRequest, match=r"slide .* is too long"):
        sliding("a", "b", size="1 s", slide="9999999999 days")


moments = st.integers(-300, 300) | st.builds(
    lambda end, into: end + into if end < 0 else end - into,
    st.sampled_from([INT_MIN, INT_MAX]),
    st.integers(0, 300),
)
lengths = st.integers(1, 200) | st.sampled_from([1 << 62, INT_MAX])


@given(
    left=moments,
    right=moments,
    lower=lengths | lengths.map(int.__neg__),
    upper=lengths | lengths.map(int.__neg__),
)
def test_intervals_are_exact_at_the_ends_of_time(left, right, lower, upper):
    lower, upper = sorted((lower, upper))
    window = within("a", "b", lower=f"{lower} us", upper=f"{upper} us")
    pair = np.array([left]), np.array([right])
    assert window.near(*pair).tolist() == [lower <= right - left <= upper]
    for side, time, most in ((Side.LEFT, left, upper), (Side.RIGHT, right, -lower)):
        held = max(INT_MIN, min(time + most, INT_MAX))
        assert window.last_partners(side, np.array([time])).tolist() == [held]


@example(left=INT_MIN, right=INT_MAX, bound=5, above=True)
@example(left=INT_MAX, right=INT_MIN, bound=5, above=True)
@given(left=moments, right=moments, bound=lengths | lengths.map(int.__neg__), above=st.booleans())
def test_open_intervals_are_exact_at_the_ends_of_time(left, right, bound, above):
    window = within("a", "b", **{"lower" if above else "upper": f"{bound} us"})
    near = window.near(np.array([left]), np.array([right])).tolist()
    assert near == [right - left >= bound if above else right - left <= bound]


@example(left=INT_MIN, right=INT_MAX - 100, size=5, slide=1)
@given(left=moments, right=moments, size=lengths, slide=lengths)
def test_windows_are_exact_at_the_ends_of_time(left, right, size, slide):
    window = sliding("a", "b", size=f"{size} us", slide=f"{slide} us")

    def holding(time):
        around = range((time - size) // slide + 1, time // slide + 1)
        first, last = window.numbers
        assert first * slide >= INT_MIN > (first - 1) * slide
        assert last * slide + size < INT_MAX <= (last + 1) * slide + size
        return range(max(around.start, first), min(around.stop, last + 1))

    mine, theirs = holding(left), holding(right)
    both = range(max(mine.start, theirs.start), min(mine.stop, theirs.stop))
    first, counts = window.shared(np.array([left]), np.array([right]))
    assert counts.tolist() == [len(both)]
    assert not both or first.tolist() == [both.start]
    if mine:
        last = window.last_partners(Side.LEFT, np.array([left]))
        assert last.tolist() == [(mine.stop - 1) * slide + size - 1]


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


def test_a_driver_that_another_one_followed_has_an_error_of_its_own():
    error = taken_over("another driver goes on")
    assert isinstance(error, TakenOver) and type(error).__name__ == "TakenOver"
    assert not issubclass(TakenOver, InvalidRequest)
    with pytest.raises(CheckpointMismatch):  # until 0.3
        raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [(InvalidRequest("x"), 2), (taken_over("x"), 1), (DamagedState("x"), 1)],
)
def test_exit_codes(error, code, monkeypatch):
    def failing(standalone_mode):
        raise error

    monkeypatch.setattr("joinengine.lab.cli.cli", failing)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == code
