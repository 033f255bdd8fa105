"""A query without Spark: the engine's tasks and driver in this process, faults on request."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from joinengine.driver import clock
from joinengine.driver.batch import BatchRunner
from joinengine.driver.settings import Settings
from joinengine.lab.inline import two_way as joins
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.lab.inline.two_way import LEFT, RIGHT, Input
from joinengine.layouts import choose
from joinengine.model.conditions import equi
from joinengine.model.keys import Side
from joinengine.operators import Join, MultiwayJoin
from joinengine.results.compaction import CompactingSink
from joinengine.results.delivery import Delivery
from joinengine.results.merging import MergeReport, MergeTask, merge
from joinengine.results.sinks import ParquetSink, SideOutput
from joinengine.results.staging import Cutting
from joinengine.state import fence
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Handed
from joinengine.state.run import RunStore
from joinengine.wire.codec import decode, encode
from tests.invariants import check_places

TIME = LEFT.field("lt").type


class Killed(Exception):
    """The process died."""


class StepSink(ParquetSink):
    """Our Parquet sink, with a step before and after it delivers."""

    step = staticmethod(lambda name: None)

    def deliver(self, batch, files, generation):
        self.step("committed")
        super().deliver(batch, files, generation)
        self.step("delivered")


class CompactingStepSink(CompactingSink):
    """Our compacting sink, with a step around each of its own."""

    step = staticmethod(lambda name: None)

    def deliver_held(self, held, checkpoint, generation, *, whole):
        self.step("committed")
        left = super().deliver_held(held, checkpoint, generation, whole=whole)
        self.step("delivered")
        return left

    def _merged(self, held, generation):
        self.step("merging")
        files = super()._merged(held, generation)
        self.step("merged")
        return files

    def _show(self, showing):
        self.step("decided")
        super()._show(showing)


def rows(side, tuples):
    """(key, value, time) tuples as a record batch of one side; None is NULL."""
    schema = LEFT if side is Side.LEFT else RIGHT
    columns = zip(*tuples, strict=True) if tuples else [[], [], []]
    arrays = [pa.array(list(c), field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def two_way(window=None, instances=3, on=None, *, filters=(None, None), schemas=None, **asked):
    """LEFT join RIGHT on lk = rk, or on any condition, predicate, and filters of the sides."""
    inputs = tuple(map(Input, schemas or (LEFT, RIGHT), filters))
    return joins.two_way(inputs, on or equi("lk", "rk"), window, instances, **asked)


class LocalQuery:
    """One query over a folder; `restart` forgets everything that is not on disk.

    After each batch its state is checked against its layouts. `changes` counts, over all queries of
    this process, how often a planner's plan has changed a layout.

    `aside`: with a side output, for which a sink that is killed once its files are visible (the
    step "delivered") leaves a batch half delivered. `compact`: of how many batches the results
    become visible together, and the size of merged files in bytes.
    """

    changes: ClassVar[Counter] = Counter()

    def __init__(
        self,
        folder,
        query,
        layout,
        *,
        jobs=None,
        settings=None,
        choice=None,
        choices=(),
        aside=False,
        compact=None,
    ):
        self.folder = Path(folder)
        self.query = query
        self.choice = choice or choose(layout)
        self.choices = choices
        self.jobs = jobs or InlineJobs()
        self.world = self.jobs.world
        self.aside = SideOutput(self.storage("aside"), "q") if aside else None
        self.compact = compact
        self.settings = replace(settings or Settings(), exchange=self.jobs.exchange)
        self.checkpoint = Checkpoint.below(self.folder, world=self.world)
        self.checkpoint.create()
        self.records = []
        self._opened = RunStore(self.checkpoint.runs)
        self.restart()

    def storage(self, name):
        return self.world.storage(f"{self.folder}/{name}")

    def restart(self):
        sink = self._sink()
        sink.step = self.jobs.step
        choices = self.choices or [self.choice] * len(self.query.operators)
        delivery = Delivery(self.checkpoint, sink, self.aside)
        self.runner = BatchRunner(
            self.jobs, self.query, choices, self.checkpoint, "q", delivery, self.settings
        )
        self.runner.observe(self.records.append)
        self.runner.recover()

    def _sink(self):
        if self.compact is None:
            return StepSink(self.storage("out"), "q")
        every, target = self.compact
        sink = CompactingStepSink(
            self.storage("out"), "q", cutting=Cutting(target_bytes=target), every=every
        )
        sink.merge = lambda tasks: [
            decode(encode(merge(decode(encode(task), MergeTask), self.world)), MergeReport)
            for task in tasks
        ]
        return sink

    def run(self, batch, frame):
        before = self.chosen
        self.runner.take(frame, Handed("q", batch, ""), dict)
        if fence.greatest(self.checkpoint.generations, 0) == self.runner.generation:
            self.check_state()  # the files of a driver that was taken over may be gone
        wished = batch + 1 in self.settings.schedule or self.settings.capacity is not None
        if not wished and self.layout.to_json() != before.layout.to_json():
            LocalQuery.changes[before.choice.name] += 1

    def check_state(self):
        """Check that every tuple stands at its homes; `held`: tuples that each instance holds."""
        states = self.runner.manifest.operators
        self._opened.retain({name for state in states for name in state.shelves.files})
        self.held = [
            check_places(state, self._opened, expires=operator.window is not None)
            for operator, state in zip(self.query.operators, states, strict=True)
            if isinstance(operator, (Join, MultiwayJoin))
        ]

    def run_tuples(self, batch, left, right, map_tasks=2):
        """Deal (key, value, time) tuples of both sides to map tasks."""
        frame = [
            [
                (0, rows(Side.LEFT, left[task::map_tasks])),
                (1, rows(Side.RIGHT, right[task::map_tasks])),
            ]
            for task in range(map_tasks)
        ]
        self.run(batch, frame)

    def finish(self, batch, most=8):
        """End all sources at `batch`, and run further batches as long as the driver asks for them.

        Each of them says that the sources have ended, as feeds do.
        A batch that is killed comes again, as always.
        """
        sources = [n for n in range(len(self.query.sources)) if n not in self.query.tables]
        frame = [[(source, math.inf) for source in sources]]
        for number in range(batch, batch + most):
            self.insist(number, frame)
            due = clock.tick_due(self.query, replace(self.runner.manifest, quiet=True), 0.0)
            if due is None:
                return
        raise AssertionError("the driver asks for batches for ever")

    def settle(self, batch, most=8):
        """Run batches without data as long as the driver asks for them; no source ends."""
        for number in range(batch, batch + most):
            if clock.tick_due(self.query, self.runner.manifest, 0.0) is None:
                return
            self.insist(number, [[]])
        raise AssertionError("the driver asks for batches for ever")

    def insist(self, batch, frame):
        """Run a batch, again and again while the driver is killed meanwhile."""
        alive = True
        while True:
            try:
                if not alive:  # a driver that was started again may be killed again
                    self.restart()
                self.run(batch, frame)
            except Killed:
                alive = False
            else:
                return

    def output(self):
        """The visible results as a multiset of rows."""
        found = Counter()
        for whole in self._tables("out"):
            table = whole
            for name in table.schema.names:
                if pa.types.is_timestamp(table.schema.field(name).type):
                    column = table.column(name).cast(pa.int64())
                    table = table.set_column(table.schema.get_field_index(name), name, column)
            columns = map(_hashable, table.columns)
            found.update(zip(*columns, strict=True))
        return found

    def _tables(self, name):
        output = self.storage(name)
        files = sorted(file for file in output.names() if file.endswith(".parquet"))
        return [pq.read_table(pa.BufferReader(output.map(file))) for file in files]

    def refused(self, side):
        """The rows of the side output, the reason last."""
        tables = self._tables(f"aside/join0-{side.name.lower()}")
        found = [t.set_column(2, "t", t.column(2).cast(pa.int64())) for t in tables]
        return Counter(
            row for t in found for row in zip(*(c.to_pylist() for c in t.columns), strict=True)
        )

    @property
    def state(self):
        return self.runner.manifest.operators[0]

    @property
    def chosen(self):
        """The layout of the next batch, its choice, and the number of instances."""
        return self.state.layouts.newest

    @property
    def layout(self):
        """The layout of the next batch."""
        return self.chosen.layout


def _hashable(column):
    """The values of a column of results; a list of structs as a tuple of tuples."""
    values = column.to_pylist()
    if not pa.types.is_list(column.type):
        return values
    return [None if some is None else tuple(tuple(one.values()) for one in some) for some in values]
