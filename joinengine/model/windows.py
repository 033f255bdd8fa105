"""Windows: which pairs are close enough in event time to match, and when a tuple may leave.

An interval (`Within`) bounds right time minus left time; one of its ends may be open, and then the
tuples of one side never leave. A sliding window (`Sliding`; tumbling if slide = size) makes a pair
of two tuples once for each window that holds both: window k is
[k * slide, k * slide + size). All times and lengths are microseconds in 64-bit integers. A length
beyond that range is refused, a sum beyond it becomes the end of the range, and a window that would
begin or end beyond it does not exist.
Source of the leaving rule: docs/decisions/0001 (a tuple leaves when no tuple that is on time can
still match it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from joinengine.model.durations import describe
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.model.lateness import (
    Delays,
    Duration,
    Lateness,
    TimeColumns,
    check_length,
    lateness,
    optional_length,
    positive_length,
    time_columns,
)

Times = NDArray[np.int64]
SomeTimes = TypeVar("SomeTimes", int, float, Times)
Bools = NDArray[np.bool_]
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


def plus_held(values: Times, k: int) -> tuple[Times, Bools]:
    """(n,) values + k, limited to the range of the type, and (n,) whether each was limited.

    >>> plus_held(np.array([5, INT_MAX - 1]), 3)[0].tolist() == [8, INT_MAX]
    True
    """
    end = INT_MAX if k >= 0 else INT_MIN
    beyond = values > end - k if k >= 0 else values < end - k
    if not beyond.any():
        return values + k, beyond
    return np.where(beyond, end, values + np.where(beyond, 0, k)), beyond


def window_numbers(size_us: int, slide_us: int) -> tuple[int, int]:
    """The numbers of the first and the last window within 64-bit times; INT_MAX ends no window.

    >>> window_numbers(10, 1 << 62)
    (-2, 1)
    """
    return -(-INT_MIN // slide_us), (INT_MAX - 1 - size_us) // slide_us


@dataclass(frozen=True, slots=True)
class Within:
    """Pairs with lower <= right time - left time <= upper; None: that end is open.

    `times`: per side the event-time columns; a tuple's time is the latest of them. (Only rows of
    another join have several: one for each of its inputs.) `delays`: per side, how far a tuple may
    lag behind the newest one and still be on time; None: the input's own watermark. `idle_after`:
    a side without tuples for this wall time no longer holds the watermark back; None: it always
    does. `ahead`: how far a tuple may be ahead of the clock; None: without limit.
    """

    times: tuple[tuple[str, ...], tuple[str, ...]]
    lower_us: int | None
    upper_us: int | None
    delays_us: Delays = (None, None)
    idle_after_us: int | None = None
    ahead_us: int | None = None

    def __post_init__(self) -> None:
        if self.lower_us is None and self.upper_us is None:
            raise InvalidRequest(
                "within: neither lower nor upper is given; give at least one, or leave within out "
                "for a join over the full history"
            )
        check_length("within: lower", self.lower_us or 0)
        check_length("within: upper", self.upper_us or 0)
        if None not in (self.lower_us, self.upper_us) and self.lower_us > self.upper_us:  # type: ignore[operator]
            raise InvalidRequest(
                f"within: lower {describe(self.lower_us or 0)} is above upper "
                f"{describe(self.upper_us or 0)}; swap them"
            )
        Lateness(self.delays_us, self.idle_after_us, self.ahead_us).check("within")

    @property
    def span_us(self) -> int | None:
        """How long left tuples stay in the state, plus how long right ones do; None: for ever."""
        if self.lower_us is None or self.upper_us is None:
            return None
        return max(self.upper_us, 0) + max(-self.lower_us, 0)

    @property
    def endless(self) -> Side | None:
        """The side whose tuples may find partners for ever, because an end is open; None: none.

        Without an upper bound, a right tuple may match a left tuple that is earlier by any length.
        """
        if self.upper_us is None:
            return Side.LEFT
        return Side.RIGHT if self.lower_us is None else None

    def last_partners(self, side: Side, times: SomeTimes) -> SomeTimes:
        """Times of `side` -> the latest time at which a partner of each may come.

        If time + upper < watermark, a left tuple leaves; if time - lower < watermark, a right one.
        A tuple of the endless side never leaves: INT_MAX.
        """
        most = _reach(self, side)
        if isinstance(times, np.ndarray):
            return np.full_like(times, INT_MAX) if most is None else plus_held(times, most)[0]
        return INT_MAX if most is None else times + most

    def partners(self, side: Side, times: Times) -> tuple[Times, Times]:
        """(n,) times of `side` -> first and last time of partners, none if first > last."""
        least, most = self.lower_us, self.upper_us
        if side is Side.RIGHT:
            least, most = (None if bound is None else -bound for bound in (most, least))
        first, last = np.full_like(times, INT_MIN), np.full_like(times, INT_MAX)
        if least is not None:
            first, none = plus_held(times, least)
            last[none & (least > 0)] = INT_MIN
        if most is not None:
            latest, none = plus_held(times, most)
            last = np.minimum(last, latest)
            first[none & (most < 0)] = INT_MAX
        return first, last

    def near(self, left: Times, right: Times) -> Bools:
        """(n,) pairs -> whether each is close enough to match."""
        lead = right - left
        close = np.ones(len(lead), bool)
        if self.lower_us is not None:
            close &= lead >= self.lower_us
        if self.upper_us is not None:
            close &= lead <= self.upper_us
        opposite = left ^ right
        if np.any(opposite < 0):  # only then may the difference be too large, and have wrapped
            wrapped = (opposite & (lead ^ right)) < 0
            open_there = np.where(right > left, self.upper_us is None, self.lower_us is None)
            close = np.where(wrapped, open_there, close)
        return close

    def output_lag_us(self, side: Side) -> int | None:
        """How far a joined row's `side` time may lag behind the watermark; None: without limit.

        One of the two tuples arrived in this batch, on time; the other is at most a bound away.
        If the interval has no end there, the other may be of any age.
        """
        most = _reach(self, side)
        return None if most is None else max(most, 0)


def _reach(window: Within, side: Side) -> int | None:
    """How much later than a tuple of `side` a partner may be; None: without limit."""
    if side is Side.LEFT:
        return window.upper_us
    return None if window.lower_us is None else -window.lower_us


@dataclass(frozen=True, slots=True)
class Sliding:
    """A pair for each window of `size`, one starting every `slide`, that holds both times.

    The other fields are those of `Within`.
    """

    times: tuple[tuple[str, ...], tuple[str, ...]]
    size_us: int
    slide_us: int
    delays_us: Delays = (None, None)
    idle_after_us: int | None = None
    ahead_us: int | None = None

    def __post_init__(self) -> None:
        check_length("window: size", self.size_us)
        check_length("window: slide", self.slide_us)
        Lateness(self.delays_us, self.idle_after_us, self.ahead_us).check("window")

    @property
    def function(self) -> str:
        """The name of the function that a user calls for it."""
        return "tumbling" if self.size_us == self.slide_us else "sliding"

    @property
    def lower_us(self) -> int:
        """Pairs are less than a size apart."""
        return 1 - self.size_us

    @property
    def upper_us(self) -> int:
        """Pairs are less than a size apart."""
        return self.size_us - 1

    @property
    def span_us(self) -> int:
        """The time that state must cover: a tuple stays while a window that holds it is open."""
        return self.size_us

    @property
    def endless(self) -> Side | None:
        """No side: all windows end."""
        return None

    @property
    def most_windows(self) -> int:
        """The greatest number of windows that hold one tuple."""
        return -(-self.size_us // self.slide_us)

    @property
    def numbers(self) -> tuple[int, int]:
        """The numbers of the first and the last window that exist."""
        return window_numbers(self.size_us, self.slide_us)

    def last_partners(self, side: Side, times: SomeTimes) -> SomeTimes:
        """Times -> the last moment of the last window that holds each."""
        last = times // self.slide_us
        if isinstance(last, np.ndarray):
            last = np.clip(last, *self.numbers)
        return last * self.slide_us + self.size_us - 1

    def output_lag_us(self, side: Side) -> int:
        """Both tuples of a pair lie in one window: the lag is less than its size."""
        return self.size_us - 1

    def shared(self, left: Times, right: Times) -> tuple[Times, Times]:
        """(n,) pairs -> the number of the first window that holds both, and how many do."""
        least, most = self.numbers
        last = np.minimum(np.minimum(left, right) // self.slide_us, most)
        # (later - size) // slide + 1, computed so that no part overflows.
        slides, rest = divmod(self.size_us, self.slide_us)
        number, into = np.divmod(np.maximum(left, right), self.slide_us)
        first = np.maximum(number - (into < rest), least + slides - 1) - (slides - 1)
        return first, np.where(last >= first, last - first + 1, 0)

    def partners(self, side: Side, times: Times) -> tuple[Times, Times]:
        """(n,) times -> the first and the last time that share a window with each.

        None if first > last. Every time between the two does, since windows that hold one time
        follow each other without a gap.
        """
        first, counts = self.shared(times, times)
        last = (first + counts - 1) * self.slide_us + self.size_us - 1
        none = counts == 0
        return np.where(none, INT_MAX, first * self.slide_us), np.where(none, INT_MIN, last)

    def near(self, left: Times, right: Times) -> Bools:
        """(n,) pairs -> whether any window holds both."""
        return self.shared(left, right)[1] > 0


Window = Within | Sliding


def within(
    left: TimeColumns,
    right: TimeColumns,
    *,
    lower: Duration | None = None,
    upper: Duration | None = None,
    delay: Duration | tuple[Duration, Duration] | None = None,
    idle_after: Duration | None = None,
    max_ahead: Duration | None = None,
) -> Within:
    """Match pairs with lower <= right time - left time <= upper; an absent bound is open.

    `left`, `right`: the event-time column of each side. A side that is a join may have several; the
    latest of them counts.
    `lower`, `upper`: without `upper`, left rows are kept for ever; without `lower`, right rows are.
    `delay`: how far a row may lag behind the newest row of its side, one value or (left, right). If
    not given: the delay of the input's `withWatermark`.
    `idle_after`: a side without new rows for this wall time no longer holds the watermark back.
    `max_ahead`: a row further ahead of the driver's clock is refused and counted. If not given, one
    row with a wrong time in the future can make all later rows late.

    Raises InvalidRequest if there is no bound, lower is above upper, a delay or `max_ahead` is
    negative, a length exceeds 64-bit integers, or a text is not a duration.

    >>> within("a", "b", lower="-1 hour", upper="0 seconds").span_us
    3600000000
    """
    low, high = optional_length(lower, "within: lower"), optional_length(upper, "within: upper")
    late = lateness("within", delay, idle_after, max_ahead)
    return Within((time_columns(left), time_columns(right)), low, high, *late)


def tumbling(
    left: TimeColumns,
    right: TimeColumns,
    size: Duration,
    *,
    delay: Duration | tuple[Duration, Duration] | None = None,
    idle_after: Duration | None = None,
    max_ahead: Duration | None = None,
) -> Sliding:
    """Match pairs in the same window of `size`; windows follow one another from 1970 on.

    Results have the columns window_start and window_end. The other arguments and errors are those
    of `within`.

    >>> tumbling("a", "b", "5 minutes").slide_us
    300000000
    """
    length = positive_length(size, "tumbling: size")
    late = lateness("tumbling", delay, idle_after, max_ahead)
    return Sliding((time_columns(left), time_columns(right)), length, length, *late)


def sliding(
    left: TimeColumns,
    right: TimeColumns,
    size: Duration,
    slide: Duration,
    *,
    delay: Duration | tuple[Duration, Duration] | None = None,
    idle_after: Duration | None = None,
    max_ahead: Duration | None = None,
) -> Sliding:
    """Match a pair once for each window that holds both rows.

    A window has length `size`, and one starts every `slide`. Results have the columns window_start
    and window_end. If `slide` is greater than `size`, rows between windows match nothing. The other
    arguments and errors are those of `within`.
    """
    length = positive_length(size, "sliding: size")
    step = positive_length(slide, "sliding: slide")
    late = lateness("sliding", delay, idle_after, max_ahead)
    return Sliding((time_columns(left), time_columns(right)), length, step, *late)
