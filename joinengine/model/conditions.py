"""Join conditions: which two tuples are a pair, apart from time.

`Equi`, `Band`, `Theta` and `AsOf` are what a user writes; `Distance` and `Predicate` are the same
in terms of the columns of the inputs. `AsOf` does depend on time: it takes the nearest right tuple.
`Multiway` is what a chain of `Equi` on one key becomes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar

import pyarrow as pa

from joinengine.model.arguments import check_names, check_text, check_truth, kind_of
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Side
from joinengine.model.lateness import (
    Delays,
    Duration,
    check_length,
    lateness,
    optional_length,
)
from joinengine.model.named import one_of

Columns = str | list[str] | tuple[str, ...]
#: A bound of numbers, or of dates and times.
Bound = int | float | Decimal | timedelta

_NAME = r"(?:(left|right)\.)?([a-z_]\w*)"
_EQUALITY = re.compile(rf"{_NAME}\s*={{1,2}}\s*{_NAME}", re.IGNORECASE)


class Floats(StrEnum):
    """What to do about floating-point keys: refuse them, or compare them as Spark does.

    Normalised, -0.0 equals 0.0, and all NaN are one value.
    """

    REFUSED = "refused"
    NORMALISED = "normalised"


@dataclass(frozen=True, slots=True)
class Equi:
    """left[i] = right[i] for every i. With `using` the two are one output column, as in SQL."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    using: bool = False
    floats: Floats = Floats.REFUSED


@dataclass(frozen=True, slots=True)
class Band:
    """lower <= right - left <= upper; None: that end is open. `equal`: columns to be equal too."""

    left: str
    right: str
    lower: Bound | None
    upper: Bound | None
    equal: Equi | None = None


@dataclass(frozen=True, slots=True)
class Theta:
    """Any SQL predicate over `left.` and `right.` columns."""

    predicate: str

    @property
    def equated(self) -> tuple[str, str] | None:
        """Left and right column, if the predicate is an equality of two; else None.

        >>> Theta("right.b = left.a").equated, Theta("a < b").equated
        (('a', 'b'), None)
        """
        match = _EQUALITY.fullmatch(self.predicate.strip())
        if match is None:
            return None
        side, column, other_side, other_column = match.groups()
        swapped = "right" in (side or "").lower() or "left" in (other_side or "").lower()
        return (other_column, column) if swapped else (column, other_column)


class Direction(StrEnum):
    """Where the nearest right tuple may lie: before the left tuple, after it, or both."""

    BACKWARD = "backward"
    FORWARD = "forward"
    NEAREST = "nearest"


@dataclass(frozen=True, slots=True)
class AsOf:
    """Of the right tuples with the keys `by`, the one nearest in time to a left tuple.

    `times`: per side the event-time column. Without one on the left (`is_latest`), a left tuple
    meets the right tuple of greatest time that was there before its batch; without any, the one
    that was read last. `tolerance_us`: the greatest distance in time; None: any. `strict`: a right
    tuple of the same time does not match. The other fields are as in `Within`.
    """

    times: tuple[tuple[str, ...], tuple[str, ...]]
    by: Equi
    direction: Direction = Direction.BACKWARD
    tolerance_us: int | None = None
    strict: bool = False
    delays_us: Delays = (None, None)
    idle_after_us: int | None = None
    #: no bound against the clock
    ahead_us: ClassVar[int | None] = None

    @property
    def is_latest(self) -> bool:
        """Whether a left tuple meets the newest right tuple, whatever its own time."""
        return not self.times[Side.LEFT]

    @property
    def reach_us(self) -> int | None:
        """How long after a left tuple's time a right tuple may be the nearest; None: any time."""
        return 0 if self.direction is Direction.BACKWARD else self.tolerance_us


@dataclass(frozen=True, slots=True)
class Multiway:
    """Equal keys on several sides. `keys`: per side, its key columns. Users do not write it."""

    keys: tuple[tuple[str, ...], ...]


Condition = Equi | Band | Theta | AsOf | Multiway


def meets_at_homes(condition: Condition) -> bool:
    """Whether a left tuple must meet all other tuples of its key where it is stored."""
    return isinstance(condition, (AsOf, Multiway))


def equi(left: Columns, right: Columns, *, floats: str = "refused") -> Equi:
    """Match equal values of `left` and `right`; lists make a composite key.

    `floats`: "normalised" allows `float` and `double` keys. Then -0.0 equals 0.0, and NaN equals
    NaN, as in Spark. Raises InvalidRequest if the lists are empty or differ in length.

    >>> equi("o_orderkey", "l_orderkey").left
    ('o_orderkey',)
    """
    lefts, rights = (check_names(columns, "equi", "equi('a', 'b')") for columns in (left, right))
    if len(lefts) != len(rights) or not lefts:
        raise InvalidRequest(
            f"equi: {len(lefts)} left columns {lefts} and {len(rights)} right columns {rights}; "
            "give the same number on each side"
        )
    return Equi(lefts, rights, floats=one_of(Floats, floats, "equi: floats"))


def band(
    left: str,
    right: str,
    *,
    lower: Bound | str | None = None,
    upper: Bound | str | None = None,
) -> Band:
    """Match pairs with lower <= right - left <= upper; an absent bound is open.

    `lower`, `upper`: numbers, or for dates and timestamps durations (`"10 seconds"` or a
    timedelta). Raises InvalidRequest if lower is above upper, if there is no bound, or if a bound
    is neither a finite number nor a duration.

    >>> band("a", "b", lower="-1 minute", upper="0 s").lower
    datetime.timedelta(days=-1, seconds=86340)
    """
    for column in (left, right):
        check_text(column, "band: a column", "band('a', 'b', lower=0)")
    bounds = _bound("lower", lower), _bound("upper", upper)
    if bounds == (None, None):
        raise InvalidRequest("band: neither lower nor upper is given; give at least one")
    low, high = bounds
    if low is not None and high is not None:
        if isinstance(low, timedelta) is not isinstance(high, timedelta):
            raise InvalidRequest(
                f"band: lower {lower!r} and upper {upper!r} mix a duration and a number; give two "
                "durations or two numbers"
            )
        if low > high:  # type: ignore[operator]
            raise InvalidRequest(f"band: lower {lower} is above upper {upper}; swap them")
    return Band(left, right, low, high)


def _bound(name: str, bound: Bound | str | None) -> Bound | None:
    if isinstance(bound, str):
        try:
            return timedelta(microseconds=microseconds(bound, f"band: {name}"))
        except InvalidRequest as error:
            raise InvalidRequest(
                f"{error}; if the columns hold numbers, give a number, such as {name}=5"
            ) from None
        except OverflowError:
            raise InvalidRequest(
                f"band: {name} {bound!r} is longer than the distance between any two dates; leave "
                "it out for an open end"
            ) from None
    if bound is None or isinstance(bound, timedelta):
        return bound
    number = isinstance(bound, (int, float, Decimal)) and not isinstance(bound, bool)
    # An integer of any length is finite, also one that no double holds.
    if not number or not (isinstance(bound, int) or Decimal(bound).is_finite()):
        raise InvalidRequest(
            f"band: {name} {bound!r} is not a finite number; leave it out for an open end"
        )
    return bound


def theta(predicate: str) -> Theta:
    """Match pairs for which an SQL predicate is true, such as 'left.a < right.b'.

    It may use all functions of docs/predicates.md. Raises InvalidRequest for an empty predicate.
    """
    if not check_text(predicate, "theta", "theta('left.a < b')").strip():
        raise InvalidRequest("theta: the predicate is empty; give one, for example 'left.a < b'")
    return Theta(predicate)


def asof(  # noqa: PLR0913 # each is an option by its name
    left_time: str,
    right_time: str,
    *,
    by: Equi | Columns | None = None,
    direction: str = "backward",
    tolerance: Duration | None = None,
    strict: bool = False,
    delay: Duration | tuple[Duration, Duration] | None = None,
    idle_after: Duration | None = None,
) -> AsOf:
    """Match each left row with the one right row that is nearest in event time.

    `by`: the keys that must be equal: `equi(..)`, or names that both sides have; None: no keys.
    `direction`: "backward" takes the newest right row that is not after the left row, "forward" the
    earliest that is not before it, "nearest" the closer of the two, or the earlier if both are
    equally close. Of several right rows with that time, the one read last counts. `tolerance`: how
    far away a right row may be; None: any distance. `strict`: right rows of the same time do not
    match. `delay`, `idle_after`: as for `within`.

    Raises InvalidRequest for an unknown direction, and for a length that is negative or exceeds
    64-bit integers.

    >>> asof("paid", "quoted", by="item", tolerance="1 hour").tolerance_us
    3600000000
    """
    for column in (left_time, right_time):
        check_text(column, "asof: a time column", "asof('l_ts', 'r_ts', by='k')")
    keys = _keys_of(by)
    tolerance_us = optional_length(tolerance, "asof: tolerance")
    if tolerance_us is not None and tolerance_us < 0:
        raise InvalidRequest(f"asof: tolerance {tolerance!r} is negative; use 0 or more")
    check_length("asof: tolerance", tolerance_us or 0)
    late = lateness("asof", delay, idle_after, None)
    return AsOf(
        times=((left_time,), (right_time,)),
        by=keys,
        direction=one_of(Direction, direction, "asof: direction"),
        tolerance_us=tolerance_us,
        strict=check_truth(strict, "asof: strict"),
        delays_us=late.delays_us,
        idle_after_us=late.idle_after_us,
    )


def _keys_of(by: Equi | Columns | None) -> Equi:
    """The keys that `by` of an as-of join means."""
    if by is None:
        return Equi((), ())
    if isinstance(by, Equi):
        return by
    names = check_names(by, "asof: by", "by='k', or by=equi('a', 'b')")
    if not names:
        raise InvalidRequest("asof: by names no columns; leave it out for a join without keys")
    return Equi(names, names, using=True)


def condition(on: Condition | Columns | Sequence[Condition]) -> Condition:
    """The condition that the argument `on` means; names alone mean USING.

    A list of an `equi` and a `band` is a band with equality columns. Raises InvalidRequest for
    other lists.

    >>> condition("k") == Equi(("k",), ("k",), using=True)
    True
    """
    if isinstance(on, (Equi, Band, Theta, AsOf, Multiway)):
        return on
    _check_on(on)
    parts = (on,) if isinstance(on, str) else tuple(on)
    if parts and not any(isinstance(part, str) for part in parts):
        bands = [part for part in parts if isinstance(part, Band)]
        equis = [part for part in parts if isinstance(part, Equi)]
        if len(bands) != 1 or len(equis) != 1 or len(parts) != 2:
            raise InvalidRequest(
                f"on: {len(parts)} conditions, {len(equis)} of them equi and {len(bands)} band; "
                "give one condition, or one equi and one band, and put the rest into where="
            )
        return replace(bands[0], equal=equis[0])
    names = check_names(on, "on", "on='k', or on=equi('a', 'b')")
    if not names:
        raise InvalidRequest("on: no columns are named")
    return Equi(names, names, using=True)


def _check_on(on: Any) -> None:
    """Refuse an argument meant for another join, with advice on what to write here."""
    if type(on).__name__ == "Column":
        raise InvalidRequest(
            "on: joinengine cannot read a Spark Column; write equi('a', 'b') for a = b, "
            "band(...) for a difference, or theta('...') with the condition as text"
        )
    pairs = on if isinstance(on, (list, tuple)) else ()
    if pairs and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        left, right = ([pair[side] for pair in pairs] for side in PAIR)
        ours = (left[0], right[0]) if len(pairs) == 1 else (left, right)
        raise InvalidRequest(f"on: {on!r} are pairs; write equi({ours[0]!r}, {ours[1]!r})")
    if not isinstance(on, (str, list, tuple)):
        raise InvalidRequest(
            f"on: {kind_of(on)} is not a condition; write on='k' for a column of both sides, "
            "equi('a', 'b'), band(...), theta('...') or asof(...)"
        )


def equality(on: Condition) -> Equi:
    """The equality columns of a condition; empty if it has none."""
    none = Equi((), ())
    match on:
        case Equi():
            return on
        case Band():
            return on.equal or none
        case Theta():
            return none
        case AsOf():
            return on.by
        case Multiway():
            return Equi(on.keys[0], on.keys[1])


@dataclass(frozen=True, slots=True)
class Distance:
    """The bounds of right - left in the units of the columns; None: open.

    `scale`: the digits after the point of decimals, whose last digit is the unit. `floating`:
    whether bounds are doubles; else they are 64-bit integers (dates in days, timestamps in
    microseconds).
    """

    left: str
    right: str
    lower: float | None
    upper: float | None
    scale: int = 0
    floating: bool = False

    @property
    def is_bounded(self) -> bool:
        """Whether both bounds are given; if not, every tuple of the key is a candidate."""
        return self.lower is not None and self.upper is not None

    def column(self, side: Side) -> str:
        """The column of a side."""
        return self.left if side is Side.LEFT else self.right


@dataclass(frozen=True, slots=True)
class Predicate:
    """A predicate as it was written (`text`), and as `sql` over pairs of `columns` c0, c1, ..

    `zone`: the time zone in which instants have dates and hours.
    """

    text: str
    sql: str
    columns: tuple[tuple[Side, str], ...]
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Computed:
    """Column `name`, of type `kind`: the expression `text`; other fields as in `Predicate`."""

    name: str
    text: str
    sql: str
    columns: tuple[tuple[Side, str], ...]
    kind: pa.DataType
    zone: str = "UTC"
