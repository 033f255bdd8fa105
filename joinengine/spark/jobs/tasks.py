"""The functions that Spark calls in its workers: they carry out instructions and yield a report.

Under files, the instructions of a batch lie in files of the exchange folder, and a local property
of the job names them. So the functions that Spark ships never change, and their jobs can be reused
batch after batch. Under a shuffle, no folder is shared: a property holds the common instructions of
route tasks, and the job holds what each of them reads, and the instructions of an operator's tasks
(docs/decisions/0016). Then tasks yield *lines*: the number of a partition, the bytes for it, the
next number, and so on.
Code travels only as Spark always sends it: an operator travels with the function of its job.
"""

from __future__ import annotations

import base64
import gc
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from joinengine.exchange.exchange import ThroughFiles, ThroughShuffle
from joinengine.exchange.packets import Packet, ShuffleExchange, forwarded, sender
from joinengine.exchange.readahead import ReadAhead, read_portion
from joinengine.exchange.route import Portion, RoutePlan, RouteTask
from joinengine.exchange.task_results import ToOperator
from joinengine.kernels.allocating import keep_freed_memory
from joinengine.operators.base import Operator, OperatorTask, carry_out
from joinengine.operators.desk import TaskHeader
from joinengine.sources.projection import Projection
from joinengine.sources.readings import conform
from joinengine.spark.jobs.locality import own_location
from joinengine.spark.session.daemon import end_quietly
from joinengine.state.run import RunStore, RunStores
from joinengine.wire.codec import decode, encode
from joinengine.wire.reports import OperatorReport, RouteReport
from joinengine.world.world import MACHINE

#: The local property that names the instructions of the running job.
PLAN_PROPERTY = "joinengine.plan"
#: The local property that holds the instructions of route tasks, as text.
ROUTE_PROPERTY = "joinengine.route"
#: The rows that route tasks yield to Spark: reports, or lines.
ROW_SCHEMA = pa.schema([pa.field("row", pa.binary())])
#: The partition of a shuffle to which the reports of its tasks go.
REPORTS = 0
_NUMBER = struct.Struct("!q")
#: The number of new objects after which Python looks for cycles among them; the default is 700.
_YOUNG = 100_000
#: The run stores of this worker process, which serves many batches, queries and drivers.
_RUN_STORES = RunStores(MACHINE)


def partition_of(operator: int, task: int, tasks: int) -> int:
    """The partition of a shuffle for a task of an operator; each operator has at most `tasks`."""
    return 1 + operator * tasks + task


@dataclass(frozen=True)
class RouteGroups:
    """Opens the row groups of a portion and routes their tuples; for `mapPartitionsWithIndex`.

    Each attempt reads the files in the same order.
    """

    readings: Mapping[int, Projection]

    def __call__(self, index: int, portions: Iterable[Any]) -> Iterator[bytes]:
        """Route a portion; the task's packets and report. Under a shuffle, `portions` has one."""
        given = list(portions)  # read all of them: see `OperatorTasks`
        plan = _route_plan()
        files = isinstance(plan.exchange, ThroughFiles)
        content = _instructions(f"-{index}") if files else bytes(given[0])
        routing = _Routing(plan, index, sorts=False)
        for yielded in routing.contents(self._routed(routing.task, decode(content, Portion))):
            yield from yielded

    def _routed(self, task: RouteTask, portion: Portion) -> Iterator[None]:
        for source, read in read_portion(self.readings, portion, task.report):
            yield from task.add(source, read)


class RouteOrders:
    """Carries out the orders of a query to route tuples, in a resident task.

    While the driver commits, it reads ahead what the next order will probably read.

    Law: rows read ahead are used only for an order with the same portion; otherwise they are
    dropped. So a batch reads exactly what its instructions say.
    """

    def __init__(self, readings: Mapping[int, Projection]) -> None:
        self._readings = readings
        self._ahead: ReadAhead | None = None

    def __call__(self, portion: bytes, instructions: bytes, index: bytes = b"") -> bytes | None:
        """Route a portion; the report of task `index`, a number in digits.

        Without an index, this only reads `portion` ahead, and returns None: then `instructions` is
        the number of bytes to read, in digits.
        """
        settle_in()
        ahead, self._ahead = self._ahead, None
        if not index:
            with suppress(Exception):  # the order that routes the portion reports the error
                self._ahead = ReadAhead(self._readings, portion, int(instructions), MACHINE)
            return None
        task = _Routing(decode(instructions, RoutePlan), int(index), sorts=False).task
        if ahead is None or ahead.portion != portion:
            ahead = ReadAhead(self._readings, portion, 0, MACHINE)
        for source, read in ahead.files:
            for _ in task.add(source, read):
                pass
        return encode(ahead.told(task.close()))


@dataclass(frozen=True)
class RouteRows:
    """Routes the tuples of one streaming DataFrame; for `mapInArrow`.

    `schema`: of its columns in their order; batches may have other names.
    """

    source: int
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Tuples in, the task's packets and report out."""
        plan = _route_plan()
        number = _context().partitionId()
        routing = _Routing(plan, number, sorts=self.source in plan.unordered)
        seen = self._seen(batches, routing.task.report.widths)
        return routing.rows(routing.task.add(self.source, seen))

    def _seen(
        self, batches: Iterable[pa.RecordBatch], widths: dict[int, float]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                width = batch.nbytes / batch.num_rows
                widths[self.source] = max(width, widths.get(self.source, 0.0))
                yield conform(batch.rename_columns(self.schema.names), self.schema)


class _Routing:
    """A route task, with the rows or lines that it yields to Spark."""

    def __init__(self, plan: RoutePlan, number: int, *, sorts: bool) -> None:
        self._through = plan.exchange
        self._exchange = sender(plan.exchange, MACHINE)
        self.task = RouteTask(plan, number, self._exchange, MACHINE, sorts=sorts)

    def rows(self, routed: Iterator[None]) -> Iterator[pa.RecordBatch]:
        """`contents` as rows of Spark."""
        for contents in self.contents(routed):
            yield pa.RecordBatch.from_arrays([pa.array(contents, pa.binary())], schema=ROW_SCHEMA)

    def contents(self, routed: Iterator[None]) -> Iterator[Sequence[bytes]]:
        """Yields lines whenever some tuples are routed, and the report at the end."""
        for _ in routed:
            yield from self._sent(None)
        yield from self._sent(self.task.close())

    def _sent(self, report: RouteReport | None) -> Iterator[Sequence[bytes]]:
        content = None if report is None else encode(report)
        if isinstance(self._through, ThroughShuffle):
            assert isinstance(self._exchange, ShuffleExchange)
            yield from _lines(self._exchange.sent(), content, self._through.tasks)
        elif content is not None:
            yield (content,)


@dataclass(frozen=True)
class OperatorTasks:
    """Carries out the tasks of an operator; for `mapPartitionsWithIndex`."""

    operator: Operator

    def __call__(self, index: int, rows: Iterable[Any]) -> Iterator[bytes]:
        """Carry out task `index`; its report."""
        # Read all rows: Spark does not reuse a worker that leaves some of its input unread.
        for _ in rows:
            pass
        yield self.carry_out(_instructions(f"-{index}"))

    def carry_out(self, instructions: bytes) -> bytes:
        """Carry out a task; its report."""
        settle_in()
        task = decode(instructions, OperatorTask)
        exchange = sender(task.header.exchange, MACHINE)
        store = _store_of(task.header)
        return _encoded(carry_out(self.operator, task, store, exchange, MACHINE))


@dataclass(frozen=True)
class ShuffledTasks:
    """Carries out the tasks of an operator on packets; for `mapPartitionsWithIndex`.

    `instructions`: for each task, encoded, with the number of tuples on each side; None: unknown.
    """

    operator: Operator
    instructions: Sequence[bytes]
    coming: Sequence[Sequence[int] | None]

    def __call__(self, index: int, packets: Iterable[bytes]) -> Iterator[bytes]:
        """Carry out task `index`; lines with its results for a later operator, then its report."""
        settle_in()
        task = decode(self.instructions[index], OperatorTask)
        header = task.header
        assert isinstance(header.exchange, ThroughShuffle)
        exchange = ShuffleExchange(header.exchange.tasks, packets)
        coming = self.coming[index]
        if coming is not None:
            exchange.check(coming)
        task = replace(task, received=exchange.blocks(len(self.operator.schemas)))
        store = _store_of(header)
        report = _encoded(carry_out(self.operator, task, store, exchange, MACHINE))
        if isinstance(header.target, ToOperator):
            for pair in _lines(exchange.sent(), report, header.exchange.tasks):
                yield from pair
        else:
            yield report


@dataclass(frozen=True)
class Forward:
    """Forwards packets, with copies for all `tasks` tasks of what `instances` get.

    For `mapPartitions`.
    """

    instances: Collection[int]
    tasks: int
    width: int

    def __call__(self, packets: Iterable[bytes]) -> Iterator[bytes]:
        """Packets in, lines out; `width`: the most tasks that an operator has."""
        for content in packets:
            for pair in _lines(forwarded(content, self.instances, self.tasks), None, self.width):
                yield from pair


def _store_of(header: TaskHeader) -> RunStore:
    """The run store from which a task reads."""
    runs = header.runs
    return _RUN_STORES.store_of(runs.folder, header.operator, header.driver, runs.storage)


def _encoded(report: OperatorReport) -> bytes:
    """A report; if run files lie in an object store, it names the executor, which has copies."""
    if report.reads is not None:  # also if files are uploaded in the background
        report.executor = own_location()
    return encode(report)


def _lines(
    packets: Iterable[Packet], report: bytes | None, tasks: int
) -> Iterator[tuple[bytes, bytes]]:
    """(partition, bytes) of each packet and, at the end, of the report."""
    for operator, task, content in packets:
        yield _NUMBER.pack(partition_of(operator, task, tasks)), content
    if report is not None:
        yield _NUMBER.pack(REPORTS), report


def _route_plan() -> RoutePlan:
    settle_in()
    said = _context().getLocalProperty(ROUTE_PROPERTY)
    return decode(base64.b64decode(said) if said else _instructions(), RoutePlan)


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
def settle_in() -> None:
    """Prepare a worker process, once.

    Imported modules are excluded from the garbage collection that runs after each task, which saves
    13 ms. Python looks for cycles less often: messages of a topic come by the thousand and have
    none. The process keeps the memory of freed arrays, and ends without a trace.
    """
    keep_freed_memory()
    gc.freeze()
    gc.set_threshold(_YOUNG)
    end_quietly()
