"""Durations as Spark users write them, in microseconds of event time.

>>> microseconds("175 minutes")
10500000000
>>> microseconds("-1 hour 30 minutes"), microseconds("250ms")
(-5400000000, 250000)
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

from joinengine.model.errors import InvalidRequest

_UNITS = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "sec": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "m": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 604_800_000_000,
    "w": 604_800_000_000,
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")
_NOT_FIXED = re.compile(r"\b(month|quarter|year)s?\b")
_MICROSECOND = timedelta(microseconds=1)


def microseconds(duration: str | timedelta, what: str = "") -> int:
    """The length of `duration` in microseconds; a leading minus makes all of it negative.

    Raises InvalidRequest if the text has no unit, or a unit without a fixed length (months, years);
    `what` names the argument in the message; empty: the caller adds the name.
    """
    if isinstance(duration, timedelta):
        return duration // _MICROSECOND
    text = str(duration).strip().lower().removeprefix("interval").strip()
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("+-").strip()
    total, end = Fraction(), 0
    while match := _PART.match(text, end):
        unit = match[2] if match[2] in _UNITS else match[2].removesuffix("s")
        if unit not in _UNITS:
            break
        total += Fraction(match[1]) * _UNITS[unit]
        end = match.end()
    if end == 0 or end != len(text):
        named = f"{what} {duration!r}".lstrip()
        if _NOT_FIXED.search(text):
            raise InvalidRequest(
                f"{named}: months and years have no fixed length; give days, such as '30 days'"
            )
        raise InvalidRequest(
            f"{named} is not a duration; write a number and a unit, "
            f"such as '10 seconds' or '-1 hour 30 minutes'"
        )
    return sign * round(total)


def describe(length_us: int) -> str:
    """A short but exact text for a length in microseconds; accounts of queries contain it.

    >>> describe(180_000_000), describe(-5_400_000_000), describe(0), describe(250_000)
    ('180 s', '-90 min', '0 s', '0.25 s')
    >>> describe(239_999_999), describe(1_728_001_000_000)
    ('239.999999 s', '1728001 s')
    """
    for size, name in ((3_600_000_000, "h"), (60_000_000, "min")):
        if length_us % size == 0 and abs(length_us) >= 5 * size:
            return f"{length_us // size} {name}"
    short, exact = f"{length_us / 1_000_000:g}", Decimal(length_us).scaleb(-6).normalize()
    return f"{short if Decimal(short) == exact else f'{exact:f}'} s"


def describe_about(length_us: float) -> str:
    """A short text for a measured length in microseconds, to three digits or to its unit.

    >>> describe_about(2.0004e9), describe_about(1.5e12), describe_about(123_456_789.0)
    ('33 min', '417 h', '123 s')
    >>> describe_about(1_234_567.0), describe_about(0.0)
    ('1.23 s', '0 s')
    """
    for least, unit in ((108_000_000_000, 3_600_000_000), (1_800_000_000, 60_000_000)):
        if length_us >= least:
            return describe(round(length_us / unit) * unit)
    if length_us >= 100_000_000:
        return describe(round(length_us / 1_000_000) * 1_000_000)
    return f"{length_us / 1_000_000:.3g} s"
