"""What arrived tuples probe for: their words, sorted, and what is worked out of them once.

Why: the tuples of a band join probe for several cells. Probed for all of them together, a stored
tuple is looked up once, and what is fixed for a batch is paid once. They are asked for one after
another where it matters which cell a pair was found by: two cells of a tuple share a hash, or pairs
are limited by key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from joinengine.exchange.keying import Probed
from joinengine.kernels.bands import Bools
from joinengine.kernels.comparing import equal_at
from joinengine.kernels.hashing import Words, first_word
from joinengine.kernels.probing import Ints, Needles, Rows
from joinengine.kernels.seating import Seats, seated_order
from joinengine.kernels.timelines import Timeline
from joinengine.model.keys import U_BITS, Side
from joinengine.operators.join.capping import Cap
from joinengine.operators.join.grids import Line
from joinengine.operators.join.join_spec import JoinSpec
from joinengine.operators.join.matching import Pairs
from joinengine.operators.join.tallying import Tally
from joinengine.operators.join.teams import SortedTuples
from joinengine.state.gathering import Sheet
from joinengine.state.run_file import Page

T = TypeVar("T", bound=np.generic)


class Probes(NamedTuple):
    """What arrived tuples probe for, by seat and word: (n,) rows of the tuples, words, and seats.

    `cells`: per arrived row its cell, with which those of stored tuples are compared; None: no two
    cells are mistaken. `is_joint`: tuples may be there more than once, with several words.
    """

    rows: Ints
    words: Words
    seats: Seats
    cells: Ints | None = None
    is_joint: bool = False

    @classmethod
    def of(
        cls, arrived: SortedTuples, flags: Sequence[int], probed: Sequence[Probed] | None
    ) -> Probes:
        """Of the tuples with a flag, the words of the hashes beside it; None: their own words."""
        rows_by_cell = [np.flatnonzero(arrived.flags & flag) for flag in flags]
        rows = _whole(rows_by_cell)
        seats = None if arrived.seats is None else arrived.seats[rows]
        if probed is None:
            return cls(rows, arrived.words[rows], seats)
        hashes = [
            own_cells.hashes[rows_there]
            for own_cells, rows_there in zip(probed, rows_by_cell, strict=True)
        ]
        words = first_word(_whole(hashes) >> np.uint64(U_BITS))
        order = seated_order(words, seats)
        seats = None if seats is None else seats[order]
        cells = probed[0].cells if len(probed) == 1 else None
        return cls(rows[order], words[order], seats, cells, len(probed) > 1)


def _whole(parts: Sequence[NDArray[T]]) -> NDArray[T]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True)
class Slot:
    """What arrived tuples of `side` probe for in a slot: one layout version, some of their hashes.

    `rows`, `cells`: as in Probes; `needles`: the distinct seated keys of the rows. `dense`
    (needles,): which have more pairs with stored tuples than tuples, or than `cap` allows; None:
    there is none.
    """

    spec: JoinSpec
    side: Side
    arrived: SortedTuples
    rows: Ints
    needles: Needles
    cells: Ints | None
    dense: Bools
    tally: Tally
    cap: Cap | None

    @cached_property
    def sizes(self) -> Ints:
        """(needles,) how many arrived rows have each."""
        return np.diff(self.needles.starts)

    @cached_property
    def needle_of(self) -> Ints:
        """(rows,) the needle of each arrived row."""
        return np.repeat(np.arange(len(self.dense)), self.sizes)

    def groups_at(self, places: Ints) -> Ints | None:
        """The groups of some of `rows`, by place; None: the tally knows them by arrived row."""
        return self.needle_of[places] if self.tally.by_pair else None

    @cached_property
    def dense_ranks(self) -> Ints:
        """(needles,) the number of each dense needle among them."""
        return np.cumsum(self.dense) - 1

    @cached_property
    def dense_rows(self) -> tuple[Ints, Ints]:
        """The arrived rows of the dense needles, and the needle of each."""
        is_dense = self.dense[self.needle_of]
        return self.rows[is_dense], self.needle_of[is_dense]

    @cached_property
    def timeline(self) -> Timeline:
        """The dense rows by needle and time."""
        rows, needle = self.dense_rows
        assert self.arrived.times is not None
        return Timeline.of(self.dense_ranks[needle], self.arrived.times[rows])

    @cached_property
    def in_time(self) -> Line:
        """The dense rows in the order of the timeline."""
        rows, needle = self.dense_rows
        order = self.timeline.order
        return self._line(rows[order], needle[order] if self.tally.by_pair else None)

    @cached_property
    def by_key(self) -> Line:
        """All rows."""
        return self._line(self.rows, self.needle_of if self.tally.by_pair else None)

    def _line(self, rows: Ints, groups: Ints | None) -> Line:
        return Line(self.spec.predicate, self.side, self.arrived.columns, rows, groups)

    def pairs(self, sheet: Sheet, rows: Rows, stored: Rows, groups: Ints | None = None) -> Pairs:
        """Arrived rows and stored ones, pair by pair; `groups`: of the tally, if it wants them."""
        columns = sheet.page.columns
        return Pairs(self.side, self.arrived, rows, columns, stored, self.cells, self.tally, groups)

    @cached_property
    def shares_keys(self) -> bool:
        """Whether the arrived tuples of each dense needle have one key."""
        rows, needle = self.dense_rows
        return self._equal(self.side, self.arrived, rows, needle)

    def has_keys_of(self, sheet: Sheet, rows: Ints, needle: Ints) -> bool:
        """Whether stored `rows` have the keys of the needles, and these one each."""
        return self.shares_keys and self._equal(self.side.other, sheet.page, rows, needle)

    def _equal(self, side: Side, tuples: SortedTuples | Page, rows: Ints, needle: Ints) -> bool:
        """Whether rows of `side` have the keys that the first arrived tuples of needles have."""
        firsts = self.rows[self.needles.starts[needle]]
        arrived_names, names = self.spec.keys(self.side), self.spec.keys(side)
        return all(
            equal_at(tuples.columns.column(b), rows, self.arrived.columns.column(a), firsts).all()
            for a, b in zip(arrived_names, names, strict=True)
        )


class Met(NamedTuple):
    """Stored tuple i, of needle[i], meets met.rows[begin[i]:begin[i] + lengths[i]]."""

    needle: Ints
    stored: Ints
    met: Line
    begin: Ints
    lengths: Ints

    def only(self, some: Bools) -> Met:
        """Of some stored tuples."""
        needle, stored, begin, lengths = (
            column[some] for column in (self.needle, self.stored, self.begin, self.lengths)
        )
        return Met(needle, stored, self.met, begin, lengths)
