"""Sides, key hashes, u, and placements.

Why: routing and state know a tuple by two numbers. Its *key hash* says which tuples it can meet;
its *u* says to which share of a split key it belongs, or to which row or column of a grid. Both fit
into one 64-bit *word*, hash above u, so that one comparison orders tuples by key and then by share,
and "the slice [u_lower, u_upper) of key k" is one contiguous range of sorted words.

Law: a route is a function of (key hash, u, layout version) and of nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import pairwise

from joinengine.model.errors import InvalidRequest

#: u has 24 bits (shares are exact to 6e-8) and the key hash the 40 above them. Tuples of two keys
#: with one hash are routed together and told apart by value: about 45 pairs of ten million keys.
U_BITS = 24
U_ONE = 1 << U_BITS
HASH_BITS = 64 - U_BITS
#: One above the greatest word.
ALL_WORDS = 1 << 64


class Side(IntEnum):
    """The inputs of a join. Inside a batch they go in this order (the pairing rule).

    All joins but multiway joins have two: a PAIR.
    """

    LEFT = 0
    RIGHT = 1
    THIRD = 2
    FOURTH = 3
    FIFTH = 4
    SIXTH = 5
    SEVENTH = 6
    EIGHTH = 7

    @property
    def other(self) -> Side:
        """The side of a pair that this one probes."""
        return Side(1 - self)

    @property
    def routed(self) -> Side:
        """The side of a pair as which a tuple is routed, moved and counted.

        Routers know two sides. All inputs of a multiway join but the first go where right ones go.
        """
        return Side.LEFT if self is Side.LEFT else Side.RIGHT


PAIR = (Side.LEFT, Side.RIGHT)


class Mode(Enum):
    """How the homes of one key share its tuples.

    WHOLE   one home.
    SPLIT   a tuple of either side is stored at one home, by u, and probes all.
    COPIED  the split side is stored at one home, by u, and probes only there; the other side is
            stored at all homes and probes all (fragment-replicate).
    GRID    homes are the cells of `rows` x `columns`; a left tuple lives in the cells of one row,
            a right tuple in those of one column, both by u.
    """

    WHOLE = "whole"
    SPLIT = "split"
    COPIED = "copied"
    GRID = "grid"


@dataclass(frozen=True, slots=True)
class Fragment:
    """The share [u_lower, u_upper) of one key at one instance; u counts units of 1 / U_ONE."""

    instance: int
    u_lower: int
    u_upper: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The mode and the fragments of one key.

    The fragments partition [0, U_ONE), in order. WHOLE has one. GRID lists its cells row by row
    (their ranges cut [0, U_ONE) evenly and serve only as numbers of cells) and `columns` says how
    many cells a row has. `backups` store a copy of all tuples of a WHOLE key that is not probed.

    Raises InvalidRequest if the fragments leave a gap, overlap, or do not fit the mode.

    >>> Placement.whole(3).homes
    (3,)
    >>> Placement(Mode.SPLIT, (Fragment(0, 0, 10), Fragment(1, 10, U_ONE))).homes
    (0, 1)
    """

    mode: Mode
    fragments: tuple[Fragment, ...]
    split_side: Side = Side.LEFT
    columns: int = 1
    backups: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.mode is Mode.WHOLE and not self.backups and len(self.fragments) == 1:
            only = self.fragments[0]
            if only.u_lower == 0 and only.u_upper == U_ONE:
                return  # most keys of a plan are whole: nothing else to check
        edges = [0, *(fragment.u_upper for fragment in self.fragments)]
        starts = [fragment.u_lower for fragment in self.fragments]
        if edges[:-1] != starts or edges[-1] != U_ONE or any(a >= b for a, b in pairwise(edges)):
            raise InvalidRequest(
                f"fragments must partition [0, {U_ONE}), and {self.fragments} do not"
            )
        if self.mode is Mode.WHOLE and len(self.fragments) != 1:
            raise InvalidRequest(f"a whole key has exactly one home, and this key has {self.homes}")
        if self.mode is Mode.GRID and len(self.fragments) % self.columns:
            raise InvalidRequest(
                f"the {len(self.fragments)} cells of a grid do not fill rows of {self.columns}"
            )
        if self.mode is Mode.GRID and len(self.homes) != len(self.fragments):
            raise InvalidRequest("each cell of a grid needs its own instance")
        if self.backups and self.mode is not Mode.WHOLE:
            raise InvalidRequest(f"only whole keys have backups, and this key is {self.mode.value}")
        if len(set(self.holders)) != len(self.homes) + len(self.backups):
            raise InvalidRequest(
                f"each copy of a key needs its own instance, and {self.holders} repeats one"
            )

    @classmethod
    def whole(cls, instance: int, backups: tuple[int, ...] = ()) -> Placement:
        """All tuples of both sides at one instance, and their copies at `backups`."""
        return cls(Mode.WHOLE, (Fragment(instance, 0, U_ONE),), backups=backups)

    @property
    def homes(self) -> tuple[int, ...]:
        """The instances that hold tuples of the key, without repeats, in fragment order."""
        return tuple(dict.fromkeys(fragment.instance for fragment in self.fragments))

    @property
    def holders(self) -> tuple[int, ...]:
        """The homes, and then the backups."""
        return self.homes + self.backups

    @property
    def rows(self) -> int:
        """Rows of the grid; meaningful for GRID only."""
        return len(self.fragments) // self.columns
