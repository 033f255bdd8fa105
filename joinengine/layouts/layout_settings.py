"""The settings of layouts: their meaning and source, the checks of values, and their text.

A choice is a dataclass whose fields are its settings. As text it is its name, or
`NAME:key=value,..` with the settings that are not the defaults: `mnrt:imbalance=0.02,base=ring`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from functools import partial
from typing import Any, NamedTuple

from joinengine.model.arguments import check_count, check_number, check_text, check_truth
from joinengine.model.errors import InvalidRequest

#: The type of a setting -> what checks a value.
_CHECKS: Mapping[str, Callable[[Any, str], Any]] = {
    "int": check_count,
    "float": check_number,
    "bool": check_truth,
    "str": partial(check_text, example="'modulo'"),
}
#: The type of a setting -> what reads it as text, and what a text must be.
_READS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": ({"true": True, "false": False}.__getitem__, "true or false"),
    "str": (str, "text"),
}
_NONE = "none"
_OURS = "ours"
_MEANING, _SOURCE, _NOT_TEXT, _WORDS = "meaning", "source", "not text", "words"
_RANGE = "range"


class Range(NamedTuple):
    """The values that a number may have; NaN is never one.

    `is_open`: `least` itself is excluded. `is_finite`: infinity is excluded. `hint`: how the error
    message ends.
    """

    least: float = 0
    most: float = math.inf
    is_open: bool = False
    is_finite: bool = False
    hint: str = ""

    def has(self, value: float) -> bool:
        """Whether a value is in the range."""
        is_above = value > self.least if self.is_open else value >= self.least
        return is_above and value <= self.most and not (self.is_finite and math.isinf(value))

    @property
    def words(self) -> str:
        """What a value must be, in words.

        >>> Range(1, 64).words, Range(1).words, Range(is_open=True).words, Range().words
        ('from 1 to 64', 'at least 1', 'above 0', '0 or more')
        """
        if self.is_open:
            return f"above {self.least:g}"
        if self.most < math.inf:
            return f"from {self.least:g} to {self.most:g}"
        if self.is_finite:
            return f"a number from {self.least:g} on"
        return f"at least {self.least:g}" if self.least else "0 or more"


#: Weights, which are multiplied.
FINITE = Range(is_finite=True)
#: Counts that are at least 1.
COUNT = Range(1)
#: The tolerated load, as a multiple of the best load: below 1, each batch would have a plan.
TOLERANCE = Range(1, is_finite=True)


class Setting(NamedTuple):
    """A setting as users see it.

    `default`: as text. `values`: the range of a number; empty: any value of its type. `source`: the
    paper that has it, or `ours`.
    """

    name: str
    default: str
    meaning: str
    source: str
    values: str


def setting(
    default: Any,
    meaning: str,
    source: str = _OURS,
    *,
    within: Range | None = None,
    not_text: str = "",
    words: tuple[str, ...] = (),
) -> Any:
    """A field of a choice. `source`: the paper that has it, by the names of docs/layouts.md.

    `within`: the range of its values, if they are numbers and some are refused.
    `not_text`: if it cannot be written as text, the reason. `words`: texts that are accepted beside
    values of its type.
    """
    about = {_MEANING: meaning, _SOURCE: source, _NOT_TEXT: not_text, _WORDS: words}
    return field(default=default, metadata={**about, _RANGE: within})


def settings_of(choice: type[Any] | Any) -> list[Setting]:
    """The settings that can be written after the name of a layout, in the order of its fields."""
    return [
        Setting(
            declared.name,
            _as_text(declared.default),
            declared.metadata.get(_MEANING, ""),
            declared.metadata.get(_SOURCE, _OURS),
            "" if (within := declared.metadata.get(_RANGE)) is None else within.words,
        )
        for declared in fields(choice)
        if not _why_not_text(declared)
    ]


def check_settings(choice: Any) -> None:
    """Raise InvalidRequest, naming the layout, for a setting of another type or out of its range.

    Numbers of NumPy become plain ones, which a manifest can hold.
    """
    for declared in fields(choice):
        value, words = getattr(choice, declared.name), declared.metadata.get(_WORDS, ())
        kind, is_open = _type_of(declared)
        if words and isinstance(value, str):
            if value not in words:
                raise _unfit(choice.name, declared, value)
        elif kind in _CHECKS and not (value is None and is_open):
            plain = _CHECKS[kind](value, f"{choice.name}: {declared.name}")
            object.__setattr__(choice, declared.name, plain)  # frozen, but still in the making
            within: Range | None = declared.metadata.get(_RANGE)
            if within is not None and not within.has(plain):
                words = f"{within.words}{', or None' * is_open}"
                raise InvalidRequest(
                    f"{choice.name}: {declared.name} must be {words}, found {plain}{within.hint}"
                )


def changed_settings(choice: Any, but: Iterable[str] = ()) -> str:
    """The settings that are not the defaults, as text after a colon; `but`: settings to omit.

    >>> from joinengine.layouts import Mnrt
    >>> changed_settings(Mnrt(imbalance=0.02)), changed_settings(Mnrt())
    (':imbalance=0.02', '')
    """
    changed = [
        f"{declared.name}={_as_text(getattr(choice, declared.name))}"
        for declared in fields(choice)
        if declared.name not in but
        and not _why_not_text(declared)
        and getattr(choice, declared.name) != declared.default
    ]
    return f":{','.join(changed)}" if changed else ""


def read_settings(kind: type[Any], layout: str, text: str) -> dict[str, Any]:
    """The settings of a class of choices from `key=value,..`; `layout`: its name, for messages.

    Raises InvalidRequest for an unknown setting, and for a text that is not a value of its setting.
    """
    known = {declared.name: declared for declared in fields(kind)}
    if not known:
        raise InvalidRequest(f"layout {layout} has no settings, found {text!r}")
    values = dict[str, Any]()
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value:
            first = settings_of(kind)[0]
            raise InvalidRequest(
                f"layout {layout}: expected settings such as {first.name}={first.default}, found "
                f"{part!r}"
            )
        if name not in known:
            names = ", ".join(shown.name for shown in settings_of(kind))
            raise InvalidRequest(f"layout {layout}: its settings are {names}; found {name!r}")
        if why := _why_not_text(known[name]):
            raise InvalidRequest(f"layout {layout}: {name} cannot be written as text: {why}")
        if name in values:
            raise InvalidRequest(f"layout {layout}: {name} is given twice")
        values[name] = _read(known[name], layout, value)
    return values


def _type_of(declared: Field[Any]) -> tuple[str, bool]:
    """The name of a field's type, without words that stand for values, and whether None fits."""
    kind, *others = str(declared.type).split(" | ")
    return kind, "None" in others


def _unfit(layout: str, declared: Field[Any], value: str) -> InvalidRequest:
    """The error for a text that is not a value of a setting."""
    kind, is_open = _type_of(declared)
    values = [_READS[kind][1], *declared.metadata.get(_WORDS, ())] + [_NONE] * is_open
    expected = " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))
    return InvalidRequest(f"layout {layout}: {declared.name} must be {expected}, found {value!r}")


def _why_not_text(declared: Field[Any]) -> str:
    kind, _ = _type_of(declared)
    return declared.metadata.get(_NOT_TEXT, "") or (
        "" if kind in _READS else f"it is a value of {kind}"
    )


def _read(declared: Field[Any], layout: str, value: str) -> Any:
    kind, is_open = _type_of(declared)
    if is_open and value == _NONE:
        return None
    if value in declared.metadata.get(_WORDS, ()):
        return value
    try:
        return _READS[kind][0](value)
    except (ValueError, KeyError):
        raise _unfit(layout, declared, value) from None


def _as_text(value: Any) -> str:
    if value is MISSING:
        return ""
    if value is None:
        return _NONE
    return str(value).lower() if isinstance(value, bool) else str(value)
