"""Which types of columns a join can compare, and the band in their units."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal

import pyarrow as pa

from joinengine.kernels.hashing import hash_columns
from joinengine.model.columns import MOST_DIGITS, as_timestamp, of_side, wider
from joinengine.model.conditions import Band, Bound, Distance, Floats
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Side

#: Bounds are 64-bit integers that can be negated; those of decimals count their last digits.
_FARTHEST = (1 << 63) - 1
_MOST_DIGITS = 18


def is_hashed(kind: pa.DataType) -> bool:
    """Whether values of a type have a hash, which nested ones lack."""
    try:
        hash_columns([pa.array([], kind)])
    except InvalidRequest:
        return False
    return True


def check_equality(left: pa.Field, right: pa.Field, floats: Floats = Floats.REFUSED) -> None:
    """Raise InvalidRequest unless two columns can be compared for equality."""
    for side, field in zip(PAIR, (left, right), strict=True):
        said = f"on: {field.name}{of_side(side)} is {field.type}"
        if pa.types.is_floating(field.type) and floats is Floats.REFUSED:
            helps = wider(left.type, right.type) is not None
            other = (
                f", or write equi({left.name!r}, {right.name!r}, floats='normalised') or "
                f"--floats normalised to compare as Spark does"
            )
            raise InvalidRequest(
                f"{said}, but floating-point keys are refused: equal numbers may have different "
                f"bits. Cast the key to decimal or integer{other if helps else ''}"
            )
        if pa.types.is_nested(field.type) or pa.types.is_null(field.type):
            raise InvalidRequest(
                f"{said}, which cannot be a join key; join on text, numbers, dates or times"
            )
    if wider(left.type, right.type) is not None:
        return
    said = f"{left.name}{of_side(Side.LEFT)} is {left.type} and {right.name}"
    said = f"on: {said}{of_side(Side.RIGHT)} is {right.type}"
    if all(
        pa.types.is_integer(field.type) or pa.types.is_decimal(field.type)
        for field in (left, right)
    ):
        raise InvalidRequest(
            f"{said}; to compare them takes more than {MOST_DIGITS} digits. Cast them to decimals "
            f"with fewer digits"
        )
    raise InvalidRequest(
        f"{said}, which cannot be compared; cast one of them, a number to text, say"
    )


def distance(on: Band, left: pa.Field, right: pa.Field) -> Distance:
    """The bounds of a band in the units of its columns.

    Raises InvalidRequest for types that cannot be subtracted from each other, and for bounds that
    no difference of these types can have.
    """
    kinds = [left.type, right.type]
    said = f"{left.name} is {left.type} and {right.name} is {right.type}"
    if kinds[0] == kinds[1] and (pa.types.is_timestamp(kinds[0]) or pa.types.is_date32(kinds[0])):
        unit_us = 1 if pa.types.is_timestamp(kinds[0]) else 86_400_000_000
        units = [_whole_units(bound, unit_us, said) for bound in (on.lower, on.upper)]
        return Distance(on.left, on.right, units[0], units[1])
    lower, upper = (_number(bound, said) for bound in (on.lower, on.upper))
    if all(map(pa.types.is_integer, kinds)):
        return _in_last_digits(on, lower, upper, 0)
    if all(map(pa.types.is_decimal, kinds)):
        scale = max(kind.scale for kind in kinds)
        if any(kind.precision + scale - kind.scale > _MOST_DIGITS for kind in kinds):
            raise InvalidRequest(
                f"band: decimals may have at most {_MOST_DIGITS} digits, but {said}; cast them"
            )
        return _in_last_digits(on, lower, upper, scale)
    if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
        low, high = (None if bound is None else float(bound) for bound in (lower, upper))
        if any(end is not None and math.isinf(end) for end in (low, high)):
            raise InvalidRequest(
                f"band: {lower} to {upper} exceeds the range of double ({said}); leave that end "
                f"open"
            )
        return Distance(on.left, on.right, low, high, floating=True)
    raise InvalidRequest(
        f"band: both columns must be integers, decimals, floats, dates or timestamps, but {said}; "
        f"cast them"
    )


def _whole_units(bound: Bound | None, unit_us: int, said: str) -> int | None:
    """A duration in days or microseconds."""
    if bound is None:
        return None
    if not isinstance(bound, timedelta):
        raise InvalidRequest(
            f"band: expected a duration such as '10 days' as bound, found {bound} ({said})"
        )
    whole, rest = divmod(bound, timedelta(microseconds=unit_us))
    if rest:
        raise InvalidRequest(
            f"band: expected whole days, found {bound} ({said}). Write whole days, or cast both "
            f"columns to timestamp"
        )
    if abs(whole) > _FARTHEST:
        raise InvalidRequest(
            f"band: {bound} exceeds 64 bits of microseconds ({said}); leave that end open"
        )
    return whole


def _number(bound: Bound | None, said: str) -> Decimal | None:
    if bound is None:
        return None
    if isinstance(bound, timedelta):
        raise InvalidRequest(
            f"band: expected a number as bound, found the duration {bound} ({said}). Give "
            f"a number, or cast both columns to date or timestamp"
        )
    return Decimal(str(bound))


def _in_last_digits(on: Band, lower: Decimal | None, upper: Decimal | None, scale: int) -> Distance:
    """The bounds in units of the last digit, rounded inwards: differences are whole in them."""
    low = None if lower is None else math.ceil(lower.scaleb(scale))
    high = None if upper is None else math.floor(upper.scaleb(scale))
    if any(end is not None and abs(end) > _FARTHEST for end in (low, high)):
        raise InvalidRequest(
            f"band: {lower} to {upper} exceeds 64-bit integers; leave that end open"
        )
    return Distance(on.left, on.right, low, high, scale)


def check_time(field: pa.Field, name: str) -> None:
    """Raise InvalidRequest unless a column can be event time; `name`: the function it is for."""
    if not pa.types.is_timestamp(field.type):
        raise InvalidRequest(
            f"{name}: event time must be a timestamp, but {field.name} is {field.type}; "
            f"{as_timestamp(field)}"
        )
