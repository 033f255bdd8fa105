"""Why a layout changes: the cause, the balance before and after, the cost, and the keys.

Why: before tuples move, a user wants to know why a plan is made, what it promises, and what it
costs. A plan therefore carries its reason as a value.

Law: the keys of a reason are those whose placements differ between the two tables, and its cost is
what the moves then move. The cost is exact if the counts are exact and keys move whole; a share of
a key is assumed to hold that share of its tuples.
Cost: some array operations over the moves, and a loop over at most MOST_KEYS keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from joinengine.balancing.loads import Loads
from joinengine.balancing.statistics import Floats, Interval, Ints
from joinengine.kernels.hashing import Words, key_hash
from joinengine.kernels.probing import rows_among
from joinengine.model.keys import PAIR, U_ONE, Placement
from joinengine.model.recovery import Recovery
from joinengine.routing.moves import Moves, Replaced

#: How many keys a reason names one by one; further keys are only counted.
MOST_KEYS = 100


class Cause(StrEnum):
    """Why the layout, or the placement of one key, changes."""

    #: the loads are out of the planner's tolerance
    OVERLOAD = "overload"
    #: as OVERLOAD, and one key alone has more load than an instance may have
    HEAVY_KEY = "heavy key"
    #: a divided key has less load again and gets fewer homes; appears beside other causes
    COOLED_KEY = "cooled key"
    #: the matrix or the biclique no longer fits the sizes of the streams
    SHAPE = "shape"
    #: a candidate layout has new loads, or another head; nothing moves
    HEAD = "head"
    LOADS = "loads"
    #: a plan would lower the loads but not repay what it moves; the layout stays
    DECLINED = "declined"
    #: a user wishes another layout, or another number of instances
    SWITCH = "switch"
    RESIZE = "resize"
    #: a restart asks for another layout than the last start
    RESTART = "restart"
    #: an instance holds more tuples than it may
    CAPACITY = "capacity"
    #: the state of instances is gone, and backups of their keys become homes
    LOSS = "loss"
    #: an instance has recovered its lost state, and is the home of its keys again
    REFILLED = "refilled"
    #: keys have entered or left a service level, or have copies that fail together
    LEVELS = "levels"

    @property
    def is_replan(self) -> bool:
        """Whether a planner changes the layout, for balance."""
        match self:
            case Cause.OVERLOAD | Cause.HEAVY_KEY | Cause.COOLED_KEY | Cause.SHAPE:
                return True
            case Cause.HEAD | Cause.LOADS | Cause.DECLINED:
                return False
            case Cause.SWITCH | Cause.RESIZE | Cause.RESTART | Cause.CAPACITY:
                return False
            case Cause.LOSS | Cause.REFILLED | Cause.LEVELS:
                return False


_WORDS = {
    Cause.OVERLOAD: "loads are out of tolerance",
    Cause.HEAVY_KEY: "a key is too heavy for one instance",
    Cause.COOLED_KEY: "a key fits one instance again",
    Cause.SHAPE: "the shape no longer fits the streams",
    Cause.HEAD: "other keys are heavy",
    Cause.LOADS: "loads are known now",
    Cause.DECLINED: "a plan would cost more than it saves",
    Cause.SWITCH: "another layout is requested",
    Cause.RESIZE: "another number of instances is requested",
    Cause.RESTART: "the restart requests another layout",
    Cause.CAPACITY: "an instance is full",
    Cause.LOSS: "instances lost their state",
    Cause.REFILLED: "instances have their state again",
    Cause.LEVELS: "keys need other backups",
}


@dataclass(frozen=True, slots=True)
class Balance:
    """The greatest and the mean load of the instances, in tuples.

    >>> Balance.of(np.array([2.0, 4.0])).skew
    1.3333333333333333
    """

    greatest: float
    mean: float
    #: how many loads there are; None: one per instance
    places: int | None = field(default=None, compare=False)

    @classmethod
    def of(cls, level: Floats | Ints) -> Balance:
        """The balance of (N,) loads."""
        return cls(float(np.max(level)), float(np.mean(level)), len(level))

    def total(self, instances: int) -> float:
        """The sum of the loads of `instances` instances; standbys have no loads of their own."""
        return self.mean * (self.places or instances)

    @property
    def skew(self) -> float:
        """Greatest over mean; 1.0 if there is no load."""
        return self.greatest / self.mean if self.mean else 1.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Tuples that move to another home, and copies made of tuples that stay."""

    moved: float = 0.0
    copied: float = 0.0

    @property
    def rows(self) -> float:
        """Tuples that are read at one instance and written at another."""
        return self.moved + self.copied


@dataclass(frozen=True, slots=True)
class KeyChange:
    """The keys of one hash that are placed anew, and the cause.

    `load`: that of the last intervals, in work or tuples; None: not counted. `cost` as in Reason.
    """

    hash_: int
    cause: Cause
    before: Placement
    after: Placement
    load: float | None
    cost: Cost | None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a layout changes.

    `before`: the loads behind the decision: those of the last intervals, or, if no planner decided,
    the tuples that instances hold. `after`: the loads that a planner expects; None: no planner.
    `cost`: what moves; None: not known in advance. `keys`: the keys that are placed anew, heaviest
    first; `more_keys`: how many more there are. `shapes`: the old and the new shape in words, if a
    shape changes. `switched_roles`: the number of keys whose home and a backup change roles, so
    that no state moves. `ways`: how instances that had lost their state go on.
    """

    cause: Cause
    before: Balance
    after: Balance | None = None
    cost: Cost | None = None
    keys: tuple[KeyChange, ...] = ()
    more_keys: int = 0
    shapes: tuple[str, str] | None = None
    switched_roles: int = 0
    ways: tuple[tuple[Recovery, tuple[int, ...]], ...] = ()

    def at_cost(self, cost: Cost | None) -> Reason:
        """The same reason with another cost, if the state moves otherwise than planned."""
        return replace(self, cost=cost, keys=tuple(replace(key, cost=cost) for key in self.keys))

    def __str__(self) -> str:
        parts = [f"{_WORDS[self.cause]}: load skew {self.before.skew:.2f}"]
        if self.after is not None:
            parts[0] += f", {self.after.skew:.2f} expected"
        if self.cost is not None:
            moved, copied = self.cost.moved, self.cost.copied
            parts.append(f"rows to move: {moved:,.0f}, to copy: {copied:,.0f}")
        if self.keys:
            parts.append(f"keys placed anew: {len(self.keys) + self.more_keys:,}")
        if self.switched_roles:
            parts.append(f"of these, keys whose backup became the home: {self.switched_roles:,}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts behind a plan: loads of keys, the newest interval, an instance's load limit."""

    loads: Loads
    newest: Interval
    limit: float = np.inf


def reason_of(
    cause: Cause,
    balances: tuple[Balance, Balance | None],
    changed: Sequence[Replaced],
    moves: Moves,
    counted: Counted | None,
) -> Reason:
    """The reason of a plan that places keys anew; `moves`: those of `changed`.

    `balances`: before and after. Each key has the cause of the plan; but if that is OVERLOAD, the
    key may be too heavy for one instance. `counted` None: loads and costs are unknown.
    """
    before, after = balances
    hashes = np.array([change.hash_ for change in changed], np.uint64)
    switched = sum(set(old.holders) == set(new.holders) for _, old, new in changed if new.backups)
    if counted is None:
        key_changes = [
            KeyChange(h, cause, old, new, None, None) for h, old, new in changed[:MOST_KEYS]
        ]
        more = len(changed) - len(key_changes)
        return Reason(cause, before, after, None, tuple(key_changes), more, switched_roles=switched)
    loads = counted.loads
    weights = _at(loads.hashes, loads.spread + loads.fixed, hashes)
    moved, copied = rows_of(moves, counted.newest, hashes)
    key_changes = list[KeyChange]()
    for row in _heaviest(weights):
        hash_, old, new = changed[row]
        why = cause
        if cause is Cause.OVERLOAD:
            why = _cause_of(old, new, float(weights[row]), counted.limit)
        cost = Cost(float(moved[row]), float(copied[row]))
        key_changes.append(KeyChange(hash_, why, old, new, float(weights[row]), cost))
    if key_changes and key_changes[0].cause is Cause.HEAVY_KEY:
        cause = Cause.HEAVY_KEY
    cost = Cost(float(moved.sum()), float(copied.sum()))
    more = len(changed) - len(key_changes)
    return Reason(cause, before, after, cost, tuple(key_changes), more, switched_roles=switched)


def _cause_of(before: Placement, after: Placement, load: float, limit: float) -> Cause:
    if load > limit:
        return Cause.HEAVY_KEY
    return Cause.COOLED_KEY if len(after.homes) < len(before.homes) else Cause.OVERLOAD


def _heaviest(weights: Floats) -> list[int]:
    """The rows with the greatest weights, at most MOST_KEYS, heaviest first."""
    rows = np.arange(len(weights))
    if len(weights) > MOST_KEYS:
        least = np.partition(weights, -MOST_KEYS)[-MOST_KEYS]
        rows = np.flatnonzero(weights >= least)
    heaviest: list[int] = rows[np.argsort(-weights[rows], kind="stable")][:MOST_KEYS].tolist()
    return heaviest


def rows_of(moves: Moves, newest: Interval, hashes: Words) -> tuple[Floats, Floats]:
    """(C,) tuples of each key that move, and copies that are made; `hashes` (C,) ascending.

    A range is read once for each new home and dropped at some old homes: as many readings as there
    are drops are moves, and the others are copies.
    """
    moved, copied = np.zeros((2, len(hashes)))
    for side in PAIR:
        pulls = [pull for pull in moves.pulls if pull.side is side]
        drops = np.sort(
            np.array([drop.lower for drop in moves.drops if drop.side is side], np.uint64)
        )
        lowers = np.array([pull.lower for pull in pulls], np.uint64)
        lower, first, reads = np.unique(lowers, return_index=True, return_counts=True)
        left = np.searchsorted(drops, lower, side="right") - np.searchsorted(drops, lower)
        shares = np.array([pull.upper - pull.lower for pull in pulls])[first] / U_ONE
        tuples = _at(newest.hashes, newest.held[side], key_hash(lower)) * shares
        keys = np.searchsorted(hashes, key_hash(lower))
        copies = np.maximum(reads - left, 0)
        copied += np.bincount(keys, copies * tuples, len(hashes))
        moved += np.bincount(keys, (reads - copies) * tuples, len(hashes))
    return moved, copied


def _at(hashes: Words, values: Floats, wanted: Words) -> Floats:
    """(K,) hashes, ascending, and their values -> (W,) the values of `wanted`, 0 if unknown."""
    rows, places = rows_among(wanted, hashes)
    known = np.zeros(len(wanted))
    known[rows] = values[places]
    return known
