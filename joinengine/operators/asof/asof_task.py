"""The as-of task: what happens to a set of instances in one batch.

Why: whether a right tuple is the nearest to a left one is known once no nearer one can come. So
left tuples wait where they are stored, and are *settled* when the watermark has passed them far
enough; each then meets all right tuples of its key that may be nearest, since a layout divides left
tuples alone and copies right ones to each of their homes.

An instance works in this order: left tuples of earlier batches that can be settled are; the tuples
of the batch are stored. If the right side is a table, it is stored first, and left tuples are
settled as they arrive; if the latest right tuple is meant, they are settled first.

Law: each left tuple is settled once, at its home. Right tuples of a batch are at or above its
watermark, so they are nearest to no tuple that is settled in it.
Cost: per left tuple that is settled one sort, together with the right tuples of its key; what waits
on is written again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.balancing.counting import Done
from joinengine.exchange.blocks import Tuples
from joinengine.kernels.comparing import equal_at
from joinengine.kernels.hashing import Words, fixed_width, key_hash
from joinengine.kernels.nearest import ENDLESS, NONE, Moments, after, before, distances
from joinengine.kernels.probing import (
    Ints,
    Needles,
    expand_ranges,
    find,
    group_keys,
    live_rows,
    sort_order,
)
from joinengine.model.conditions import Direction
from joinengine.model.keys import PAIR, Side
from joinengine.model.query import JoinType
from joinengine.operators.asof.asof_spec import AsOfShelf, AsOfSpec
from joinengine.operators.base import OperatorTask
from joinengine.operators.desk import MERGE_ROWS, Desk
from joinengine.operators.hot import texts_in
from joinengine.operators.spines import spines_of
from joinengine.predicates.theta import passes
from joinengine.state.run import OpenRun
from joinengine.wire.reports import InstanceReport

#: Left tuples that are settled together.
SETTLED = 1 << 17

Bools = NDArray[np.bool_]


def join_as_of(spec: AsOfSpec, task: OperatorTask, desk: Desk) -> None:
    """Carry out an as-of task."""
    worker = _Worker(spec, task, desk)
    for instance in task.header.hosted:
        worker.work(instance)


class _Waiting(NamedTuple):
    """Left tuples in the order of their words."""

    words: Words
    columns: pa.RecordBatch

    def take(self, rows: Ints) -> _Waiting:
        """Some of them."""
        return _Waiting(self.words[rows], self.columns.take(pa.array(rows)))


class _Rights(NamedTuple):
    """The right tuples of some keys: row `rows[i]` of run `runs[i]`, and what orders them."""

    runs: Ints
    rows: Ints
    moments: Moments
    numbers: Words
    of_needle: Ints

    def only(self, some: Ints) -> _Rights:
        """Some of them."""
        return _Rights(
            self.runs[some],
            self.rows[some],
            self.moments.only(some),
            self.numbers[some],
            self.of_needle[some],
        )


class _Worker:
    def __init__(self, spec: AsOfSpec, task: OperatorTask, desk: Desk) -> None:
        self._spec = spec
        self._desk = desk
        self._watermark = task.header.watermark
        self._shelf = AsOfShelf(spec)
        self._readers = [desk.reader(blocks) for blocks in task.blocks]
        version = task.stored.versions[0]
        self._keeper = desk.keeper(self._shelf, version=version, merge_rows=MERGE_ROWS)
        self._spines = spines_of(task, self._keeper, self._shelf, desk)
        self._done = list[Done]()

    def work(self, instance: int) -> None:
        """The batch at one instance."""
        desk, self._done = self._desk, []
        with desk.at(instance) as report:
            with desk.timed("open"):
                lefts, rights = (self._spines.at(instance, side) for side in PAIR)
            with desk.timed("exchange"):
                arrived = [self._arrived(instance, side, report) for side in PAIR]
            left, right = arrived
            stored = self._stored(instance, Side.RIGHT, right)
            if self._spec.waits:
                lefts = self._settle_waiting(instance, lefts, rights, report)
                lefts += self._stored(instance, Side.LEFT, left)
            elif left is not None:
                table_runs = [] if self._spec.table is None else stored
                self._settle_all(left, [*rights, *table_runs], report)
            rights += stored
            with desk.timed("merge"):
                rights = self._keeper.merge(rights)
            with desk.timed("count"):
                words = [
                    np.empty(0, np.uint64) if tuples is None else tuples.words for tuples in arrived
                ]
                texts = texts_in(self._spec.keying, [lefts, rights])
                desk.count_keys(instance, words, [lefts, rights], texts, done=self._done)

    def _arrived(self, instance: int, side: Side, report: InstanceReport) -> _Waiting | None:
        """The tuples that came to one side; left ones that match nothing are shown at once."""
        slices = self._readers[side].slices(instance)
        if not slices:
            return None
        words, _, columns = Tuples.sorted(slices)
        report.received[side] += len(words)
        tuples = _Waiting(words, columns)
        if side is Side.LEFT and self._spec.how is JoinType.LEFT:
            matchless = self._spec.keying.unusable(side, columns)
            if matchless is not None:
                self._show(columns.filter(pa.array(matchless)), None)
                tuples = tuples.take(np.flatnonzero(~matchless))
        stays = side is Side.RIGHT or self._spec.waits
        report.stored[side] += len(tuples.words) if stays else 0
        return tuples if len(tuples.words) else None

    def _stored(self, instance: int, side: Side, tuples: _Waiting | None) -> list[OpenRun]:
        """The run of what is to be kept; none if that is nothing."""
        if tuples is None:
            return []
        with self._desk.timed("store"):
            return [self._keeper.seal(instance, side, tuples.words, tuples.columns)]

    def _settle_waiting(
        self, instance: int, lefts: list[OpenRun], rights: list[OpenRun], report: InstanceReport
    ) -> list[OpenRun]:
        """Settle what can be; the left runs with what waits on."""
        kept, waiting = list[OpenRun](), list[_Waiting]()
        for run in lefts:
            if run.run.min_time is not None and run.run.min_time >= self._watermark:
                kept.append(run)
                continue
            live = run.live_rows()
            ripe = self._spec.order(Side.LEFT, run.columns)[live] < self._watermark
            stored = _Waiting(run.words, run.columns)
            waiting.append(stored.take(live[~ripe]))
            waiting += self._settle_all(stored.take(live[ripe]), rights, report)
            self._keeper.forget(run.run)
        words = np.concatenate([np.empty(0, np.uint64), *(tuples.words for tuples in waiting)])
        if not len(words):
            return kept
        order = sort_order(words)
        columns = pa.concat_batches([tuples.columns for tuples in waiting]).take(pa.array(order))
        return kept + self._stored(instance, Side.LEFT, _Waiting(words[order], columns))

    def _settle_all(
        self, tuples: _Waiting, rights: Sequence[OpenRun], report: InstanceReport
    ) -> list[_Waiting]:
        """Settle left tuples, not too many at a time; those that wait on."""
        waiting = list[_Waiting]()
        for start in range(0, len(tuples.words), SETTLED):
            part = _Waiting(
                tuples.words[start : start + SETTLED], tuples.columns.slice(start, SETTLED)
            )
            settled = self._settle(part, rights, report)
            waiting.append(part.take(np.flatnonzero(~settled)))
        return waiting

    def _settle(self, tuples: _Waiting, rights: Sequence[OpenRun], report: InstanceReport) -> Bools:
        """Show left tuples with their nearest; (n,) which of them are settled."""
        spec, needles = self._spec, group_keys(tuples.words)
        with self._desk.timed("probe"):
            candidates_met = self._of_keys(needles, rights)
            hashes = key_hash(tuples.words)
            moments = Moments(hashes, spec.order(Side.LEFT, tuples.columns))
            chosen, apart = self._nearest(moments, candidates_met)
            chosen, columns = self._verified(tuples, moments, candidates_met, rights, chosen, apart)
            if spec.deleted is not None and columns.num_rows:
                gone = passes(spec.deleted, columns)
                chosen[np.flatnonzero(chosen != NONE)[gone]] = NONE
                columns = columns.filter(pa.array(~gone))
            settled = self._is_settled(moments.times, apart)
        matched = settled & (chosen != NONE)
        with self._desk.timed("result"):
            shown = settled if spec.how is JoinType.LEFT else matched
            rows = np.flatnonzero(shown)
            if len(rows):
                places = np.cumsum(chosen != NONE) - 1
                partners = pa.array(places[rows], mask=chosen[rows] == NONE)
                self._show(tuples.columns.take(pa.array(rows)), columns.take(partners))
        probed = np.diff(needles.starts)
        candidates = np.bincount(candidates_met.of_needle, minlength=len(probed))
        results = np.add.reduceat(matched.astype(np.int64), needles.starts[:-1])
        self._done.append(Done(Side.LEFT, needles.hashes, probed, candidates, results))
        report.probed += len(tuples.words)
        report.candidates += len(candidates_met.rows)
        return settled

    def _of_keys(self, needles: Needles, runs: Sequence[OpenRun]) -> _Rights:
        """The right tuples of some keys, in all runs."""
        none = np.empty(0, np.int64)
        parts = [(none, none, none, none, none.astype(np.uint64))]
        for number, run in enumerate(runs):
            hits = find(run.words, needles, run.gone)
            ranks = expand_ranges(hits.lower, hits.counts)
            if not len(ranks):
                continue
            rows = ranks if run.gone is None else live_rows(run.gone, ranks)
            taken = pa.array(rows)
            names = [*self._spec.condition.times[Side.RIGHT], run.columns.schema.names[-1]]
            columns = run.columns.select(names).take(taken)
            times = self._spec.order(Side.RIGHT, columns)
            numbers = fixed_width(columns.column(len(names) - 1), np.dtype(np.uint64))
            of_needle = np.repeat(hits.needles, hits.counts)
            parts.append((np.full(len(rows), number), rows, of_needle, times, numbers))
        numbers_of_runs, rows, of_needle, times, numbers = map(
            np.concatenate, zip(*parts, strict=True)
        )
        groups = needles.hashes[of_needle]
        return _Rights(numbers_of_runs, rows, Moments(groups, times), numbers, of_needle)

    def _nearest(self, left: Moments, right: _Rights) -> tuple[Ints, Words]:
        """(n,) the nearest right tuple of each left one, or NONE, and how far it is away.

        How far: in microseconds, or in the unit of what orders them if these are no instants;
        ENDLESS if there is none, or only one beyond the tolerance.
        """
        on, nearest = self._spec.condition, list[tuple[Ints, Words]]()
        if on.direction is not Direction.FORWARD:
            rows = before(left, right.moments, right.numbers, strict=on.strict)
            nearest.append((rows, _apart(rows, left.times, right.moments.times, later=True)))
        if on.direction is not Direction.BACKWARD:
            rows = after(left, right.moments, right.numbers, strict=on.strict)
            nearest.append((rows, _apart(rows, left.times, right.moments.times, later=False)))
        rows, apart = nearest[0]
        for others, farther in nearest[1:]:
            closer = farther < apart
            rows, apart = np.where(closer, others, rows), np.where(closer, farther, apart)
        if on.tolerance_us is not None:
            beyond = apart > np.uint64(on.tolerance_us)
            rows, apart = np.where(beyond, NONE, rows), np.where(beyond, ENDLESS, apart)
        return rows, apart

    def _verified(
        self,
        tuples: _Waiting,
        left: Moments,
        met: _Rights,
        runs: Sequence[OpenRun],
        chosen: Ints,
        apart: Words,
    ) -> tuple[Ints, pa.RecordBatch]:
        """The chosen right tuples, checked by value, and the columns of those that there are.

        If the nearest by hash has another key, those of the same key alone are looked at.
        """
        matched = np.flatnonzero(chosen != NONE)
        columns = self._columns_of(met, runs, chosen[matched])
        wrong = matched[~self._same(tuples.columns, matched, columns, np.arange(len(matched)))]
        if not len(wrong):
            return chosen, columns
        for row in wrong.tolist():
            same_hash = np.flatnonzero(met.moments.groups == left.groups[row])
            theirs = self._columns_of(met, runs, same_hash)
            rows = np.full(len(same_hash), row)
            same_hash = same_hash[
                self._same(tuples.columns, rows, theirs, np.arange(len(same_hash)))
            ]
            (at,), (distance,) = self._nearest(left.only(np.array([row])), met.only(same_hash))
            chosen[row], apart[row] = (NONE if at == NONE else same_hash[at]), distance
        return chosen, self._columns_of(met, runs, chosen[chosen != NONE])

    def _same(self, left: pa.RecordBatch, rows: Ints, right: pa.RecordBatch, others: Ints) -> Bools:
        """(n,) whether the keys of left and right rows are equal."""
        same = np.ones(len(rows), bool)
        for left_name, right_name in zip(*self._spec.keying.keys, strict=True):
            same &= equal_at(left.column(left_name), rows, right.column(right_name), others)
        return same

    def _columns_of(self, met: _Rights, runs: Sequence[OpenRun], chosen: Ints) -> pa.RecordBatch:
        """The columns of some of the right tuples that were found, in this order."""
        run_numbers = met.runs[chosen]
        order = np.argsort(run_numbers, kind="stable")
        bounds = np.searchsorted(run_numbers[order], np.arange(len(runs) + 1))
        taken = [
            run.columns.take(pa.array(met.rows[chosen[order[lower:upper]]]))
            for run, lower, upper in zip(runs, bounds[:-1], bounds[1:], strict=True)
            if upper > lower
        ]
        if not taken:
            return pa.RecordBatch.from_pylist([], schema=self._spec.carried[Side.RIGHT])
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_batches(taken).take(pa.array(back))

    def _is_settled(self, times: Ints, apart: Words) -> Bools:
        """(n,) whether no nearer right tuple can come for left tuples of these times."""
        if not self._spec.waits or self._watermark == math.inf:
            return np.ones(len(times), bool)
        reach = self._spec.condition.reach_us
        waits = apart if reach is None else np.minimum(apart, np.uint64(reach))
        passed = distances(times, np.full(len(times), math.ceil(self._watermark)))
        return np.asarray(waits < passed)

    def _show(self, left: pa.RecordBatch, right: pa.RecordBatch | None) -> None:
        """Results: left tuples beside right ones; None: with none."""
        spec, columns = self._spec, list[pa.Array]()
        for shown, column in zip(spec.output_schema, spec.output, strict=True):
            if column.side is Side.LEFT:
                columns.append(left.column(column.column))
            elif right is None:
                columns.append(pa.nulls(left.num_rows, shown.type))
            else:
                columns.append(right.column(column.column))
        self._desk.results.add(columns)


def _apart(rows: Ints, left: Ints, right: Ints, *, later: bool) -> Words:
    """(n,) how far left tuples are from right ones, which they come `later` than; NONE: ENDLESS."""
    gaps = np.full(len(rows), ENDLESS)
    matched = np.flatnonzero(rows != NONE)
    ends = right[rows[matched]], left[matched]
    gaps[matched] = distances(*(ends if later else ends[::-1]))
    return gaps
