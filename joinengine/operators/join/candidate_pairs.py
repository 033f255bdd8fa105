"""Finds the candidate pairs: the stored tuples with which each arrived tuple is compared.

Why: pairs that share a key hash are found by binary search, but of the pairs of a hot key, few are
within the window. So a key with more pairs than tuples is *dense*: its arrived tuples are sorted by
time, and each of its stored tuples asks that timeline for the stretch that is near enough. Whether
the tuples of a dense key really have one key is checked once per tuple, not once per pair. If all
runs of a page are near enough in time, no times are compared. Without equality columns, all tuples
share one hash, so a predicate is evaluated only for pairs within the window. It is evaluated for
neighbours among the stored tuples together (`grids`).

Law: the pairs that match are those that a comparison of all pairs would find. For each probed key,
or cell of a band, candidates are at most the pairs within the window plus the tuples.
Cost: per distinct key one binary search per run; per tuple of a dense key some 100 ns; per pair 4
ns and the comparisons that remain, or 2 ns in a grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from joinengine.balancing import statistics
from joinengine.balancing.counting import Done
from joinengine.exchange.keying import are_distinct
from joinengine.kernels.bands import Bools
from joinengine.kernels.comparing import latest_time
from joinengine.kernels.expanding import expand_pairs, rows_of_hits
from joinengine.kernels.probing import Hits, Ints, Needles, live_rows
from joinengine.kernels.seating import (
    find_seated,
    group_seated,
    keys_of,
    row_bounds,
)
from joinengine.kernels.timelines import Timeline, covered
from joinengine.model.keys import Side
from joinengine.model.windows import Sliding
from joinengine.operators.base import OperatorTask
from joinengine.operators.hot import texts_of
from joinengine.operators.join.capping import Cap, Capped
from joinengine.operators.join.grids import Line, blocks_of, find
from joinengine.operators.join.join_spec import JoinSpec
from joinengine.operators.join.matching import MADE, PAIRS, Matcher, Unsettled
from joinengine.operators.join.probe_slots import Met, Probes, Slot
from joinengine.operators.join.tallying import Tally
from joinengine.operators.join.teams import SortedTuples
from joinengine.operators.spines import Timer
from joinengine.predicates.theta import Grid
from joinengine.routing.routes import probe_flag
from joinengine.state.gathering import Sheet, sheets_of
from joinengine.state.run import OpenRun, Run

#: The most stored tuples of dense keys that are looked at together.
STORED = 1 << 17

#: Runs of one side, by seat.
Runs = list[list[OpenRun]]


class Prober:
    """Finds the candidate pairs of one join task, and has them compared."""

    def __init__(self, spec: JoinSpec, task: OperatorTask, matcher: Matcher, timed: Timer) -> None:
        self._spec = spec
        self._task = task
        self._matcher, self._timed = matcher, timed
        counted = task.header.counted
        self._weighs = task.header.weighs and counted is not None
        #: whether the work of few pairs is not reported by key
        self._spares = counted is None or (counted.is_sparing and not len(counted.listed.hashes))
        #: the work for each key at the team, under the newest layout version
        self.done = list[Done]()
        #: (3, seats) tuples that have probed, pairs compared, and results
        self.counts = np.zeros((3, 1), np.int64)
        self.capped = Capped(named=task.header.named)

    def begin(self, seats: int) -> None:
        """Reset the counts, for a team of `seats` instances."""
        self.done, self.counts = [], np.zeros((3, seats), np.int64)

    def probe(self, side: Side, arrived: SortedTuples, state: Runs) -> None:
        """Pair the arrived tuples of `side` with the other side's `state`."""
        sheets = sheets_of(self._in_reach(side, arrived, state))
        keying = self._spec.keying
        cells = None if keying.is_plain else keying.probed(side, arrived.columns)
        joint = cells is not None and len(cells) > 1 and are_distinct(cells)
        joint = joint and self._spec.max_pairs is None
        for version, number in enumerate(self._task.stored.versions):
            stored = [sheet for sheet in sheets if sheet.version == number]
            flags = [probe_flag(version * keying.probes + place) for place in range(keying.probes)]
            if joint:
                probes = Probes.of(arrived, flags, cells)
                self._probe(side, arrived, probes, stored, weighs=self._weighs and not version)
                continue
            for place, flag in enumerate(flags):
                own_cells = None if cells is None else cells[place : place + 1]
                probes = Probes.of(arrived, [flag], own_cells)
                self._probe(side, arrived, probes, stored, weighs=self._weighs and not version)

    def _probe(
        self,
        side: Side,
        arrived: SortedTuples,
        probes: Probes,
        stored: Sequence[Sheet],
        *,
        weighs: bool,
    ) -> None:
        """Pair tuples with the stored ones of a version; `weighs`: its keys are weighed."""
        rows, words, seats, *_ = probes
        if not (stored or weighs):
            self.counts[0] += np.diff(row_bounds(seats, len(rows), self.counts.shape[1]))
            return
        needles = group_seated(words, seats)
        hits_by_sheet = [find_seated(*sheet.stretch[:2], needles, sheet.gone) for sheet in stored]
        most = self._spec.max_pairs
        dense, pairs = _dense(needles, hits_by_sheet, most)
        by_key = weighs and not (self._spares and pairs < statistics.FEW_PAIRS)
        seats_here = self.counts.shape[1]
        tally = Tally.of(
            needles, rows, arrived, seats_here, by_key=by_key, is_joint=probes.is_joint
        )
        cap = None if most is None else Cap.of(len(dense), most)
        slot = Slot(self._spec, side, arrived, rows, needles, probes.cells, dense, tally, cap)
        for sheet, hits in zip(stored, hits_by_sheet, strict=True):
            self._meet(slot, sheet, hits)
        self.counts += tally.per_seat()
        if cap is not None:
            self._note_capped(slot, cap)
        if weighs:
            self.done.append(tally.done(side))

    def _note_capped(self, slot: Slot, cap: Cap) -> None:
        """Take note of the pairs that were left out."""
        keying, columns = self._spec.keying, slot.arrived.columns

        def texts(needles: Ints) -> Iterable[str | None]:
            firsts = slot.rows[slot.needles.starts[needles]]
            return texts_of(keying, slot.side, columns, firsts)

        self.capped.add(cap, keys_of(slot.needles.hashes), texts)

    def _meet(self, slot: Slot, sheet: Sheet, hits: Hits) -> None:
        """Pair the tuples of one sheet with the arrived ones that have their keys."""
        if not len(hits.needles):
            return
        is_near, dense = self._is_near(slot, sheet), slot.dense[hits.needles]
        limit = self._limit(slot.arrived, sheet)
        if not dense.all():
            sparse = hits if not dense.any() else Hits(*(column[~dense] for column in hits))
            unsettled = Unsettled(keys=True, times=not is_near)
            slot.tally.compare(sparse.needles, sparse.counts * slot.sizes[sparse.needles])
            with self._timed("match"):
                for rows, ranks in expand_pairs(*rows_of_hits(sparse, slot.needles), limit):
                    groups = slot.groups_at(rows)
                    pairs = slot.pairs(sheet, slot.rows[rows], _live(sheet, ranks), groups)
                    self._matcher.match(pairs, unsettled)
        if not dense.any():
            return
        hits = Hits(*(column[dense] for column in hits))
        for needle, ranks in expand_pairs(hits.needles, hits.lower, hits.counts, STORED):
            stored = _live(sheet, ranks)
            unsettled = Unsettled(keys=not slot.has_keys_of(sheet, stored, needle), times=False)
            if is_near:
                begin, end = slot.needles.starts[needle], slot.needles.starts[needle + 1]
                met = Met(needle, stored, slot.by_key, begin, end - begin)
            else:
                met = self._in_time(slot, sheet, stored, needle)
            with self._timed("match"):
                self._meet_dense(slot, sheet, met, unsettled, limit)

    def _in_time(self, slot: Slot, sheet: Sheet, stored: Ints, needle: Ints) -> Met:
        """The arrived rows that are near enough in time to stored rows of dense needles."""
        window = self._spec.window
        assert window is not None
        times = latest_time(sheet.page.columns, self._spec.times(slot.side.other))[stored]
        ranks = slot.dense_ranks[needle]
        # In the order of time, neighbours search for, and meet, nearly the same rows.
        order = Timeline.of(ranks, times).order
        first, last = window.partners(slot.side.other, times[order])
        begin, lengths = slot.timeline.between(ranks[order], first, last)
        met = np.flatnonzero(lengths)
        order = order[met]
        return Met(needle[order], stored[order], slot.in_time, begin[met], lengths[met])

    def _meet_dense(
        self, slot: Slot, sheet: Sheet, meeting: Met, unsettled: Unsettled, limit: int
    ) -> None:
        """Compare stored rows with the arrived ones that they meet.

        If all these pairs are known to match, each tuple is marked once. If then no pair is a
        result, pairs are not looked at.
        """
        if slot.cap is not None:
            meeting = meeting._replace(lengths=slot.cap.cut(meeting.needle, meeting.lengths))
            meeting = meeting.only(meeting.lengths > 0)
        if self._matcher.is_settled(unsettled):
            limit = min(limit, MADE)
            if self._matcher.marks_tuples:
                rows_met = meeting.met.rows
                rows_met = rows_met[covered(len(rows_met), meeting.begin, meeting.lengths)]
                stored = meeting.stored[meeting.lengths > 0]
                self._matcher.mark(slot.pairs(sheet, rows_met, stored))
                if not self._spec.makes_pairs:
                    slot.tally.look_at(rows_met)
                    return
                unsettled = unsettled._replace(marks=False)
            if not isinstance(self._spec.window, Sliding):
                slot.tally.make_all(meeting.needle, meeting.lengths)
                unsettled = unsettled._replace(counts=False)
        slot.tally.compare(meeting.needle, meeting.lengths)
        meeting = self._meet_in_grid(slot, sheet, meeting, unsettled, limit)
        # Row numbers of half the width take half the time to expand.
        inner, outer = meeting.met.rows.astype(np.int32), meeting.stored.astype(np.int32)
        groups_met = meeting.met.groups
        for rows, places in expand_pairs(outer, meeting.begin, meeting.lengths, limit):
            groups = None if groups_met is None else groups_met[places]
            self._matcher.match(slot.pairs(sheet, inner[places], rows, groups), unsettled)

    def _meet_in_grid(
        self, slot: Slot, sheet: Sheet, meeting: Met, unsettled: Unsettled, limit: int
    ) -> Met:
        """Compare neighbouring stored rows together; returns the rows that are in no block."""
        spec = self._spec
        if spec.predicate is None or spec.distance is not None or not len(meeting.stored):
            return meeting
        blocks, others = blocks_of(meeting.needle, meeting.begin, meeting.lengths)
        if others.all():
            return meeting
        line = Line(spec.predicate, slot.side.other, sheet.page.columns, meeting.stored)
        grid = Grid.of(spec.predicate, line.asked, meeting.met.asked)
        if grid is None:
            return meeting
        known = unsettled._replace(predicate=False)
        for pairs in find(grid, blocks, meeting.begin, meeting.lengths, MADE):
            for first in range(0, len(pairs.rows), limit):
                part = slice(first, first + limit)
                rows, stored = meeting.met.rows[pairs.met[part]], meeting.stored[pairs.rows[part]]
                self._matcher.match(slot.pairs(sheet, rows, stored), known)
        return meeting.only(others)

    def _is_near(self, slot: Slot, sheet: Sheet) -> bool:
        """Whether each tuple of a sheet is near enough in time to each arrived tuple."""
        window, times = self._spec.window, slot.arrived.times
        if window is None or times is None:
            return True
        if sheet.span is None:
            return False
        # Partners of later times are later. So a span within the window of both ends is within
        # the window of every time between them.
        first, last = window.partners(slot.side, np.array([times.min(), times.max()]))
        return bool(first[1] <= sheet.span[0] and sheet.span[1] <= last[0])

    def _limit(self, arrived: SortedTuples, sheet: Sheet) -> int:
        """The most candidate pairs that may be compared together, so that their results fit."""
        mine, theirs = arrived.columns, sheet.page.columns
        size = sum(
            columns.nbytes / columns.num_rows for columns in (mine, theirs) if columns.num_rows
        )
        return max(min(PAIRS, int(self._task.memory_bytes / 8 / max(size, 1.0))), 1)

    def _in_reach(self, side: Side, arrived: SortedTuples, state: Runs) -> Runs:
        """The runs that may hold tuples near enough in time to those that arrived at their seat.

        A seat at which no tuple arrived has no such runs.
        """
        bounds, times = arrived.bounds, arrived.times
        seats = np.flatnonzero(np.diff(bounds))
        near: Runs = [[] for _ in state]
        if self._spec.window is None or times is None:
            for seat in seats.tolist():
                near[seat] = state[seat]
            return near
        firsts = bounds[seats]
        earliest, latest = np.minimum.reduceat(times, firsts), np.maximum.reduceat(times, firsts)
        reached = zip(seats.tolist(), earliest.tolist(), latest.tolist(), strict=True)
        for seat, *span in reached:
            near[seat] = [run for run in state[seat] if not self._is_apart(side, span, run.run)]
        return near

    def _is_apart(self, side: Side, span: Sequence[int], run: Run) -> bool:
        """Whether no tuple of the run can be near enough in time to tuples within `span`."""
        window = self._spec.window
        if window is None or run.min_time is None or run.max_time is None:
            return False
        run_span = run.min_time, run.max_time
        left, right = (span, run_span) if side is Side.LEFT else (run_span, span)
        lower, upper = window.lower_us, window.upper_us
        early = lower is not None and right[1] - left[0] < lower
        return early or (upper is not None and right[0] - left[1] > upper)


def _dense(needles: Needles, hits_by_sheet: Sequence[Hits], most: int | None) -> tuple[Bools, int]:
    """(needles,) which have more pairs with stored tuples than tuples; and the pairs of all.

    Needles with more than `most` pairs are also dense.
    """
    stored = np.zeros(len(needles.hashes), np.int64)
    for hits in hits_by_sheet:
        stored[hits.needles] += hits.counts
    arrived = np.diff(needles.starts)
    pairs = arrived * stored
    few = arrived + stored
    if most is not None:
        few = np.minimum(few, most)
    return np.asarray(pairs > few), int(pairs.sum())


def _live(sheet: Sheet, ranks: Ints) -> Ints:
    """Live ranks in a sheet -> rows of its page."""
    return ranks if sheet.gone is None else live_rows(sheet.gone, ranks)
