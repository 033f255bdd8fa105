"""Why a layout changes: the cause, how loads lie before and after, the cost, and the keys.

Why: whoever watches a query wants to know what a plan answers to, what it promises, and what it
costs, before the tuples have moved. A plan therefore carries its reason as a value.

Law: the keys of a reason are those whose placements differ between the two tables, and its cost is
what the moves then move. The cost is exact if the counts are and keys move whole; a share of a key
is taken for that share of its tuples.
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

#: As many keys a reason tells one by one; the others are counted.
MOST_KEYS = 100


class Cause(StrEnum):
    """What a change of the layout, or of the placement of one key, answers to."""

    #: the loads are out of the planner's tolerance
    OVERLOAD = "overload"
    #: they are, and a key alone has more load than one instance may have
    HEAVY_KEY = "heavy key"
    #: a key that had more homes has less load again; beside keys of the other causes
    COOLED_KEY = "cooled key"
    #: the matrix or the biclique no longer fits the sizes of the streams
    SHAPE = "shape"
    #: a candidate layout has learnt which keys are heavy, or how loads are; nothing moves
    HEAD = "head"
    LOADS = "loads"
    #: a plan would lower the loads, and not pay back what it moves; the layout stays
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
    #: an instance that had lost its state has it again, and is the home of its keys as before
    REFILLED = "refilled"
    #: keys have come under another service level, or left one, or have copies that fail together
    LEVELS = "levels"

    @property
    def is_replan(self) -> bool:
        """Whether the layout changes by itself, for balance."""
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
    """How loads lie over the instances: the greatest and the mean, in tuples.

    >>> Balance.of(np.array([2.0, 4.0])).skew
    1.3333333333333333
    """

    greatest: float
    mean: float
    #: of how many loads; None: of those of all instances
    places: int | None = field(default=None, compare=False)

    @classmethod
    def of(cls, level: Floats | Ints) -> Balance:
        """The balance of (N,) loads."""
        return cls(float(np.max(level)), float(np.mean(level)), len(level))

    def total(self, instances: int) -> float:
        """The sum of the loads, if there are `instances`: standbys have none of their own."""
        return self.mean * (self.places or instances)

    @property
    def skew(self) -> float:
        """Greatest over mean; 1.0 if there is no load."""
        return self.greatest / self.mean if self.mean else 1.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Tuples that change their home, and copies that are made of tuples that keep theirs."""

    moved: float = 0.0
    copied: float = 0.0

    @property
    def rows(self) -> float:
        """Tuples that are read at one instance and written at another."""
        return self.moved + self.copied


@dataclass(frozen=True, slots=True)
class KeyChange:
    """The keys of one hash that are placed anew, and why.

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

    `before`: the loads that the decision saw: what instances stored in the last intervals, or, if
    no planner decided, what they hold. `after`: those that a planner expects; None: it expects
    none. `cost`: what moves for it; None: not known before. `keys`: the keys that are placed anew,
    heaviest first, and `more_keys`: how many there are beyond these. `shapes`: the shape before and
    after, in words, if the layout has one and takes another. `switched_roles`: keys whose home and
    backup change roles, so that no state moves. `ways`: how instances have gone on that had lost
    their state.
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
        """The same reason, if the state does otherwise than the plan says."""
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
    """What is known of keys: their loads, the newest interval, and the most load of an instance."""

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

    `balances`: before and after. If a planner decided (OVERLOAD), it may be a key that is too heavy
    for one instance; otherwise each key has the cause of the plan. `counted` None: loads and costs
    are unknown.
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

    Of the tuples of a range that are read once for each new home, as many move as old homes drop
    them; the others are copies.
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
