"""Plans the moves that bring state from the homes of one routing table to those of the next.

Why: a plan is in terms of keys and shares, but state lies in word ranges. For each key that
changes, the strips of the old and the new placement are laid over each other. An instance that is
new for a range of u *pulls* that range from an instance that had it. An instance that no longer
stores a range *drops* it. That covers moves, splits, merges and every change of mode.

Law: after the moves, each live tuple is at exactly the instances where its new strip stores it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from joinengine.model.keys import PAIR, U_BITS, U_ONE, Placement, Side
from joinengine.routing.base_functions import Base, placements
from joinengine.routing.table import RoutingTable, strips


@dataclass(frozen=True, slots=True)
class Pull:
    """Copy the words [lower, upper) of `side` from `source` to `target`."""

    side: Side
    source: int
    target: int
    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the words [lower, upper) of `side` at `instance`."""

    side: Side
    instance: int
    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class Moves:
    """The state changes that one re-layout asks of the next batch."""

    pulls: tuple[Pull, ...] = ()
    drops: tuple[Drop, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.pulls or self.drops)


class Replaced(NamedTuple):
    """The keys of one hash whose placement changes."""

    hash_: int
    before: Placement
    after: Placement


def replaced(old: RoutingTable, new: RoutingTable, base: Base) -> list[Replaced]:
    """The keys whose placements differ between two tables over one base function, by hash."""
    was, will = old.placements, new.placements
    placed = [hash_ for hash_, placement in will.items() if was.get(hash_) is not placement]
    hashes = sorted([*placed, *(hash_ for hash_ in was if hash_ not in will)])
    plain = placements(base, np.array(hashes, np.uint64))
    changes = list[Replaced]()
    for hash_, unlisted in zip(hashes, plain, strict=True):
        before, after = (table.get(hash_, unlisted) for table in (was, will))
        if before != after:
            changes.append(Replaced(hash_, before, after))
    return changes


def plan_moves(changed: Iterable[Replaced]) -> Moves:
    """The moves that the keys of `changed` need, in their order."""
    pulls, drops = list[Pull](), list[Drop]()
    for hash_, before, after in changed:
        first = hash_ << U_BITS
        for side in PAIR:
            for lower, upper, had, wants in _overlay(before, after, side):
                low, high = first + lower, first + upper
                source = min(had)
                pulls += [Pull(side, source, i, low, high) for i in sorted(wants - had)]
                drops += [Drop(side, i, low, high) for i in sorted(had - wants)]
    return Moves(tuple(pulls), tuple(drops))


def _overlay(
    before: Placement, after: Placement, side: Side
) -> Iterable[tuple[int, int, set[int], set[int]]]:
    old, new = strips(before, side), strips(after, side)
    cuts = sorted({s.u_lower for s in old} | {s.u_lower for s in new} | {U_ONE})
    for lower, upper in pairwise(cuts):
        had = next(set(s.stores) for s in reversed(old) if s.u_lower <= lower)
        wants = next(set(s.stores) for s in reversed(new) if s.u_lower <= lower)
        if had != wants:
            yield lower, upper, had, wants
