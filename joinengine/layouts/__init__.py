"""All layouts, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from joinengine.balancing.counting import KeysAt
from joinengine.layouts.auto import Auto, Unasked
from joinengine.layouts.biclique import Bi, BiK
from joinengine.layouts.choices import DChoices, Pkg, WChoices
from joinengine.layouts.key_based import Hash, Mnrt, Qmmp
from joinengine.layouts.layout import Layout, LayoutChoice, Plan, Router, keys_at
from joinengine.layouts.layout_settings import read_settings
from joinengine.layouts.matrix import Dynamic
from joinengine.layouts.replicas import Ftlb
from joinengine.layouts.shuffle import Shuffle
from joinengine.layouts.versions import AnyRouter
from joinengine.layouts.whole_keys import (
    DlbHeavy,
    DlbLight,
    Llfd,
    Lptf,
    MinMig,
    MinTable,
    Mixed,
    MixedBf,
    Readj,
)
from joinengine.model.arguments import kind_of
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import meant

#: To add a layout, write a module and add a line here.
LAYOUTS: Mapping[str, type[LayoutChoice]] = {
    choice.name: choice
    for choice in (
        Auto,
        Hash,
        Readj,
        Llfd,
        MinTable,
        MinMig,
        Mixed,
        MixedBf,
        DlbLight,
        DlbHeavy,
        Lptf,
        Qmmp,
        Mnrt,
        Ftlb,
        Pkg,
        DChoices,
        WChoices,
        Dynamic,
        Bi,
        BiK,
        Shuffle,
    )
}

__all__ = [
    "LAYOUTS",
    "Auto",
    "Bi",
    "BiK",
    "Chosen",
    "DChoices",
    "DlbHeavy",
    "DlbLight",
    "Dynamic",
    "Ftlb",
    "Hash",
    "Layout",
    "LayoutChoice",
    "Llfd",
    "Lptf",
    "MinMig",
    "MinTable",
    "Mixed",
    "MixedBf",
    "Mnrt",
    "Pkg",
    "Plan",
    "Qmmp",
    "Readj",
    "Router",
    "Shuffle",
    "WChoices",
    "asked_or_auto",
    "choose",
]


def choose(layout: str | LayoutChoice) -> LayoutChoice:
    """A layout from its name, with settings after a colon; or the layout itself.

    Raises InvalidRequest for an unknown name or setting, and for a value that a setting refuses.

    >>> choose("bi-6").subgroup_count, choose("mixed:table_limit=300,beta=1.2").beta
    (6, 1.2)
    """
    if isinstance(layout, type) or not hasattr(layout, "check"):
        if not isinstance(layout, str):
            raise InvalidRequest(
                f"layout: expected a name or an object such as Mnrt(), found {kind_of(layout)}"
            )
    if not isinstance(layout, str):
        return layout
    name, colon, text = (part.strip() for part in layout.partition(":"))
    family, _, number = name.rpartition("-")
    given = dict[str, Any]()
    if family == "bi" and number.isdigit():
        name, given = BiK.name, {"subgroup_count": int(number)}
    if name not in LAYOUTS:
        raise InvalidRequest(
            f"layout: expected one of {', '.join(LAYOUTS)}, found {layout!r}{meant(name, LAYOUTS)}"
        )
    if colon:
        given |= read_settings(LAYOUTS[name], name, text)
    return LAYOUTS[name](**given)


def asked_or_auto(layout: str | LayoutChoice | None) -> LayoutChoice:
    """The layout that `choose` gives, or `Unasked` if `layout` is None."""
    return Unasked() if layout is None else choose(layout)


@dataclass(frozen=True)
class Chosen:
    """A layout, the choice that made it, and the number of instances asked for.

    The layout may use fewer instances than `wanted`.
    """

    choice: LayoutChoice
    layout: Layout
    wanted: int

    @classmethod
    def start(cls, choice: LayoutChoice, instances: int) -> Chosen:
        """The layout with which a choice begins."""
        return cls(choice, choice.start(instances), instances)

    @cached_property
    def router(self) -> AnyRouter:
        """The router of the layout; made once, since it costs a loop over the routing table."""
        return cast(AnyRouter, self.layout.router())

    @cached_property
    def listed_at(self) -> KeysAt:
        """The keys that the layout wants counted, and where."""
        return keys_at(cast(Router, self.router), self.router.listed)

    @property
    def absent(self) -> tuple[int, ...]:
        """The instances that have lost their state and do not have all their copies again."""
        copied = self.layout.copied
        return () if copied is None else tuple(instance for instance, _ in copied.incomplete)

    def to_json(self) -> dict[str, Any]:
        """The plain values that the manifest keeps."""
        return {
            "name": self.choice.name,
            "settings": self.choice.settings(),
            "wanted": self.wanted,
            "state": self.layout.to_json(),
        }

    def starts_like(self, other: Chosen) -> bool:
        """Whether both begin with the same layout, whatever their planners do later."""
        if (self.choice.name, self.wanted) != (other.choice.name, other.wanted):
            return False
        return self.choice == other.choice or (
            self.choice.start(self.wanted).to_json() == other.choice.start(self.wanted).to_json()
        )

    @classmethod
    def from_json(cls, account: Mapping[str, Any]) -> Chosen:
        """The inverse of `to_json`."""
        choice = LAYOUTS[account["name"]].filed(account["settings"])
        return cls(choice, choice.restore(dict(account["state"])), account["wanted"])
