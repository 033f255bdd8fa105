"""Join conditions: what makes two tuples a pair, apart from time.

`equi` is served today. `band` and `theta` are nouns already, so that everything that handles a
condition has their place; a join refuses them by name until their kernels are there.
"""

from __future__ import annotations

from dataclasses import dataclass

from joinengine.model.errors import InvalidRequest

Columns = str | list[str] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Equi:
    """left[i] = right[i] for every i. With `using` the two are one output column, as in SQL."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    using: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """lower <= right - left <= upper; None: open on that end."""

    left: str
    right: str
    lower: float | None
    upper: float | None


@dataclass(frozen=True, slots=True)
class Theta:
    """Any SQL predicate over `left.` and `right.` columns."""

    predicate: str


Condition = Equi | Band | Theta


def equi(left: Columns, right: Columns) -> Equi:
    """Equal values in `left` and `right`; lists make a composite key.

    Raises InvalidRequest where the lists are empty or of different length.

    >>> equi("o_orderkey", "l_orderkey").left
    ('o_orderkey',)
    """
    lefts, rights = _names(left), _names(right)
    if len(lefts) != len(rights) or not lefts:
        raise InvalidRequest(
            f"equi: {len(lefts)} left columns {lefts} against {len(rights)} right columns "
            f"{rights}; give as many on each side"
        )
    return Equi(lefts, rights)


def band(left: str, right: str, *, lower: float | None = None, upper: float | None = None) -> Band:
    """Lower <= right - left <= upper; an absent bound is open.

    Raises InvalidRequest for lower above upper or no bound at all.
    """
    if lower is None and upper is None:
        raise InvalidRequest("band: neither lower nor upper is given; give at least one")
    if lower is not None and upper is not None and lower > upper:
        raise InvalidRequest(f"band: lower {lower} is above upper {upper}; swap them")
    return Band(left, right, lower, upper)


def theta(predicate: str) -> Theta:
    """Any SQL predicate over `left.` and `right.` columns."""
    if not predicate.strip():
        raise InvalidRequest("theta: the predicate is empty")
    return Theta(predicate)


def condition(on: Condition | Columns) -> Condition:
    """What the user wrote as `on`, as a condition; names alone mean USING.

    >>> condition("k")
    Equi(left=('k',), right=('k',), using=True)
    """
    if isinstance(on, (Equi, Band, Theta)):
        return on
    names = _names(on)
    if not names:
        raise InvalidRequest("on: no columns are named")
    return Equi(names, names, using=True)


def _names(columns: Columns) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)
