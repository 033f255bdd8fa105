"""The right tuples of an as-of join that may be nearest to some left ones.

Why: of all right tuples that share a key, few are nearest. So only their times are gathered, and
then the columns of the chosen ones.

Cost: per key one search in each run; per right tuple some 50 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from joinengine.kernels.hashing import Words, fixed_width
from joinengine.kernels.nearest import NONE, Moments
from joinengine.kernels.probing import Ints, Needles, expand_ranges, find, live_rows
from joinengine.kernels.widths import widths_at
from joinengine.model.keys import Side
from joinengine.operators.asof.asof_spec import AsOfSpec
from joinengine.state.run import OpenRun


class Rights(NamedTuple):
    """n right tuples: row `rows[i]` of run `run_numbers[i]`, with the values that order them.

    `schema`: their columns; the last is their number. `of_needle` (n,): the needle of each.
    """

    schema: pa.Schema
    runs: Sequence[OpenRun]
    run_numbers: Ints
    rows: Ints
    moments: Moments
    numbers: Words
    of_needle: Ints

    @classmethod
    def of(cls, spec: AsOfSpec, needles: Needles, runs: Sequence[OpenRun]) -> Rights:
        """The right tuples that all runs have for the needles."""
        schema, none = spec.carried[Side.RIGHT], np.empty(0, np.int64)
        parts = [(none, none, none, none, none.astype(np.uint64))]
        for number, run in enumerate(runs):
            hits = find(run.words, needles, run.gone)
            ranks = expand_ranges(hits.lower, hits.counts)
            if not len(ranks):
                continue
            rows = ranks if run.gone is None else live_rows(run.gone, ranks)
            names = [*spec.condition.times[Side.RIGHT], schema.names[-1]]
            columns = run.columns.select(names).take(pa.array(rows))
            times = spec.order(Side.RIGHT, columns)
            numbers = fixed_width(columns.column(len(names) - 1), np.dtype(np.uint64))
            of_needle = np.repeat(hits.needles, hits.counts)
            parts.append((np.full(len(rows), number), rows, of_needle, times, numbers))
        run_numbers, rows, of_needle, times, numbers = map(np.concatenate, zip(*parts, strict=True))
        moments = Moments(needles.hashes[of_needle], times)
        return cls(schema, runs, run_numbers, rows, moments, numbers, of_needle)

    def only(self, some: Ints) -> Rights:
        """The tuples at the places `some`."""
        return self._replace(
            run_numbers=self.run_numbers[some],
            rows=self.rows[some],
            moments=self.moments.only(some),
            numbers=self.numbers[some],
            of_needle=self.of_needle[some],
        )

    def columns(self, chosen: Ints, names: Collection[str]) -> pa.RecordBatch:
        """The columns `names` of the tuples at `chosen`, in this order; their numbers come last."""
        schema = pa.schema([*(self.schema.field(name) for name in names), self.schema[-1]])
        taken, back = list[pa.RecordBatch](), np.empty(len(chosen), np.int64)
        done = 0
        for run, places, rows in self._by_run(chosen):
            taken.append(run.columns.select(schema.names).take(pa.array(rows)))
            back[places] = np.arange(done, done + len(places))
            done += len(places)
        if not taken:
            return pa.RecordBatch.from_pylist([], schema=schema)
        return (taken[0] if len(taken) == 1 else pa.concat_batches(taken)).take(pa.array(back))

    def widths(self, chosen: Ints, names: Collection[str]) -> Ints:
        """(n,) bytes of the tuples at `chosen` in `names` without a fixed width; 0 for NONE."""
        widths, some = np.zeros(len(chosen), np.int64), np.flatnonzero(chosen != NONE)
        for run, places, rows in self._by_run(chosen[some]):
            for name in names:
                of_column = widths_at(run.columns.column(name), rows)
                if of_column is not None:
                    widths[some[places]] += of_column
        return widths

    def _by_run(self, chosen: Ints) -> Iterator[tuple[OpenRun, Ints, Ints]]:
        """Each run with chosen tuples, their places in `chosen`, and their rows in the run."""
        run_numbers = self.run_numbers[chosen]
        order = np.argsort(run_numbers, kind="stable")
        bounds = np.searchsorted(run_numbers[order], np.arange(len(self.runs) + 1))
        for run, lower, upper in zip(self.runs, bounds[:-1], bounds[1:], strict=True):
            if upper > lower:
                places = order[lower:upper]
                yield run, places, self.rows[chosen[places]]
