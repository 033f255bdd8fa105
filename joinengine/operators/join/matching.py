"""Turns candidate pairs into results.

The two tuples of a candidate pair share a key hash. They are compared by value, band, time and
predicate. Matching pairs become rows, and marks for watched tuples.

Cost: per candidate pair one comparison for each key column; per match one gather for each column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from joinengine.exchange.task_results import Results
from joinengine.kernels.bands import numbers_of, own_cells, within_distance
from joinengine.kernels.comparing import equal_at, latest_time
from joinengine.kernels.expanding import expand_pairs
from joinengine.kernels.hashing import fixed_width
from joinengine.kernels.probing import Ints, Rows
from joinengine.kernels.widths import fitting, widths_at
from joinengine.model.conditions import Distance, Predicate
from joinengine.model.errors import JoinEngineError
from joinengine.model.keys import PAIR, Side
from joinengine.model.query import CHANGE, WINDOW_START, OutputColumn
from joinengine.model.windows import Sliding
from joinengine.operators.join.join_spec import JoinSpec
from joinengine.operators.join.tallying import Tally
from joinengine.operators.join.teams import SortedTuples
from joinengine.operators.join.watchers import Marker
from joinengine.predicates.theta import holds

#: The most candidate pairs that are compared together.
PAIRS = 1 << 18
#: The most pairs that become results together if nothing is left to compare, so that they stay in
#: the CPU cache.
MADE = 1 << 15

Bools = NDArray[np.bool_]
#: Per side, the event time of each pair's tuple.
Times = Mapping[Side, Ints]


class Pairs(NamedTuple):
    """n candidate pairs: `rows` (n,) of the `arrived` tuples of `side`, and rows of `stored` ones.

    `cells`: per arrived row, the cell that it probed; None: no band. `tally`: counts their results,
    in `groups` (n,); None: in the groups of the arrived rows.
    """

    side: Side
    arrived: SortedTuples
    rows: Rows
    stored: pa.RecordBatch
    stored_rows: Rows
    cells: Ints | None
    tally: Tally
    groups: Ints | None = None

    @property
    def columns(self) -> Mapping[Side, pa.RecordBatch]:
        """The tuples of each side."""
        return {self.side: self.arrived.columns, self.side.other: self.stored}

    @property
    def at(self) -> Mapping[Side, Rows]:
        """Side -> (n,) rows."""
        return {self.side: self.rows, self.side.other: self.stored_rows}

    def only(self, some: Bools | Ints | slice) -> Pairs:
        """Some of the pairs."""
        groups = None if self.groups is None else self.groups[some]
        return self._replace(
            rows=self.rows[some], stored_rows=self.stored_rows[some], groups=groups
        )


class Unsettled(NamedTuple):
    """What must still be done for candidate pairs: compare their keys, and compare their times.

    `predicate`: evaluate it. `marks`: mark the pairs that match. `counts`: count their results.
    """

    keys: bool
    times: bool
    predicate: bool = True
    marks: bool = True
    counts: bool = True


class Matcher:
    """Compares the candidate pairs of one join task, and hands over their results and marks."""

    def __init__(
        self,
        spec: JoinSpec,
        results: Results,
        marker: Marker | None,
        timed: Callable[[str], AbstractContextManager[None]],
        most_bytes: int,
    ) -> None:
        self._spec = spec
        self._schema = spec.output_schema
        self._results = results
        self._marker = marker
        self._timed = timed
        self._most_bytes = most_bytes

    def is_settled(self, unsettled: Unsettled) -> bool:
        """Whether all pairs with this `unsettled` are known to match."""
        settled = self._spec.distance is None and self._spec.predicate is None
        return settled and not (unsettled.keys or unsettled.times)

    @property
    def marks_tuples(self) -> bool:
        """Whether a tuple is marked once, and not for each window in which it has matched."""
        return self._marker is not None and not isinstance(self._spec.window, Sliding)

    def mark(self, pairs: Pairs) -> None:
        """Mark tuples that have matched; the rows of the two sides are not pairs."""
        times = None if self._spec.window is None else self._times(pairs)
        self._marked(pairs, times, None)

    def match(self, pairs: Pairs, unsettled: Unsettled) -> None:
        """Compare pairs as far as they are unsettled; make results and marks of matching ones."""
        keep = self._agreeing(pairs, unsettled)
        if keep is not None and not keep.all():
            pairs = pairs.only(keep)
        if self._spec.predicate is not None and unsettled.predicate and len(pairs.rows):
            pairs = pairs.only(self._holding(self._spec.predicate, pairs))
        if len(pairs.rows):
            self._make(pairs, unsettled)

    def _holding(self, predicate: Predicate, pairs: Pairs) -> Bools:
        """(n,) which pairs fulfil a predicate, evaluated on as many at a time as fit."""
        columns, at = pairs.columns, pairs.at
        widths = [
            widths_at(columns[side].column(name), at[side]) for side, name in predicate.columns
        ]
        sides = columns[Side.LEFT], columns[Side.RIGHT]
        holding = [
            holds(predicate, sides, (at[Side.LEFT][part], at[Side.RIGHT][part]))
            for part in fitting(widths, len(pairs.rows), self._most_bytes)
        ]
        return holding[0] if len(holding) == 1 else np.concatenate(holding)

    def _agreeing(self, pairs: Pairs, unsettled: Unsettled) -> Bools | None:
        """(n,) which pairs agree in key, time and band; None: all are known to agree."""
        spec, tests = self._spec, list[Bools]()
        if unsettled.keys:
            tests += self._equal(pairs)
        if unsettled.times:
            assert spec.window is not None
            times = self._times(pairs)
            tests.append(spec.window.near(times[Side.LEFT], times[Side.RIGHT]))
        if spec.distance is not None:
            tests.append(_in_band(spec.distance, pairs))
        return reduce(np.logical_and, tests) if tests else None

    def _make(self, pairs: Pairs, unsettled: Unsettled) -> None:
        """Emit the results and marks of pairs that match."""
        marks, times = unsettled.marks and self._marker is not None, None
        if self._spec.window is not None and (marks or isinstance(self._spec.window, Sliding)):
            times = self._times(pairs)
        for places, windows in self._windows(times, len(pairs.rows)):
            chosen = pairs if places is None else pairs.only(places)
            if marks:
                times_chosen = times
                if times is not None and places is not None:
                    times_chosen = {side: instants[places] for side, instants in times.items()}
                self._marked(chosen, times_chosen, windows)
            if self._spec.makes_pairs:
                with self._timed("result"):
                    if unsettled.counts:
                        chosen.tally.make(chosen.rows, chosen.groups)
                    for part in self._fitting(chosen):
                        some = windows if windows is None else windows[part]
                        self._results.add(self._columns(chosen.only(part), some))

    def _fitting(self, pairs: Pairs) -> Iterator[slice]:
        """The pairs in stretches whose results fit: one long value may be in many results."""
        columns, at = pairs.columns, pairs.at
        output = [(column.side, column.column) for column in self._spec.output]
        shown = ((side, name) for side, name in output if side is not None)
        widths = [widths_at(columns[side].column(name), at[side]) for side, name in shown]
        return fitting(widths, len(pairs.rows), self._most_bytes)

    def _marked(self, pairs: Pairs, times: Times | None, windows: Ints | None) -> None:
        """Mark the tuples of watched sides, in these windows."""
        assert self._marker is not None
        columns, at = pairs.columns, pairs.at
        for side in self._spec.watched:
            # The last column is the tuple's number.
            last = columns[side].column(columns[side].num_columns - 1)
            ids = fixed_width(last, np.dtype(np.uint64))[at[side]]
            self._marker.add(side, ids, None if times is None else times[side], windows)

    def _windows(self, times: Times | None, n: int) -> Iterator[tuple[Ints | None, Ints | None]]:
        """Yields (places of pairs, number of a window that holds each); None: all, no windows."""
        window = self._spec.window
        if not isinstance(window, Sliding):
            yield None, None
            return
        assert times is not None
        first, counts = window.shared(times[Side.LEFT], times[Side.RIGHT])
        yield from expand_pairs(np.arange(n), first, counts, PAIRS)

    def _columns(self, pairs: Pairs, windows: Ints | None) -> list[pa.Array]:
        columns, chosen = pairs.columns, {side: pa.array(rows) for side, rows in pairs.at.items()}
        arrays = list[pa.Array]()
        for column, field in zip(self._spec.output, self._schema, strict=True):
            if column.side is None and column.column == CHANGE:
                arrays.append(self._change(pairs))
            elif column.side is None:
                assert windows is not None
                arrays.append(self._edge(column, windows).cast(field.type))
            else:
                array = columns[column.side].column(column.column).take(chosen[column.side])
                arrays.append(array if array.type == field.type else array.cast(field.type))
        return arrays

    def _change(self, pairs: Pairs) -> pa.Array:
        """(n,) how many equal rows of each pair come or, if below 0, go."""
        names = {side: name for side in PAIR if (name := self._spec.change_of(side)) is not None}
        changes = [
            pairs.columns[side].column(name).take(pa.array(pairs.at[side]))
            for side, name in names.items()
        ]
        try:
            return reduce(pc.multiply_checked, changes)
        except pa.ArrowInvalid:
            raise JoinEngineError(
                f"changes: {' times '.join(names.values())} of a pair is more than 64 bits hold; "
                "give smaller changes"
            ) from None

    def _edge(self, column: OutputColumn, windows: Ints) -> pa.Array:
        """(n,) the start or the end of each window."""
        window = self._spec.window
        assert isinstance(window, Sliding)
        starts = windows * window.slide_us
        return pa.array(starts if column.column == WINDOW_START else starts + window.size_us)

    def _equal(self, pairs: Pairs) -> Iterator[Bools]:
        """For each key column, (n,) whether both tuples of each pair have the same value."""
        side, other = pairs.side, pairs.side.other
        columns, at = pairs.columns, pairs.at
        for name, other_name in zip(self._spec.keys(side), self._spec.keys(other), strict=True):
            column, other_column = columns[side].column(name), columns[other].column(other_name)
            yield equal_at(column, at[side], other_column, at[other])

    def _times(self, pairs: Pairs) -> dict[Side, Ints]:
        """Side -> (n,) event times of its tuple in each pair."""
        assert pairs.arrived.times is not None
        stored_times = latest_time(pairs.stored, self._spec.times(pairs.side.other))
        arrived_times = pairs.arrived.times[pairs.rows]
        return {pairs.side: arrived_times, pairs.side.other: stored_times[pairs.stored_rows]}


def _in_band(distance: Distance, pairs: Pairs) -> Bools:
    """(n,) which pairs are within the band, with the stored tuple in the probed cell.

    Two cells may share a hash. A tuple that probes both would otherwise find a pair twice.
    """
    columns = pairs.columns
    numbers = {
        side: numbers_of(distance, columns[side].column(distance.column(side)).take(pa.array(at)))
        for side, at in pairs.at.items()
    }
    keep = within_distance(distance, numbers[Side.LEFT], numbers[Side.RIGHT])
    if pairs.cells is not None:
        keep &= own_cells(distance, numbers[pairs.side.other]) == pairs.cells[pairs.rows]
    return keep
