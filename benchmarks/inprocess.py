"""A join without Spark: the engine's own driver and tasks in this process, one task after another.

Why: seconds of single instances, as many tasks as instances, and hundreds of runs in an hour. What
Spark adds to a batch is left out; `make bench-peers` measures that.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from typing_extensions import override

from joinengine.api import columns
from joinengine.driver.batch import BatchRunner
from joinengine.driver.jobs import Jobs, OneProcess
from joinengine.driver.records import BatchRecord
from joinengine.driver.settings import Settings
from joinengine.driver.sinks import DiscardSink
from joinengine.exchange.codec import decode, encode
from joinengine.exchange.exchange import Exchange
from joinengine.exchange.reports import OperatorReport, RouteReport
from joinengine.exchange.route import RoutePlan, RouteTask
from joinengine.exchange.shuffle import sender
from joinengine.layouts.base import LayoutChoice
from joinengine.model.conditions import Condition
from joinengine.model.keys import Side
from joinengine.model.query import FromSource, JoinType
from joinengine.model.windows import Window
from joinengine.operators import Join
from joinengine.operators.base import Operator, OperatorTask, QuerySpec, carry_out
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.run import RunStores
from joinengine.world.world import MACHINE

#: Per source the tuples of a batch.
Frame = Sequence[pa.RecordBatch]


@dataclass(slots=True)
class InProcess(OneProcess, Jobs):
    """Runs the tasks of a batch in turn; frames are dealt to `routers` route tasks."""

    parallelism: int = field()  # no default: it would be the protocol's property
    routers: int = 2
    stores: RunStores = field(default_factory=lambda: RunStores(MACHINE))

    @override
    def logged(self, batch: int) -> dict[str, str]:
        return {}

    @override
    def route(self, frame: Frame, plan: RoutePlan) -> list[RouteReport]:
        told, reports = encode(plan), []
        for number in range(self.routers):
            plan = decode(told, RoutePlan)
            task = RouteTask(plan, number, sender(plan.exchange, MACHINE), MACHINE, sorts=False)
            for source, batch in enumerate(frame):
                ends = [batch.num_rows * i // self.routers for i in (number, number + 1)]
                for _ in task.add(source, [batch.slice(ends[0], ends[1] - ends[0])]):
                    pass
            reports.append(decode(encode(task.close()), RouteReport))
        return reports

    @override
    def read_tables(self, plan: RoutePlan) -> list[RouteReport]:
        return []

    @override
    def run(self, operator: Operator, tasks: Sequence[OperatorTask]) -> list[OperatorReport]:
        reports = []
        for told in map(encode, tasks):
            task = decode(told, OperatorTask)
            header = task.header
            exchange: Exchange = sender(header.exchange, MACHINE)
            store = self.stores.store_of(header.runs_folder, header.operator, header.driver)
            report = carry_out(operator, task, store, exchange, MACHINE)
            reports.append(decode(encode(report), OperatorReport))
        return reports


def join_of(
    schemas: tuple[pa.Schema, pa.Schema],
    on: Condition,
    window: Window | None,
    instances: int,
    how: str = "inner",
) -> QuerySpec:
    """One join of two streams."""
    kind = JoinType(how)
    join = Join(
        index=0,
        condition=on,
        window=window,
        how=kind,
        inputs=(FromSource(0), FromSource(1)),
        schemas=schemas,
        output=columns.output_columns(schemas, on, None, kind, window),
        instances=instances,
        distance=columns.check_condition(on, schemas),
        predicate=columns.check_predicate(on, None, schemas, "UTC"),
    )
    return QuerySpec((join,), tuple(side.name.lower() for side in Side))


def run(
    query: QuerySpec,
    choice: LayoutChoice,
    batches: Iterable[Frame],
    *,
    tasks: int | None = None,
    settings: Settings | None = None,
) -> list[BatchRecord]:
    """The records of all batches; `tasks`: how many an operator has, None: one an instance."""
    records = list[BatchRecord]()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        checkpoint = Checkpoint.below(folder)
        checkpoint.create()
        jobs = InProcess(tasks or query.operators[0].instances)
        runner = BatchRunner(
            jobs, query, [choice], checkpoint, "q", DiscardSink(), settings or Settings()
        )
        runner.observe(records.append)
        runner.recover()
        for number, frame in enumerate(batches):
            runner(frame, number)
    return records
