"""Counts the work of probes: pairs compared and results made, by key if planners weigh keys.

Why: a batch waits for pairs and results, so planners must know their keys. If all pairs of a dense
key are known to match, they are counted from its tuples, without looking at pairs.

Law: the sums over the groups are those over all pairs.
Cost: 4 ns for each pair that is compared one by one, if pairs are counted by key; otherwise hardly
any.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joinengine.balancing.counting import Done
from joinengine.kernels.probing import Ints, Needles, Rows
from joinengine.kernels.seating import seat_bounds, seats_of
from joinengine.model.keys import Side
from joinengine.operators.join.teams import SortedTuples


@dataclass(frozen=True, slots=True)
class Tally:
    """The work of the tuples that probe in one slot, by group: needles, or else seats.

    `group_of_needle` (needles,): the group of each needle. `group_of_row`: per arrived row; None:
    there is one group, or counting is `by_pair`. Counts are (groups,).
    """

    needles: Needles
    seats: int
    by_key: bool
    group_of_needle: Ints
    group_of_row: Ints | None
    candidates: Ints
    results: Ints

    @classmethod
    def of(
        cls,
        needles: Needles,
        rows: Ints,
        arrived: SortedTuples,
        seats: int,
        *,
        by_key: bool,
        is_joint: bool = False,
    ) -> Tally:
        """The tally before any work.

        `rows`: those of `arrived` that probe, in the order of the needles, at `seats` seats.
        `by_key`: pairs are counted by key. `is_joint`: a row may occur several times.
        """
        n = len(needles.hashes)
        if by_key:
            of_needle, of_row = np.arange(n), None
            if not is_joint:
                of_row = np.zeros(len(arrived.words), np.int64)
                of_row[rows] = np.repeat(of_needle, np.diff(needles.starts))
            counts = np.zeros((2, n), np.int64)
            return cls(needles, seats, by_key, of_needle, of_row, *counts)
        counts = np.zeros((2, seats), np.int64)
        if arrived.seats is None:
            return cls(needles, seats, by_key, np.zeros(n, np.int64), None, *counts)
        at_seats = arrived.seats.astype(np.int64)
        return cls(needles, seats, by_key, seats_of(needles.hashes), at_seats, *counts)

    @property
    def by_pair(self) -> bool:
        """Whether each pair needs its group, because a row has several groups."""
        return self.by_key and self.group_of_row is None

    def compare(self, needles: Ints, counts: Ints) -> None:
        """Count compared pairs: `counts` of each of `needles`."""
        _add(self.candidates, self.group_of_needle[needles], counts)

    def look_at(self, rows: Ints) -> None:
        """Count arrived rows that were looked at in place of their pairs."""
        self._add_rows(self.candidates, rows)

    def make_all(self, needles: Ints, counts: Ints) -> None:
        """Count results: `counts` of each of `needles`."""
        _add(self.results, self.group_of_needle[needles], counts)

    def make(self, rows: Rows, groups: Ints | None = None) -> None:
        """Count one result for each of (n,) arrived rows; `groups`: as in Pairs."""
        if groups is None:
            self._add_rows(self.results, rows)
        else:
            _add(self.results, groups, None)

    def _add_rows(self, totals: Ints, rows: Rows) -> None:
        if self.group_of_row is None:
            totals[0] += len(rows)
        else:
            totals += np.bincount(self.group_of_row[rows], minlength=len(totals))

    def per_seat(self) -> Ints:
        """(3, seats) tuples that have probed, pairs compared, and results."""
        counts = np.stack([self.candidates, self.results])
        if self.seats == 1:
            probed = self.needles.starts[-1] - self.needles.starts[0]
            return np.append(probed, counts.sum(axis=1))[:, None]
        bounds = seat_bounds(self.needles.hashes, self.seats)
        probed = np.diff(self.needles.starts[bounds])
        if self.by_key:
            ends = np.cumsum(counts, axis=1)
            counts = np.diff(np.pad(ends, ((0, 0), (1, 0)))[:, bounds])
        return np.stack([probed, *counts])

    def done(self, side: Side) -> Done:
        """The work for each key by tuples of `side`; without pairs, unless counted by key."""
        probed = np.diff(self.needles.starts)
        pairs = self.candidates, self.results
        if not self.by_key:
            pairs = np.zeros_like(probed), np.zeros_like(probed)
        return Done(side, self.needles.hashes, probed, *pairs)


def _add(totals: Ints, places: Ints, counts: Ints | None) -> None:
    totals += np.bincount(places, counts, len(totals)).astype(np.int64)
