"""How late and how far ahead tuples may be: the arguments that all conditions on time share."""

from __future__ import annotations

from datetime import timedelta

from joinengine.model.durations import describe, microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side

Duration = str | timedelta
#: Per side, how far a tuple may lag behind the newest one; None: the input's own watermark.
Delays = tuple[int | None, int | None]
#: The greatest time and length, in microseconds.
INT_MAX = (1 << 63) - 1


def delays_of(delay: Duration | tuple[Duration, Duration] | None, name: str) -> Delays:
    """The delays of both sides; `name`: the function that they are given to."""
    if isinstance(delay, tuple) and len(delay) != len(Side):
        raise InvalidRequest(f"{name}: delay {delay!r} has {len(delay)} parts; give one or two")
    left, right = delay if isinstance(delay, tuple) else (delay, delay)
    return optional_us(left, f"{name}: delay"), optional_us(right, f"{name}: delay")


def check_lateness(
    name: str, delays_us: Delays, idle_after_us: int | None, ahead_us: int | None
) -> None:
    """Raise InvalidRequest for a negative delay or lead, and for a silence that is no time."""
    for delay in delays_us:
        if delay is not None and delay < 0:
            raise InvalidRequest(f"{name}: delay {describe(delay)} is negative; use 0 or more")
        check_length(f"{name}: delay", delay or 0)
    check_length(f"{name}: idle_after", idle_after_us or 0)
    if idle_after_us is not None and idle_after_us <= 0:
        raise InvalidRequest(f"{name}: idle_after {describe(idle_after_us)} must be positive")
    check_length(f"{name}: max_ahead", ahead_us or 0)
    if ahead_us is not None and ahead_us < 0:
        raise InvalidRequest(f"{name}: max_ahead {describe(ahead_us)} is negative; use 0 or more")


def check_length(what: str, length_us: int) -> None:
    """Raise InvalidRequest for a length beyond 64 bits of microseconds."""
    if abs(length_us) > INT_MAX:
        raise InvalidRequest(
            f"{what} {describe(length_us)} is too long: the limit is '106751991 days'; give less"
        )


def optional_us(duration: Duration | None, what: str) -> int | None:
    """A length in microseconds; None: none is given."""
    return None if duration is None else microseconds(duration, what)
