"""The wish of a user for another layout, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joinengine.layouts import LAYOUTS
from joinengine.layouts.layout import LayoutChoice


@dataclass(frozen=True, slots=True)
class Relayout:
    """A wish: another layout, another number of instances, or both; None: leave it as it is."""

    choice: LayoutChoice | None = None
    instances: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The plain values that a manifest keeps."""
        choice = self.choice and {"name": self.choice.name, "settings": self.choice.settings()}
        return {"choice": choice, "instances": self.instances}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Relayout:
        """The inverse of `to_json`."""
        fields = plain["choice"]
        choice = fields and LAYOUTS[fields["name"]](**fields["settings"])
        return cls(choice, plain["instances"])
