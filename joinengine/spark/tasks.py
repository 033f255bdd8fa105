"""The functions that Spark calls in its workers: they carry out instructions and yield a report.

The instructions of a batch lie in files of the exchange folder, and a local property of the job
names them. So the functions that Spark ships never change, and their plans can be reused batch
after batch. Code travels only as Spark always sends it: an operator with the function of its job.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from joinengine.exchange.codec import decode, encode
from joinengine.exchange.feeds import Reading, Skipped, conform
from joinengine.exchange.merging import MergeTask, merge
from joinengine.exchange.route import RoutePlan, RouteTask, report_batch
from joinengine.operators.base import Operator, OperatorTask, carry_out
from joinengine.spark.daemon import end_quietly
from joinengine.spark.source import described
from joinengine.state.run import RunStores
from joinengine.world.world import MACHINE

#: The local property that names the instructions of the running job.
PLAN_PROPERTY = "joinengine.plan"
#: A worker process serves batch after batch, of several queries and drivers.
_RUN_STORES = RunStores(MACHINE)


@dataclass(frozen=True)
class RouteDescriptors:
    """Opens the row groups of descriptors and routes their tuples; for `mapInArrow`."""

    readings: Mapping[int, Reading]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Descriptors in, one report out."""
        task = _route_task()
        for batch in batches:
            for source, groups, progress in described(batch):
                skipped = task.report.skipped
                if groups and groups[0].skipped is not None:
                    skipped.append(Skipped(groups[0].file, groups[0].skipped))
                elif groups:
                    task.add(source, self.readings[source].batches(groups, skipped))
                if progress is not None:
                    task.see_progress(source, progress)
        yield from report_batch(task.close())


@dataclass(frozen=True)
class RouteRows:
    """Routes the tuples of one streaming DataFrame; for `mapInArrow`."""

    source: int
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Tuples in, one report out."""
        task = _route_task()
        task.add(self.source, self._seen(batches, task.report.widths))
        yield from report_batch(task.close())

    def _seen(
        self, batches: Iterable[pa.RecordBatch], widths: dict[int, float]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                width = batch.nbytes / batch.num_rows
                widths[self.source] = max(width, widths.get(self.source, 0.0))
                yield conform(batch, self.schema)


@dataclass(frozen=True)
class OperatorTasks:
    """Carries out the tasks of an operator; for `mapPartitionsWithIndex`."""

    operator: Operator

    def __call__(self, index: int, rows: Iterable[Any]) -> Iterator[bytes]:
        """The report of task `index`."""
        _settle_in()
        task = decode(_instructions(f"-{index}"), OperatorTask)
        header = task.header
        store = _RUN_STORES.store_of(
            header.runs_folder, header.operator, header.driver, header.cache_bytes
        )
        yield encode(carry_out(self.operator, task, store, MACHINE))


def merge_files(content: bytes) -> bytes:
    """Carries out one task of a merge of result files."""
    _settle_in()
    return encode(merge(decode(content, MergeTask), MACHINE))


def _route_task() -> RouteTask:
    _settle_in()
    return RouteTask(decode(_instructions(), RoutePlan), _context().partitionId(), MACHINE)


def _instructions(suffix: str = "") -> bytes:
    plan = _context().getLocalProperty(PLAN_PROPERTY)
    assert plan, "a joinengine task ran outside a joinengine batch"
    folder, _, name = plan.rpartition("/")
    return MACHINE.storage(folder).get(name + suffix)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


@cache
def _settle_in() -> None:
    """Settle a worker process in, once.

    Imported modules are excluded from the garbage collection that runs after each task: saves 13
    ms. It ends without a trace.
    """
    gc.freeze()
    end_quietly()
