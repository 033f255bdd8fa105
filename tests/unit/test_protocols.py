"""What holds for every class of the package that inherits a protocol."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Protocol

import pytest

import joinengine
from joinengine.layouts.layout import LayoutChoice
from joinengine.results.sinks import Sink
from joinengine.sources.feeds import Feed

ROOT = Path(joinengine.__file__).parent


@pytest.fixture(scope="module")
def heirs():
    """The classes of the package that inherit a protocol or a base, and are none."""
    for path in ROOT.rglob("*.py"):
        if "import override\n" in path.read_text():
            importlib.import_module(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))
    heirs = [one for base in (Protocol, Sink, Feed) for one in below(base)]
    return [one for one in heirs if not is_protocol(one) and is_served(one)]


def below(kind):
    for one in kind.__subclasses__():
        yield one
        yield from below(one)


def is_protocol(kind):
    return getattr(kind, "_is_protocol", False)


def is_served(kind):
    """Whether its module has it; a dataclass with slots is made twice, and the first may linger."""
    module = sys.modules[kind.__module__]
    return module.__name__.startswith("joinengine.") and vars(module).get(kind.__name__) is kind


def properties_among_fields(kind):
    """The fields that have a base's property for their default, or cannot be set because of it."""
    return {
        f"{kind.__name__}.{one.name}"
        for one in fields(kind)
        if isinstance(one.default, property) or isinstance(getattr(kind, one.name, None), property)
    }


def test_no_field_defaults_to_a_property(heirs):
    assert set().union(*map(properties_among_fields, filter(is_dataclass, heirs))) == set()


class Named(Protocol):
    @property
    def name(self) -> str: ...


@pytest.mark.parametrize("slots", [True, False])
def test_properties_are_seen(slots):
    @dataclass(frozen=True, slots=slots)
    class Bare(Named):
        name: str

    assert properties_among_fields(Bare) == {"Bare.name"}


def functions_of(kind):
    """Name -> function, of the public methods and properties that a class defines itself."""
    plain = {
        name: getattr(member, "fget", None) or getattr(member, "__func__", member)
        for name, member in vars(kind).items()
        if not name.startswith("_")
    }
    return {name: one for name, one in plain.items() if isinstance(one, FunctionType)}


#: Members that say that there is nothing, or what a class is called, unless it says otherwise.
OPTIONAL = {
    *("Layout.base_function", "Layout.copied", "Layout.listing", "Layout.wanted"),
    *("Layout.place", "Layout.copies", "Layout.table", "Router.listed"),
    "Shelf.divides_sides",
    "Shelf.reduced",
    *("Defaults.is_changelog", "Defaults.kind", "Defaults.finish", "Defaults.until_us"),
    *("Defaults.policy", "Defaults.watched", "Defaults.lags", "Defaults.forecast"),
    *("Defaults.expire", "Defaults.is_due", "Defaults.limit"),
    *("Defaults.time_through", "Defaults.output_lag_us"),
    *("Query.conclude", "Query.part", "Target.furthest"),
}


def test_a_forgotten_member_is_refused(heirs):
    """By Python, when an object is made; the protocol's own body would return None."""
    protocols = {one for heir in heirs for one in heir.__mro__[:-1] if is_protocol(one)}
    protocols.discard(Protocol)
    assert len(protocols) >= 13
    optional = {
        f"{one.__name__}.{name}"
        for one in protocols
        for name in functions_of(one).keys() - one.__abstractmethods__
    }
    assert {name for name in optional if not name.startswith("LayoutChoice.")} == OPTIONAL
    assert LayoutChoice.__abstractmethods__ == {"start", "restore", "resized", "grow"}
    with pytest.raises(TypeError, match="abstract"):
        type("Half", (LayoutChoice,), {"start": None, "restore": None, "resized": None})()


def test_no_docstring_is_said_twice(heirs):
    twice = {
        f"{heir.__name__}.{name}"
        for heir in heirs
        for name, function in functions_of(heir).items()
        for base in heir.__mro__[1:-1]
        if name in functions_of(base) and function.__doc__ is not None
        if function.__doc__ == functions_of(base)[name].__doc__
    }
    assert twice == set()


def test_the_heirs_are_found(heirs):
    names = {one.__name__ for one in heirs}
    assert {"Join", "LocalStorage", "Shuffled", "Mnrt", "SparkJobs", "Q5", "StreamFile"} <= names
