"""Comparisons that bound the distance of two columns: `f.ts BETWEEN w.ts - INTERVAL 1 HOUR AND ..`.

Law: a comparison becomes a bound only if the bound means exactly the same. A comparison of floats
must be written as a difference, since `a <= b + 0.1` and `a - b <= 0.1` round differently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from joinengine.api.sql_package import exp
from joinengine.api.sql_streams import Key
from joinengine.api.sql_text import bare, called
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Side

_DAY_US = 86_400_000_000
#: A number with its sign and its unit.
_PARTS = re.compile(r"[+-]?\s*[\d.]+\s*[a-z]+\s*")
#: Comparison -> whether the sides change places, and whether equal values fail it.
_COMPARISONS = {
    **{exp.LTE: (False, False), exp.LT: (False, True)},
    **{exp.GTE: (True, False), exp.GT: (True, True)},
}
#: Columns that stand for one value: the latest of them.
Columns = tuple[Key, ...]
Keyed = Callable[[Any], Key | None]


class Sum(NamedTuple):
    """Terms with their signs, a number and a length of time, all added up; see `sum_of`."""

    terms: dict[Columns, int]
    number: Decimal = Decimal(0)
    length_us: int = 0
    has_interval: bool = False

    def plus(self, other: Sum, sign: int = 1) -> Sum:
        """The sum of two; `sign` -1: their difference.

        A column that cancels stays, with factor 0, because it still makes the sum NULL.
        """
        terms = dict(self.terms)
        for columns, times in other.terms.items():
            terms[columns] = terms.get(columns, 0) + sign * times
        return Sum(
            terms,
            self.number + sign * other.number,
            self.length_us + sign * other.length_us,
            self.has_interval or other.has_interval,
        )


class Bound(NamedTuple):
    """The least or the greatest `right - left` of two columns; of times in microseconds."""

    left: Columns
    right: Columns
    limit: Decimal
    is_upper: bool
    has_interval: bool


class Part(NamedTuple):
    """A condition as text, and the bounds that it gives; none if it is about something else."""

    text: str
    bounds: tuple[Bound, ...] = ()


def interval_us(node: Any) -> int | None:
    """The length of an INTERVAL in microseconds; None: no INTERVAL, or no fixed length."""
    if not isinstance(node, exp.Interval) or node.this is None:
        return None
    unit = node.args.get("unit")
    words = f"{node.this.name} {'' if unit is None else unit.name}".strip().lower()
    parts = _PARTS.findall(words)  # in SQL a sign belongs to its unit alone
    try:
        if "".join(parts) == words:
            return sum(map(microseconds, parts))
        return microseconds(words)
    except InvalidRequest:
        return None


def sum_of(node: Any, keyed: Keyed) -> Sum | None:
    """The sum that an expression of columns, constants, + and - is; None: another expression."""
    node = bare(node)
    if isinstance(node, exp.Neg):
        inner = sum_of(node.this, keyed)
        return None if inner is None else Sum({}).plus(inner, -1)
    if not isinstance(node, (exp.Add, exp.Sub)):
        return _term(node, keyed)
    left, right = sum_of(node.this, keyed), sum_of(node.expression, keyed)
    if left is None or right is None:
        return None
    return left.plus(right, 1 if isinstance(node, exp.Add) else -1)


def _term(node: Any, keyed: Keyed) -> Sum | None:
    if (key := keyed(node)) is not None:
        return Sum({(key,): 1})
    if isinstance(node, exp.Literal) and not node.is_string:
        # A number with an exponent is a double, so that the sum would be computed in doubles.
        return None if "e" in node.name.lower() else Sum({}, Decimal(node.name))
    if (length := interval_us(node)) is not None:
        return Sum({}, length_us=length, has_interval=True)
    keys = (
        [keyed(argument) for argument in node.expressions] if called(node) == "greatest" else [None]
    )
    return None if None in keys else Sum({tuple(key for key in keys if key): 1})


@dataclass(frozen=True)
class BoundReader:
    """Reads the conditions of a join of two sides.

    `keyed`: an expression -> its Key, if it is a column. `spelled`: an expression as text. `side`:
    the side that columns are of; None: of both. `kind`: the type of columns.
    """

    keyed: Keyed
    spelled: Callable[[Any], str]
    side: Callable[[Columns], Side | None]
    kind: Callable[[Columns], pa.DataType]

    def parts(self, node: Any) -> list[Part]:
        """The parts of a condition: two for BETWEEN, else one."""
        inner, whole = bare(node), Part(self._braced(node))
        if isinstance(inner, exp.Between) and not inner.args.get("symmetric"):
            value, low, high = inner.this, inner.args["low"], inner.args["high"]
            least, most = self._bounds(low, value), self._bounds(value, high)
            if not (least or most):
                return [whole]
            text, ends = self.spelled(value), (self.spelled(low), self.spelled(high))
            return [Part(f"{text} >= {ends[0]}", least), Part(f"{text} <= {ends[1]}", most)]
        if type(inner) not in _COMPARISONS:
            return [whole]
        swapped, strict = _COMPARISONS[type(inner)]
        pair = (inner.expression, inner.this) if swapped else (inner.this, inner.expression)
        return [whole._replace(bounds=self._bounds(*pair, strict=strict))]

    def _braced(self, node: Any) -> str:
        text = self.spelled(node)
        return f"({text})" if isinstance(node, exp.Or) else text

    def _bounds(self, low: Any, high: Any, *, strict: bool = False) -> tuple[Bound, ...]:
        """The bounds that low <= high gives, or with `strict` low < high."""
        inner = bare(low)
        size = inner.expressions[0] if called(inner) == "abs" else low
        least, most = sum_of(size, self.keyed), sum_of(high, self.keyed)
        if least is None or most is None or (size is not low and most.terms):
            return ()
        sums = [least.plus(most, -1)]
        if size is not low:
            sums.append(Sum({}).plus(least, -1).plus(most, -1))
        is_difference = _is_plain(size if least.terms else high) and not (
            least.terms and most.terms
        )
        bounds = [self._bound(total, strict=strict, is_difference=is_difference) for total in sums]
        return tuple(bound for bound in bounds if bound is not None) if None not in bounds else ()

    def _bound(self, total: Sum, *, strict: bool, is_difference: bool) -> Bound | None:
        """The bound that `total` <= 0 gives, or with `strict` `total` < 0; None: no bound."""
        signs = {self.side(columns): (columns, times) for columns, times in total.terms.items()}
        if signs.keys() != set(PAIR) or len(total.terms) != len(PAIR):
            return None
        (left, less), (right, more) = signs[Side.LEFT], signs[Side.RIGHT]
        if {less, more} != {-1, 1}:
            return None
        kinds = [self.kind(columns) for columns in (left, right)]
        distance = _distance(kinds, total, is_difference=is_difference)
        if distance is None:
            return None
        constant, unit = distance
        if strict:
            if unit is None:
                return None
            # The least distance above it, or the greatest below: both as `total` + unit <= 0.
            constant = math.floor(constant / unit) * unit + unit
        return Bound(left, right, -constant if more > 0 else constant, more > 0, total.has_interval)


def _is_plain(node: Any) -> bool:
    """Whether an expression is the difference of two columns and nothing else."""
    return len([*node.find_all(exp.Column)]) == len(PAIR) and node.find(exp.Literal) is None


def _distance(
    kinds: list[pa.DataType], total: Sum, *, is_difference: bool
) -> tuple[Decimal, Decimal | None] | None:
    """The constant of a sum in the unit of its columns, and the least step; None: no bound.

    Both are in microseconds for times. Without a least step, < cannot become <=.
    """
    if all(map(pa.types.is_timestamp, kinds)):
        # How far an instant and a time without zone are apart depends on the zone.
        alike = len({kind.tz is None for kind in kinds}) == 1
        return None if total.number or not alike else (Decimal(total.length_us), Decimal(1))
    if all(map(pa.types.is_date, kinds)):
        length_us = total.number * _DAY_US + total.length_us
        return None if length_us % _DAY_US else (length_us, Decimal(_DAY_US))
    if total.has_interval:
        return None
    if all(map(pa.types.is_integer, kinds)):
        return total.number, Decimal(1)
    if all(map(pa.types.is_decimal, kinds)):
        return total.number, None
    floats = all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds)
    return (total.number, None) if floats and is_difference else None
