"""From candidate pairs to results.

The two tuples of a candidate pair share a key hash. They are compared by value, band, time and
predicate. The pairs that match become rows, and marks for watched tuples.

Cost: per candidate pair one comparison for each key column; per match one gather for each column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.exchange.results import Results
from joinengine.kernels.bands import numbers_of, own_cells, within_distance
from joinengine.kernels.comparing import equal_at, latest_time
from joinengine.kernels.expanding import expand_pairs
from joinengine.kernels.hashing import fixed_width
from joinengine.kernels.probing import Ints
from joinengine.kernels.seating import Seats
from joinengine.model.conditions import Distance
from joinengine.model.keys import Side
from joinengine.model.query import WINDOW_START, OutputColumn
from joinengine.model.windows import Sliding
from joinengine.operators.join.arriving import SortedTuples
from joinengine.operators.join.spec import JoinSpec
from joinengine.operators.join.watching import Marker
from joinengine.predicates.theta import holds

#: Candidate pairs that are compared together.
PAIRS = 1 << 18

Bools = NDArray[np.bool_]
Rows = Mapping[Side, Ints]


class Matcher:
    """Compares the candidate pairs of one join task, and hands over their results and marks."""

    def __init__(
        self,
        spec: JoinSpec,
        results: Results,
        marker: Marker | None,
        timed: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._spec = spec
        self._schema = spec.output_schema
        self._results = results
        self._marker = marker
        self._timed = timed
        self._counts = np.zeros(1, np.int64)

    def begin(self, seats: int) -> None:
        """Count results anew, for a team of so many instances."""
        self._counts = np.zeros(seats, np.int64)

    def counts(self) -> Ints:
        """(seats,) how many results each instance of the team has made."""
        return self._counts

    def match(
        self,
        side: Side,
        arrived: SortedTuples,
        rows: Ints,
        stored: pa.RecordBatch,
        their_rows: Ints,
        cells: Ints | None,
    ) -> None:
        """Compare (n,) pairs: `rows` of `arrived`, of `side`, with `their_rows` of `stored`.

        `cells`: per arrived row the cell that it probed; None: no band.
        """
        other = side.other
        columns = {side: arrived.columns, other: stored}
        at = {side: rows, other: their_rows}
        keep = self._equal(side, columns, at)
        times = self._times(arrived, stored, at, side)
        if times is not None:
            keep &= self._near(times)
        if self._spec.distance is not None:
            sought = None if cells is None else cells[rows]
            keep &= _in_band(self._spec.distance, columns, at, other, sought)
        if not keep.all():
            at = {one: some[keep] for one, some in at.items()}
            times = None if times is None else {one: some[keep] for one, some in times.items()}
        if self._spec.predicate is not None and len(at[side]):
            keep = holds(
                self._spec.predicate,
                (columns[Side.LEFT], columns[Side.RIGHT]),
                (at[Side.LEFT], at[Side.RIGHT]),
            )
            at = {one: some[keep] for one, some in at.items()}
            times = None if times is None else {one: some[keep] for one, some in times.items()}
        if len(at[side]):
            seats = None if arrived.seats is None else arrived.seats[at[side]]
            self._make(columns, at, times, seats)

    def _make(
        self,
        columns: Mapping[Side, pa.RecordBatch],
        at: Rows,
        times: Rows | None,
        seats: Seats,
    ) -> None:
        """Results and marks of pairs that match, each at the instance of its seat."""
        for pairs, windows in self._windows(times, len(at[Side.LEFT])):
            here = at if pairs is None else {side: some[pairs] for side, some in at.items()}
            if self._marker is not None:
                for side in self._spec.watched:
                    # The last column is the number of the tuple.
                    last = columns[side].column(columns[side].num_columns - 1)
                    ids = fixed_width(last, np.dtype(np.uint64))[here[side]]
                    mine = None if times is None else times[side]
                    mine = mine if pairs is None or mine is None else mine[pairs]
                    self._marker.add(side, ids, mine, windows)
            if self._spec.makes_pairs:
                with self._timed("result"):
                    self._count(len(here[Side.LEFT]), seats, pairs)
                    self._results.add(self._columns(columns, here, windows))

    def _count(self, n: int, seats: Seats, pairs: Ints | None) -> None:
        """Count `n` results; `pairs`: the place in `seats` of each, None: one of each."""
        if seats is None:
            self._counts[0] += n
        else:
            made = seats if pairs is None else seats[pairs]
            self._counts += np.bincount(made, minlength=len(self._counts))

    def _windows(self, times: Rows | None, n: int) -> Iterator[tuple[Ints | None, Ints | None]]:
        """Yields (pairs, the number of a window that holds each); None: all pairs, no window."""
        window = self._spec.window
        if not isinstance(window, Sliding):
            yield None, None
            return
        assert times is not None
        first, counts = window.shared(times[Side.LEFT], times[Side.RIGHT])
        yield from expand_pairs(np.arange(n), first, counts, PAIRS)

    def _columns(
        self, columns: Mapping[Side, pa.RecordBatch], at: Rows, windows: Ints | None
    ) -> list[pa.Array]:
        chosen = {side: pa.array(some) for side, some in at.items()}
        made = list[pa.Array]()
        for column, field in zip(self._spec.output, self._schema, strict=True):
            if column.side is None:
                assert windows is not None
                made.append(self._edge(column, windows).cast(field.type))
            else:
                taken = columns[column.side].column(column.column).take(chosen[column.side])
                made.append(taken if taken.type == field.type else taken.cast(field.type))
        return made

    def _edge(self, column: OutputColumn, windows: Ints) -> pa.Array:
        """The start or the end of each window."""
        window = self._spec.window
        assert isinstance(window, Sliding)
        starts = windows * window.slide_us
        return pa.array(starts if column.column == WINDOW_START else starts + window.size_us)

    def _equal(self, side: Side, columns: Mapping[Side, pa.RecordBatch], at: Rows) -> Bools:
        keep = np.ones(len(at[side]), bool)
        for mine, theirs in zip(self._spec.keys(side), self._spec.keys(side.other), strict=True):
            keep &= equal_at(
                columns[side].column(mine),
                at[side],
                columns[side.other].column(theirs),
                at[side.other],
            )
        return keep

    def _times(
        self, arrived: SortedTuples, stored: pa.RecordBatch, at: Rows, side: Side
    ) -> dict[Side, Ints] | None:
        """The times of both tuples of each pair."""
        if arrived.times is None:
            return None
        theirs = latest_time(stored, self._spec.times(side.other))
        return {side: arrived.times[at[side]], side.other: theirs[at[side.other]]}

    def _near(self, times: Rows) -> Bools:
        window = self._spec.window
        assert window is not None
        return window.near(times[Side.LEFT], times[Side.RIGHT])


def _in_band(
    distance: Distance,
    columns: Mapping[Side, pa.RecordBatch],
    rows: Rows,
    stored: Side,
    cells: Ints | None,
) -> Bools:
    """(n,) which pairs are within the band, and have the stored tuple in the probed cell.

    Two cells may share a hash; a tuple that probes both would otherwise find a pair twice.
    """
    numbers = {
        side: numbers_of(distance, columns[side].column(distance.column(side)).take(pa.array(at)))
        for side, at in rows.items()
    }
    keep = within_distance(distance, numbers[Side.LEFT], numbers[Side.RIGHT])
    return keep if cells is None else keep & (own_cells(distance, numbers[stored]) == cells)
