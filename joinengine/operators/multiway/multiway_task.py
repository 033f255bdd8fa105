"""The multiway task: the work of one batch at a set of instances.

Why: the tuples of a key are stored at the same instance on all sides, so an instance makes whole
results, and no intermediate results are sent or stored. A layout divides only left tuples, and
copies all others to each home of a divided key.

An instance works side after side: the arrived tuples of a side meet the stored tuples of all other
sides, and are then stored themselves.

Law: of the tuples of a result, the last one in the order (batch, side) finds all others stored. So
each result is made once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.balancing.counting import Done
from joinengine.exchange import blocks
from joinengine.kernels.probing import Ints, Needles, expand_ranges, group_keys
from joinengine.kernels.widths import fitting, widths_at
from joinengine.model.keys import Side
from joinengine.operators.base import OperatorTask
from joinengine.operators.desk import MERGE_ROWS, Desk
from joinengine.operators.hot import texts_in
from joinengine.operators.multiway.multiway_spec import MultiwayShelf, MultiwaySpec
from joinengine.operators.multiway.partners import (
    Chosen,
    Combining,
    Found,
    Tuples,
    apart,
    blocks_of,
    chosen,
    found_in,
    gathered,
)
from joinengine.operators.spines import spines_of
from joinengine.state.run import OpenRun
from joinengine.wire.reports import InstanceReport

#: The most stored tuples that are gathered at once, unless one key has more.
GATHERED = 1 << 18

Floats = NDArray[np.float64]


def join_all(spec: MultiwaySpec, task: OperatorTask, desk: Desk) -> None:
    """Carry out a multiway task."""
    worker = _Worker(spec, task, desk)
    for instance in task.header.hosted:
        worker.work(instance)


class _Worker:
    def __init__(self, spec: MultiwaySpec, task: OperatorTask, desk: Desk) -> None:
        self._spec = spec
        self._desk = desk
        self._shelf = MultiwayShelf(spec)
        self._readers = [desk.reader(side_blocks) for side_blocks in task.blocks]
        version = task.stored.versions[0]
        self._keeper = desk.keeper(self._shelf, version=version, merge_rows=MERGE_ROWS)
        self._spines = spines_of(task, self._keeper, self._shelf, desk)
        #: arrived tuples, stored tuples that they meet, and results are each held in pieces of at
        #: most so many bytes; two copies of them are in memory
        self._most_bytes = max(task.memory_bytes // 8, 1)

    def work(self, instance: int) -> None:
        """Do the work of the batch at one instance."""
        desk, sides, done = self._desk, self._spec.sides, list[Done]()
        with desk.at(instance) as report:
            with desk.timed("open"):
                held = {side: self._spines.at(instance, side) for side in sides}
            words = {side: [np.empty(0, np.uint64)] for side in sides}
            for side in sides:
                for tuples, last in self._arrived(instance, side, report):
                    words[side].append(tuples.words)
                    done.append(self._join(side, tuples, held, report))
                    with desk.timed("store"):
                        run = self._keeper.seal(
                            *(instance, side, tuples.words, tuples.columns), own_file=not last
                        )
                        held[side].append(run)
            with desk.timed("merge"):
                spines = [self._keeper.merge(runs) for runs in held.values()]
            with desk.timed("count"):
                texts = texts_in(self._spec.keying, spines)
                of_pair = [np.sort(np.concatenate(some)) for some in _as_pair([*words.values()])]
                desk.count_keys(instance, of_pair, _as_pair(spines), texts, done=done)

    def _arrived(
        self, instance: int, side: Side, report: InstanceReport
    ) -> Iterator[tuple[blocks.Tuples, bool]]:
        """The arrived tuples of one side, in pieces sorted by word; the flag marks the last."""
        pieces = self._desk.pieces(self._readers[side], instance, self._most_bytes)
        for arrived, last in pieces:
            report.received[side.routed] += len(arrived.words)
            report.stored[side.routed] += len(arrived.words)
            yield arrived, last

    def _join(
        self,
        side: Side,
        arrived: blocks.Tuples,
        held: Mapping[Side, Sequence[OpenRun]],
        report: InstanceReport,
    ) -> Done:
        """Emit all results of arrived tuples with stored ones; the work for each key."""
        needles = group_keys(arrived.words)
        n = len(needles.hashes)
        candidates, results = np.zeros(n, np.int64), np.zeros(n, np.int64)
        with self._desk.timed("probe"):
            met = {
                other: found_in(runs, needles.hashes)
                for other, runs in held.items()
                if other is not side
            }
            meeting = np.flatnonzero(np.all([hits.counts > 0 for hits in met.values()], axis=0))
            met = {other: hits.only(meeting) for other, hits in met.items()}
        for portion in _portions(self._weights(met.values())):
            keys = meeting[portion]
            with self._desk.timed("probe"):
                tuples = self._of_keys(side, arrived, needles, keys)
                stored_blocks = {
                    other: self._blocks(side, tuples, other, hits, portion)
                    for other, hits in met.items()
                }
            for some in product(*stored_blocks.values()):
                with self._desk.timed("probe"):
                    stored = {
                        other: gathered(self._spec, other, block)
                        for other, block in zip(stored_blocks, some, strict=True)
                    }
                for combining in apart(self._spec, side, tuples, stored, len(keys)):
                    self._show(side, combining)
                    candidates[keys] += combining.candidates
                    results[keys] += combining.results
        report.probed += len(arrived.words)
        report.candidates += int(candidates.sum())
        return Done(side.routed, needles.hashes, np.diff(needles.starts), candidates, results)

    def _of_keys(self, side: Side, arrived: blocks.Tuples, needles: Needles, keys: Ints) -> Tuples:
        """The arrived tuples of the keys at the places `keys`."""
        counts = np.diff(needles.starts)[keys]
        columns = arrived.columns.take(pa.array(expand_ranges(needles.starts[keys], counts)))
        of_key = np.repeat(np.arange(len(keys)), counts)
        return Tuples(of_key, columns, self._shelf.times(side, columns))

    def _weights(self, met: Collection[Found]) -> Floats:
        """(keys,) the stored tuples of each, as a part of those that may be held at once."""
        parts = [hits.counts * max(1 / GATHERED, hits.row_bytes / self._most_bytes) for hits in met]
        return np.asarray(np.sum(parts, axis=0), np.float64)

    def _blocks(
        self, side: Side, tuples: Tuples, other: Side, met: Found, keys: slice
    ) -> list[list[Chosen]]:
        """The stored tuples of `other` that may be near arrived ones, in blocks that fit."""
        spec, between = self._spec, None
        if tuples.times is not None and spec.nearness is not None:
            between = spec.nearness.between(side, tuples.times, other)
        most_bytes = self._most_bytes // (len(spec.sides) - 1)
        return blocks_of(chosen(spec, other, met, keys, between), max(most_bytes, 1))

    def _show(self, side: Side, combining: Combining) -> None:
        """Emit the results of all combinations."""
        combined = combining.combined(side)
        while True:
            with self._desk.timed("probe"):
                rows = next(combined, None)
            if rows is None:
                return
            with self._desk.timed("result"):
                self._add(combining, rows)

    def _add(self, combining: Combining, rows: Mapping[Side, Ints]) -> None:
        """Emit the results of some combinations, as many as fit at a time."""
        shown = [
            (column.side, combining.tuples[column.side].columns.column(column.column))
            for column in self._spec.output
            if column.side is not None
        ]
        widths = [widths_at(column, rows[side]) for side, column in shown]
        for part in fitting(widths, len(next(iter(rows.values()))), self._most_bytes):
            taken = {side: pa.array(places[part]) for side, places in rows.items()}
            self._desk.results.add([column.take(taken[side]) for side, column in shown])


def _portions(weights: Floats) -> Iterator[slice]:
    """(n,) weights of keys -> slices of keys with a weight of at most 1, or of one key."""
    ends, start = np.cumsum(weights), 0
    while start < len(weights):
        most = 1 + (float(ends[start - 1]) if start else 0.0)
        stop = max(start + 1, int(np.searchsorted(ends, most, side="right")))
        yield slice(start, stop)
        start = stop


def _as_pair(sides: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Lists of each side -> the list of the left side, and that of all other sides together."""
    left, *others = sides
    return [[*left], [member for side in others for member in side]]
