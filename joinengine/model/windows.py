"""Windows: which pairs are close enough in event time to match, and when a tuple may leave.

Bounds are on right time minus left time, both inclusive, in microseconds.
Source of the leaving rule: docs/decisions/0001 (a tuple leaves when no tuple that is on time can
still match it).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from joinengine.model.durations import describe, microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side

Duration = str | timedelta
TimeColumns = str | tuple[str, ...] | list[str]


@dataclass(frozen=True, slots=True)
class Within:
    """Pairs with lower <= right time - left time <= upper.

    `times` holds, per side, the event-time columns; a tuple's time is the latest of them (several
    only after a join, where a joined row carries one time per input). `delays` is how far, per
    side, a tuple may lag behind the newest one and still be on time; None: the input's own
    watermark. A side that brings nothing for `idle_after` of wall time is left out of the
    watermark; None: it is waited for.
    """

    times: tuple[tuple[str, ...], tuple[str, ...]]
    lower_us: int
    upper_us: int
    delays_us: tuple[int | None, int | None] = (None, None)
    idle_after_us: int | None = None

    def __post_init__(self) -> None:
        if self.lower_us > self.upper_us:
            raise InvalidRequest(
                f"within: lower {describe(self.lower_us)} is above upper "
                f"{describe(self.upper_us)}; swap them"
            )
        for delay in self.delays_us:
            if delay is not None and delay < 0:
                raise InvalidRequest(f"within: delay {describe(delay)} is negative; use 0 or more")
        if self.idle_after_us is not None and self.idle_after_us <= 0:
            raise InvalidRequest(
                f"within: idle_after {describe(self.idle_after_us)} must be positive"
            )

    @property
    def span_us(self) -> int:
        """How long, in event time, the widest pair may be apart: what the state must cover."""
        return max(self.upper_us, 0) + max(-self.lower_us, 0)

    def retention_us(self, side: Side) -> int:
        """How far behind the watermark a stored tuple of `side` may still find a match.

        A left tuple leaves when time + upper < watermark, a right one when time - lower does.
        """
        return self.upper_us if side is Side.LEFT else -self.lower_us

    def output_lag_us(self, side: Side) -> int:
        """How far a joined row's `side` time may lag behind the watermark (inner joins).

        One of the two tuples arrived in this batch, on time; the other is at most a bound away.
        """
        return max(self.upper_us, 0) if side is Side.LEFT else max(-self.lower_us, 0)


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Pairs whose times fall into the same window of `size`."""

    times: tuple[tuple[str, ...], tuple[str, ...]]
    size_us: int


@dataclass(frozen=True, slots=True)
class Sliding:
    """A pair for each window of `size`, one starting every `slide`, that holds both times."""

    times: tuple[tuple[str, ...], tuple[str, ...]]
    size_us: int
    slide_us: int


Window = Within | Tumbling | Sliding


def within(
    left: TimeColumns,
    right: TimeColumns,
    *,
    lower: Duration,
    upper: Duration,
    delay: Duration | tuple[Duration, Duration] | None = None,
    idle_after: Duration | None = None,
) -> Within:
    """Match pairs with lower <= right time - left time <= upper.

    `left`, `right`: the event-time column of each side, or several of them where the side is
    itself a join (its time is then the latest). `delay`: how long a tuple may lag behind the
    newest of its side, one value or (left, right); default: the inputs' own `withWatermark`.
    `idle_after`: leave a side out of the watermark once it has brought nothing for so long (wall
    time).

    Raises InvalidRequest for lower above upper, a negative delay, or text that is no duration.

    >>> within("a", "b", lower="-1 hour", upper="0 seconds").span_us
    3600000000
    """
    pair = delay if isinstance(delay, tuple) else (delay, delay)
    return Within(
        times=(_columns(left), _columns(right)),
        lower_us=microseconds(lower, "within: lower"),
        upper_us=microseconds(upper, "within: upper"),
        delays_us=(_optional(pair[0], "within: delay"), _optional(pair[1], "within: delay")),
        idle_after_us=_optional(idle_after, "within: idle_after"),
    )


def tumbling(left: TimeColumns, right: TimeColumns, *, size: Duration) -> Tumbling:
    """Match pairs in the same window of `size` of event time."""
    return Tumbling((_columns(left), _columns(right)), _positive(size, "tumbling: size"))


def sliding(left: TimeColumns, right: TimeColumns, *, size: Duration, slide: Duration) -> Sliding:
    """Match pairs once per window of `size`, starting every `slide`, that holds both."""
    return Sliding(
        (_columns(left), _columns(right)),
        _positive(size, "sliding: size"),
        _positive(slide, "sliding: slide"),
    )


def _columns(columns: TimeColumns) -> tuple[str, ...]:
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names:
        raise InvalidRequest("a window needs an event-time column on each side")
    return names


def _optional(duration: Duration | None, what: str) -> int | None:
    return None if duration is None else microseconds(duration, what)


def _positive(duration: Duration, what: str) -> int:
    length = microseconds(duration, what)
    if length <= 0:
        raise InvalidRequest(f"{what} {duration!r} must be positive")
    return length
