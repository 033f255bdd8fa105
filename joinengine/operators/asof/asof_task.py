"""The as-of task: the work of one batch at a set of instances.

Why: the nearest right tuple is known only once no nearer one can come. So left tuples wait where
they are stored, and are *settled* when the watermark has passed them far enough. All right tuples
of the key that may be nearest are at the same instance, since a layout divides only left tuples,
and copies right tuples to each of their homes.

An instance settles left tuples of earlier batches, where it can, and stores the tuples of the
batch. If the right side is a table, the instance stores the table first, and settles left tuples as
they arrive. If the latest right tuple is wanted, it settles left tuples as they arrive, with the
right tuples of earlier batches.

Law: each left tuple is settled once, at its home. Right tuples of a batch are at or above its
watermark, so they are nearest to no left tuple that the batch settles.
Cost: per settled left tuple one sort, together with the right tuples of its key; tuples that keep
waiting are written again if their run has tuples below the watermark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.balancing.counting import Done
from joinengine.exchange.blocks import PIECE_PART
from joinengine.kernels.comparing import equal_at
from joinengine.kernels.hashing import Words, key_hash
from joinengine.kernels.nearest import ENDLESS, NONE, Moments, after, before, distances
from joinengine.kernels.probing import (
    Ints,
    group_keys,
    sort_order,
)
from joinengine.kernels.widths import fitting, widths_at
from joinengine.model.conditions import Direction
from joinengine.model.keys import PAIR, Side
from joinengine.model.query import JoinType
from joinengine.operators.asof.asof_spec import AsOfShelf, AsOfSpec
from joinengine.operators.asof.right_tuples import Rights
from joinengine.operators.base import OperatorTask
from joinengine.operators.desk import MERGE_ROWS, Desk
from joinengine.operators.hot import texts_in
from joinengine.operators.spines import spines_of
from joinengine.predicates.theta import passes
from joinengine.state.run import OpenRun
from joinengine.wire.reports import InstanceReport

#: The most left tuples that are settled at once.
SETTLED = 1 << 17

Bools = NDArray[np.bool_]


def join_as_of(spec: AsOfSpec, task: OperatorTask, desk: Desk) -> None:
    """Carry out an as-of task."""
    worker = _Worker(spec, task, desk)
    for instance in task.header.hosted:
        worker.work(instance)


class _Waiting(NamedTuple):
    """Tuples of one side, in the order of their words."""

    words: Words
    columns: pa.RecordBatch

    def take(self, rows: Ints) -> _Waiting:
        """The tuples at `rows`."""
        return _Waiting(self.words[rows], self.columns.take(pa.array(rows)))


class _Worker:
    def __init__(self, spec: AsOfSpec, task: OperatorTask, desk: Desk) -> None:
        self._spec = spec
        self._desk = desk
        self._watermark = task.header.watermark
        self._shelf = AsOfShelf(spec)
        #: left tuples and results are held in pieces of at most so many bytes
        self._most_bytes = max(task.memory_bytes // 8, 1)
        self._piece_bytes = max(task.memory_bytes // PIECE_PART, 1)
        self._readers = [desk.reader(blocks) for blocks in task.blocks]
        version = task.stored.versions[0]
        self._keeper = desk.keeper(self._shelf, version=version, merge_rows=MERGE_ROWS)
        self._spines = spines_of(task, self._keeper, self._shelf, desk)
        self._done = list[Done]()

    def work(self, instance: int) -> None:
        """Do the work of the batch at one instance."""
        desk, self._done = self._desk, []
        with desk.at(instance) as report:
            with desk.timed("open"):
                lefts, rights = (self._spines.at(instance, side) for side in PAIR)
            words: list[list[Words]] = [[np.empty(0, np.uint64)] for _ in PAIR]
            stored = list[OpenRun]()
            for right, last in self._arrived(instance, Side.RIGHT, report):
                words[Side.RIGHT].append(right.words)
                stored.append(self._stored(instance, Side.RIGHT, right, own_file=not last))
            if self._spec.waits:
                lefts = self._settle_waiting(instance, lefts, rights, report)
            for left, last in self._arrived(instance, Side.LEFT, report):
                words[Side.LEFT].append(left.words)
                if self._spec.waits:
                    lefts.append(self._stored(instance, Side.LEFT, left, own_file=not last))
                else:
                    table_runs = [] if self._spec.table is None else stored
                    self._settle_all(left, [*rights, *table_runs], report)
            rights += stored
            with desk.timed("merge"):
                rights = self._keeper.merge(rights)
            with desk.timed("count"):
                texts = texts_in(self._spec.keying, [lefts, rights])
                sorted_words = [np.sort(np.concatenate(pieces)) for pieces in words]
                desk.count_keys(instance, sorted_words, [lefts, rights], texts, done=self._done)

    def _arrived(
        self, instance: int, side: Side, report: InstanceReport
    ) -> Iterator[tuple[_Waiting, bool]]:
        """The tuples that arrived at one side, in pieces; the flag says whether one is the last.

        Left tuples that match nothing are emitted instead, in a left join.
        """
        pieces = self._desk.pieces(self._readers[side], instance, self._piece_bytes)
        for (words, _, columns), last in pieces:
            report.received[side] += len(words)
            tuples = _Waiting(words, columns)
            if side is Side.LEFT and self._spec.how is JoinType.LEFT:
                matchless = self._spec.keying.unusable(side, columns)
                if matchless is not None:
                    self._show(columns.filter(pa.array(matchless)), None)
                    tuples = tuples.take(np.flatnonzero(~matchless))
            stays = side is Side.RIGHT or self._spec.waits
            report.stored[side] += len(tuples.words) if stays else 0
            if len(tuples.words):
                yield tuples, last

    def _stored(
        self, instance: int, side: Side, tuples: _Waiting, *, own_file: bool = False
    ) -> OpenRun:
        """Store tuples; the run that holds them."""
        with self._desk.timed("store"):
            return self._keeper.seal(
                instance, side, tuples.words, tuples.columns, own_file=own_file
            )

    def _settle_waiting(
        self, instance: int, lefts: list[OpenRun], rights: list[OpenRun], report: InstanceReport
    ) -> list[OpenRun]:
        """Settle the waiting left tuples that can be; the runs of those that keep waiting."""
        kept, waiting, size = list[OpenRun](), list[_Waiting](), 0
        for run in lefts:
            if run.run.min_time is not None and run.run.min_time >= self._watermark:
                kept.append(run)
                continue
            live = run.live_rows()
            ripe = self._spec.order(Side.LEFT, run.columns)[live] < self._watermark
            stored = _Waiting(run.words, run.columns)
            unsettled = self._settle_all(stored, rights, report, live[ripe])
            rest = np.sort(np.concatenate([live[~ripe], unsettled]))
            self._keeper.forget(run.run)
            for rows in self._portions(stored.columns, rest):
                waiting.append(stored.take(rows))
                size += waiting[-1].columns.nbytes
                if size >= self._most_bytes:
                    kept.append(self._stored(instance, Side.LEFT, _sorted(waiting), own_file=True))
                    waiting, size = [], 0
        if waiting:
            kept.append(self._stored(instance, Side.LEFT, _sorted(waiting)))
        return kept

    def _settle_all(
        self,
        tuples: _Waiting,
        rights: Sequence[OpenRun],
        report: InstanceReport,
        rows: Ints | None = None,
    ) -> Ints:
        """Settle left tuples, a bounded number at a time; the rows of those that keep waiting.

        `rows`: the tuples to settle; None: all.
        """
        rows = np.arange(len(tuples.words)) if rows is None else rows
        waiting = [np.empty(0, np.int64)]
        for some in self._portions(tuples.columns, rows):
            settled = self._settle(tuples.take(some), rights, report)
            waiting.append(some[~settled])
        return np.concatenate(waiting)

    def _portions(self, columns: pa.RecordBatch, rows: Ints) -> Iterator[Ints]:
        """Cuts `rows` into portions that fit into memory."""
        for start in range(0, len(rows), SETTLED):
            some = rows[start : start + SETTLED]
            widths = [widths_at(column, some) for column in columns.columns]
            for part in fitting(widths, len(some), self._most_bytes):
                yield some[part]

    def _settle(self, tuples: _Waiting, rights: Sequence[OpenRun], report: InstanceReport) -> Bools:
        """Emit the results of left tuples that can be settled; (n,) which these are."""
        spec, needles = self._spec, group_keys(tuples.words)
        with self._desk.timed("probe"):
            met = Rights.of(spec, needles, rights)
            hashes = key_hash(tuples.words)
            moments = Moments(hashes, spec.order(Side.LEFT, tuples.columns))
            chosen, apart = self._nearest(moments, met)
            self._verify(tuples, moments, met, chosen, apart)
            if spec.deleted is not None:
                matched = np.flatnonzero(chosen != NONE)
                names = dict.fromkeys(name for _, name in spec.deleted.columns)
                gone = passes(spec.deleted, met.columns(chosen[matched], names))
                chosen[matched[gone]] = NONE
            settled = self._is_settled(moments.times, apart)
        matched = settled & (chosen != NONE)
        with self._desk.timed("result"):
            self._show_all(tuples, met, np.where(matched, chosen, NONE), settled)
        probed = np.diff(needles.starts)
        candidates = np.bincount(met.of_needle, minlength=len(probed))
        results = np.add.reduceat(matched.astype(np.int64), needles.starts[:-1])
        self._done.append(Done(Side.LEFT, needles.hashes, probed, candidates, results))
        report.probed += len(tuples.words)
        report.candidates += len(met.rows)
        return settled

    def _show_all(self, tuples: _Waiting, met: Rights, chosen: Ints, settled: Bools) -> None:
        """Emit settled left tuples with the right tuples chosen for them, in chunks that fit."""
        rows = np.flatnonzero(settled if self._spec.how is JoinType.LEFT else chosen != NONE)
        if not len(rows):
            return
        output = self._spec.output
        names = dict.fromkeys(column.column for column in output if column.side is Side.RIGHT)
        for part in fitting([met.widths(chosen[rows], names)], len(rows), self._most_bytes):
            some = rows[part]
            there = chosen[some] != NONE
            partners = pa.array(np.cumsum(there) - 1, mask=~there)
            right = met.columns(chosen[some[there]], names).take(partners)
            self._show(tuples.columns.take(pa.array(some)), right)

    def _nearest(self, left: Moments, right: Rights) -> tuple[Ints, Words]:
        """(n,) the nearest right tuple of each left one, or NONE, and (n,) its distance.

        The distance is in microseconds, or in the unit of the ordering column if that holds no
        instants; ENDLESS if there is no right tuple within the tolerance.
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

    def _verify(
        self, tuples: _Waiting, left: Moments, met: Rights, chosen: Ints, apart: Words
    ) -> None:
        """Check the keys of the chosen right tuples by value, and correct `chosen` and `apart`.

        If the nearest by hash has another key, the nearest among those of the same key is taken.
        """
        matched = np.flatnonzero(chosen != NONE)
        names = self._spec.keys(Side.RIGHT)
        columns = met.columns(chosen[matched], names)
        wrong = matched[~self._same(tuples.columns, matched, columns)]
        for row in wrong.tolist():
            same_hash = np.flatnonzero(met.moments.groups == left.groups[row])
            theirs = met.columns(same_hash, names)
            rows = np.full(len(same_hash), row)
            same_hash = same_hash[self._same(tuples.columns, rows, theirs)]
            (at,), (distance,) = self._nearest(left.only(np.array([row])), met.only(same_hash))
            chosen[row], apart[row] = (NONE if at == NONE else same_hash[at]), distance

    def _same(self, left: pa.RecordBatch, rows: Ints, right: pa.RecordBatch) -> Bools:
        """(n,) whether the keys of (n,) left `rows` equal those of (n,) right tuples."""
        same, others = np.ones(len(rows), bool), np.arange(len(rows))
        for left_name, right_name in zip(*self._spec.keying.keys, strict=True):
            same &= equal_at(left.column(left_name), rows, right.column(right_name), others)
        return same

    def _is_settled(self, times: Ints, apart: Words) -> Bools:
        """(n,) whether no right tuple nearer than `apart` can come for left tuples of `times`."""
        if not self._spec.waits or self._watermark == math.inf:
            return np.ones(len(times), bool)
        reach = self._spec.condition.reach_us
        waits = apart if reach is None else np.minimum(apart, np.uint64(reach))
        passed = distances(times, np.full(len(times), math.ceil(self._watermark)))
        return np.asarray(waits < passed)

    def _show(self, left: pa.RecordBatch, right: pa.RecordBatch | None) -> None:
        """Emit left tuples beside right ones; None: beside NULL."""
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
    """(n,) distances of left tuples from the right ones at `rows`; ENDLESS for NONE.

    `later`: left tuples are later than right ones; otherwise earlier.
    """
    gaps = np.full(len(rows), ENDLESS)
    matched = np.flatnonzero(rows != NONE)
    ends = right[rows[matched]], left[matched]
    gaps[matched] = distances(*(ends if later else ends[::-1]))
    return gaps


def _sorted(parts: Sequence[_Waiting]) -> _Waiting:
    """All tuples of the parts, in the order of their words."""
    words = np.concatenate([part.words for part in parts])
    order = sort_order(words)
    columns = pa.concat_batches([part.columns for part in parts]).take(pa.array(order))
    return _Waiting(words[order], columns)
