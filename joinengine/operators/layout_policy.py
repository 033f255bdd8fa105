"""Layout policies: what layouts may do with an operator's state, and what planners add to loads."""

from __future__ import annotations

from dataclasses import dataclass

from joinengine.balancing.costs import NOTHING, Amounts
from joinengine.layouts.layout import LayoutChoice, check_aggregates
from joinengine.model.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class LayoutPolicy:
    """What a change of the layout means for an operator.

    `changes`: whether users and planners may change the layout at all. `follows`: whether state
    moves to the homes of the new layout. `may_lag`: whether state may also stay under its old
    version (lazy moves), because tuples probe it there. `copies`: whether a layout may store a
    tuple more than once. `divides`: whether it may store tuples of one key at several instances.
    `grows`: whether the layout grows if an instance is too full. `further`: seconds per unit of
    each amount that an instance waits in addition to its measured time, while other instances keep
    working; planners add them.
    """

    changes: bool = True
    follows: bool = True
    may_lag: bool = False
    copies: bool = False
    divides: bool = True
    grows: bool = True
    further: Amounts = NOTHING

    def check(self, choice: LayoutChoice) -> None:
        """Raise InvalidRequest, with the name of the layout, if it is not allowed."""
        if not self.copies:
            check_aggregates(choice)
        if not self.divides and not choice.keeps_keys_whole:
            raise InvalidRequest(
                f"layout {choice.name} may divide the rows of a key among instances, but these "
                f"results need all of them at one. Use a layout that keeps keys whole, such as "
                f"hash, mixed or dlb-h"
            )
