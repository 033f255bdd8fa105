"""The arguments that windows of all kinds share: event-time columns, lengths, and lateness."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from joinengine.model.arguments import check_names
from joinengine.model.durations import describe, microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR

Duration = str | timedelta
TimeColumns = str | tuple[str, ...] | list[str]
Delays = tuple[int | None, ...]
#: The greatest length, in microseconds: all of 64-bit time.
LONGEST_US = (1 << 63) - 1


class Lateness(NamedTuple):
    """Per side how late a tuple may be; when a side is idle; how far a tuple may be ahead."""

    delays_us: Delays = (None, None)
    idle_after_us: int | None = None
    ahead_us: int | None = None

    def check(self, name: str) -> None:
        """Raise InvalidRequest for impossible lengths; `name`: the function that was called."""
        for delay in self.delays_us:
            if delay is not None and delay < 0:
                raise InvalidRequest(f"{name}: delay {describe(delay)} is negative; use 0 or more")
            check_length(f"{name}: delay", delay or 0)
        idle, ahead = self.idle_after_us, self.ahead_us
        check_length(f"{name}: idle_after", idle or 0)
        if idle is not None and idle <= 0:
            raise InvalidRequest(f"{name}: idle_after {describe(idle)} must be positive")
        check_length(f"{name}: max_ahead", ahead or 0)
        if ahead is not None and ahead < 0:
            raise InvalidRequest(f"{name}: max_ahead {describe(ahead)} is negative; use 0 or more")


def lateness(
    name: str,
    delay: Duration | tuple[Duration, Duration] | None,
    idle_after: Duration | None,
    max_ahead: Duration | None,
) -> Lateness:
    """The arguments of the function `name`, as lengths; `delay`: one value, or (left, right)."""
    if isinstance(delay, tuple) and len(delay) != len(PAIR):
        raise InvalidRequest(f"{name}: delay {delay!r} has {len(delay)} parts; give one or two")
    left, right = delay if isinstance(delay, tuple) else (delay, delay)
    checked = Lateness(
        (optional_length(left, f"{name}: delay"), optional_length(right, f"{name}: delay")),
        optional_length(idle_after, f"{name}: idle_after"),
        optional_length(max_ahead, f"{name}: max_ahead"),
    )
    checked.check(name)
    return checked


def time_columns(columns: TimeColumns) -> tuple[str, ...]:
    """The names of event-time columns, at least one."""
    names = check_names(columns, "a window", "within('left_time', 'right_time', upper='1 hour')")
    if not names:
        raise InvalidRequest("a window needs an event-time column on each side")
    return names


def check_length(what: str, length_us: int) -> None:
    """Raise InvalidRequest if a length is beyond 64-bit times."""
    if abs(length_us) > LONGEST_US:
        raise InvalidRequest(
            f"{what} {describe(length_us)} is too long: the limit is '106751991 days'; give less"
        )


def optional_length(duration: Duration | None, what: str) -> int | None:
    """The length of `duration`, if there is one."""
    return None if duration is None else microseconds(duration, what)


def positive_length(duration: Duration, what: str) -> int:
    """The length of `duration`, which must be above 0 and within 64-bit times."""
    length = microseconds(duration, what)
    if length <= 0:
        said = repr(duration) if isinstance(duration, str) else describe(length)
        raise InvalidRequest(f"{what} {said} must be positive")
    check_length(what, length)
    return length
