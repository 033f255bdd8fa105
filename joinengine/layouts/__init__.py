"""All layouts, in one table."""

from __future__ import annotations

from collections.abc import Mapping

from joinengine.layouts.base import Layout, LayoutChoice, Plan, Router
from joinengine.layouts.key_based import Hash, Mnrt, Qmmp
from joinengine.model.errors import InvalidRequest

#: To add a layout: a module, and a line here.
LAYOUTS: Mapping[str, type[LayoutChoice]] = {
    "hash": Hash,
    "qmmp": Qmmp,
    "mnrt": Mnrt,
}

__all__ = ["LAYOUTS", "Hash", "Layout", "LayoutChoice", "Mnrt", "Plan", "Qmmp", "Router", "choose"]


def choose(layout: str | LayoutChoice) -> LayoutChoice:
    """A layout by its name or as it is.

    Raises InvalidRequest for an unknown name.

    >>> choose("mnrt")
    Mnrt(imbalance=0.05, intervals=4)
    """
    if not isinstance(layout, str):
        return layout
    if layout not in LAYOUTS:
        raise InvalidRequest(f"layout {layout!r} is unknown; choose one of {', '.join(LAYOUTS)}")
    return LAYOUTS[layout]()
