"""The words that arrived tuples probe for, sorted, and values that are computed from them once.

Why: the tuples of a band join probe for several cells. If all cells are probed together, a stored
tuple is looked up once, and the fixed cost of a batch is paid once. Cells are probed one after
another if it matters which cell has found a pair: if two cells of a tuple share a hash, or if the
pairs of a key are capped.
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
    """The words that arrived tuples probe for, by seat and word: (n,) rows, words and seats.

    `cells`: per arrived row, its cell, to compare with those of stored tuples; None: no two cells
    can be confused. `is_joint`: a tuple may occur several times, with different words.
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
        """The probes of tuples with any of `flags`, by the hashes of `probed` at the flag's place.

        `probed` None: by their own words.
        """
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
    """The probes of arrived tuples of `side` in a slot: one layout version, some of their hashes.

    `rows`, `cells`: as in Probes. `needles`: the distinct seated keys of the rows. `dense`
    (needles,): which have more pairs with stored tuples than tuples, or than `cap` allows. `cap`:
    None: there is none.
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
        """(needles,) how many arrived rows have each needle."""
        return np.diff(self.needles.starts)

    @cached_property
    def needle_of(self) -> Ints:
        """(rows,) the needle of each arrived row."""
        return np.repeat(np.arange(len(self.dense)), self.sizes)

    def groups_at(self, places: Ints) -> Ints | None:
        """The tally's groups of the rows at `places`; None: it knows them by arrived row."""
        return self.needle_of[places] if self.tally.by_pair else None

    @cached_property
    def dense_ranks(self) -> Ints:
        """(needles,) the number of each dense needle among the dense ones."""
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
        """All rows, in the order of their needles."""
        return self._line(self.rows, self.needle_of if self.tally.by_pair else None)

    def _line(self, rows: Ints, groups: Ints | None) -> Line:
        return Line(self.spec.predicate, self.side, self.arrived.columns, rows, groups)

    def pairs(self, sheet: Sheet, rows: Rows, stored: Rows, groups: Ints | None = None) -> Pairs:
        """The pairs of arrived `rows` with `stored` rows, one by one; `groups`: as in Pairs."""
        columns = sheet.page.columns
        return Pairs(self.side, self.arrived, rows, columns, stored, self.cells, self.tally, groups)

    @cached_property
    def shares_keys(self) -> bool:
        """Whether the arrived tuples of each dense needle have equal keys."""
        rows, needle = self.dense_rows
        return self._equal(self.side, self.arrived, rows, needle)

    def has_keys_of(self, sheet: Sheet, rows: Ints, needle: Ints) -> bool:
        """Whether stored `rows` have the keys of their needles, and each needle has one key."""
        return self.shares_keys and self._equal(self.side.other, sheet.page, rows, needle)

    def _equal(self, side: Side, tuples: SortedTuples | Page, rows: Ints, needle: Ints) -> bool:
        """Whether rows of `side` have the keys of the first arrived tuples of their needles."""
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
        """The same for the stored tuples for which `some` is true."""
        needle, stored, begin, lengths = (
            column[some] for column in (self.needle, self.stored, self.begin, self.lengths)
        )
        return Met(needle, stored, self.met, begin, lengths)
