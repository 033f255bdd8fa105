"""Checks of the kinds of arguments, so that a wrong one is refused where it is written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

from joinengine.model.errors import InvalidRequest


def check_text(value: Any, what: str, example: str) -> str:
    """`value` if it is a text. Raises InvalidRequest, with an `example`, if it is not."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{what}: {kind_of(value)} is not text; write for example {example}")
    return value


def check_names(value: Any, what: str, example: str) -> tuple[str, ...]:
    """One name or several as a tuple. Raises InvalidRequest, with an `example`, for others."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise InvalidRequest(
            f"{what}: {kind_of(value)} is not a column name or a list of names; write for example "
            f"{example}"
        )
    return tuple(names)


def check_count(value: Any, what: str) -> int:
    """`value` if it is a whole number, not True or 4.0. Raises InvalidRequest for others."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidRequest(f"{what}: {kind_of(value)} is not a whole number; write for example 8")
    return int(value)


def check_number(value: Any, what: str) -> float:
    """`value` if it is a number, not True. Raises InvalidRequest for others."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number:
        raise InvalidRequest(f"{what}: {kind_of(value)} is not a number; write for example 0.5")
    return value if isinstance(value, int | float) else float(value)


def check_timeout(value: Any, what: str) -> float:
    """`value` as seconds, if it is a number but not NaN. Raises InvalidRequest for others."""
    seconds = check_number(value, what)
    if math.isnan(seconds):
        raise InvalidRequest(f"{what}: NaN is no length of time; give seconds, or None")
    return seconds


def check_truth(value: Any, what: str) -> bool:
    """`value` if it is True or False. Raises InvalidRequest for others."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{what}: {kind_of(value)} is not a boolean; write True or False")
    return value


def check_one_of(value: Any, kinds: Iterable[type], what: str, example: str) -> None:
    """Raise InvalidRequest, with an `example`, unless `value` is of one of `kinds`."""
    if not isinstance(value, tuple(kinds)):
        raise InvalidRequest(
            f"{what}: {kind_of(value)} has the wrong type; write for example {example}"
        )


def kind_of(value: Any) -> str:
    """A value and its type in words; long values are cut.

    >>> kind_of(5), kind_of(None), kind_of(float)
    ('5 (int)', 'None', 'the class float')
    """
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
