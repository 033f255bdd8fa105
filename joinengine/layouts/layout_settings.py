"""The settings of layouts: what each means, its source, how a value is checked, and as text.

A choice is a dataclass whose fields are its settings. As text it is its name, or
`NAME:key=value,..` with the settings that are not the defaults: `mnrt:imbalance=0.02,base=ring`.
"""

from __future__ import annotations

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


class Setting(NamedTuple):
    """A setting as users see it, its default as text, and the paper that has it, or `ours`."""

    name: str
    default: str
    meaning: str
    source: str


def setting(
    default: Any,
    meaning: str,
    source: str = _OURS,
    *,
    not_text: str = "",
    words: tuple[str, ...] = (),
) -> Any:
    """A field of a choice. `source`: the paper that has it, by the names of docs/layouts.md.

    `not_text`: why it cannot be written as text, if so. `words`: values that are none of its type,
    and stand for others.
    """
    about = {_MEANING: meaning, _SOURCE: source, _NOT_TEXT: not_text, _WORDS: words}
    return field(default=default, metadata=about)


def settings_of(choice: type[Any] | Any) -> list[Setting]:
    """What can be written after the name of a layout, in the order of its fields."""
    return [
        Setting(
            one.name,
            _as_text(one.default),
            one.metadata.get(_MEANING, ""),
            one.metadata.get(_SOURCE, _OURS),
        )
        for one in fields(choice)
        if not _why_not_text(one)
    ]


def check_settings(choice: Any) -> None:
    """Raise InvalidRequest, naming the layout, for a setting of another type than its field's.

    Numbers of NumPy become plain ones, which a manifest can hold.
    """
    for one in fields(choice):
        value, words = getattr(choice, one.name), one.metadata.get(_WORDS, ())
        kind, is_open = _type_of(one)
        if words and isinstance(value, str):
            if value not in words:
                raise _unfit(choice.name, one, value)
        elif kind in _CHECKS and not (value is None and is_open):
            plain = _CHECKS[kind](value, f"{choice.name}: {one.name}")
            object.__setattr__(choice, one.name, plain)  # it is frozen, and being made


def check_tolerance(choice: Any) -> None:
    """Raise InvalidRequest for a `tolerance` under which each batch would have a plan."""
    if not choice.tolerance >= 1:
        raise InvalidRequest(
            f"{choice.name}: tolerance must be at least 1, found {choice.tolerance}"
        )


def changed_settings(choice: Any, but: Iterable[str] = ()) -> str:
    """The settings that are not the defaults, as text with a colon before; `but`: without these.

    >>> from joinengine.layouts import Mnrt
    >>> changed_settings(Mnrt(imbalance=0.02)), changed_settings(Mnrt())
    (':imbalance=0.02', '')
    """
    changed = [
        f"{one.name}={_as_text(getattr(choice, one.name))}"
        for one in fields(choice)
        if one.name not in but
        and not _why_not_text(one)
        and getattr(choice, one.name) != one.default
    ]
    return f":{','.join(changed)}" if changed else ""


def read_settings(kind: type[Any], layout: str, text: str) -> dict[str, Any]:
    """The settings of a class of choices from `key=value,..`; `layout`: its name, for messages.

    Raises InvalidRequest for a setting that it does not have, or a value that is none.
    """
    known = {one.name: one for one in fields(kind)}
    if not known:
        raise InvalidRequest(f"layout {layout} has no settings, found {text!r}")
    found = dict[str, Any]()
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value:
            first = settings_of(kind)[0]
            raise InvalidRequest(
                f"layout {layout}: expected settings such as {first.name}={first.default}, found "
                f"{part!r}"
            )
        if name not in known:
            names = ", ".join(one.name for one in settings_of(kind))
            raise InvalidRequest(f"layout {layout}: its settings are {names}; found {name!r}")
        if why := _why_not_text(known[name]):
            raise InvalidRequest(f"layout {layout}: {name} cannot be written as text: {why}")
        if name in found:
            raise InvalidRequest(f"layout {layout}: {name} is given twice")
        found[name] = _read(known[name], layout, value)
    return found


def split_layouts(text: str) -> list[str]:
    """The layouts of a list; their settings have commas, too.

    >>> split_layouts("auto, mixed:table_limit=300,beta=1.2, hash")
    ['auto', 'mixed:table_limit=300,beta=1.2', 'hash']
    """
    found = list[str]()
    for part in (part.strip() for part in text.split(",")):
        if found and "=" in part and ":" not in part:
            found[-1] += f",{part}"
        elif part:
            found.append(part)
    return found


def _type_of(one: Field[Any]) -> tuple[str, bool]:
    """The name of a field's type, without words that stand for values, and whether None is one."""
    kind, *others = str(one.type).split(" | ")
    return kind, "None" in others


def _unfit(layout: str, one: Field[Any], value: str) -> InvalidRequest:
    """The refusal of a text that is no value of a setting."""
    kind, is_open = _type_of(one)
    values = [_READS[kind][1], *one.metadata.get(_WORDS, ())] + [_NONE] * is_open
    expected = " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))
    return InvalidRequest(f"layout {layout}: {one.name} must be {expected}, found {value!r}")


def _why_not_text(one: Field[Any]) -> str:
    kind, _ = _type_of(one)
    return one.metadata.get(_NOT_TEXT, "") or ("" if kind in _READS else f"it is a value of {kind}")


def _read(one: Field[Any], layout: str, value: str) -> Any:
    kind, is_open = _type_of(one)
    if is_open and value == _NONE:
        return None
    if value in one.metadata.get(_WORDS, ()):
        return value
    try:
        return _READS[kind][0](value)
    except (ValueError, KeyError):
        raise _unfit(layout, one, value) from None


def _as_text(value: Any) -> str:
    if value is MISSING:
        return ""
    if value is None:
        return _NONE
    return str(value).lower() if isinstance(value, bool) else str(value)
