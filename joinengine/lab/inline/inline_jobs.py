"""`Jobs` in this process, one task after another; on request, with the faults of a cluster."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from joinengine.exchange.exchange import Exchange, ExchangeKind
from joinengine.exchange.route import RoutePlan
from joinengine.lab.inline.inline_tasks import Seen, arrived, carried_out, routed, sent_by
from joinengine.lab.inline.one_process import OneProcess
from joinengine.operators.base import Operator, OperatorTask
from joinengine.state.manifest import Position
from joinengine.state.run import RunStores
from joinengine.wire.codec import decode, encode
from joinengine.wire.reports import OperatorReport, RouteReport
from joinengine.world.world import Machine, World


class Timeless(Machine):
    """A machine on which all work takes no time, so that planners decide the same in every run."""

    def timer_s(self) -> float:
        """Constant: the timer stands still."""
        return 0.0


TIMELESS = Timeless()


@dataclass
class InlineJobs(OneProcess):
    """Runs tasks here; `twice` runs each a second time, and the first attempt's report is lost.

    Under a shuffle, each receiver then gets the packets of one of a sender's two attempts.
    `disorder`: the second attempt of a route task sees its tuples in another order, so these tasks
    sort them. `exchange`: that of the queries. `step(name)` is called around tasks and may raise.
    `tables`: what the tasks for tables read.
    """

    parallelism: int = 2
    twice: bool = False
    disorder: bool = False
    exchange: ExchangeKind = ExchangeKind.FILES
    step: Callable[[str], object] = lambda name: None
    tables: list[Seen] = field(default_factory=list)
    world: World = TIMELESS
    stores: RunStores | None = None

    def __post_init__(self) -> None:
        self.stores = self.stores or RunStores(self.world)
        self.mail = defaultdict[tuple[int, int], list[bytes]](list)
        self.rng = random.Random(0)

    def route(
        self, frame: Sequence[Seen], plan: RoutePlan, start: Position, end: Position
    ) -> list[RouteReport]:
        """`frame`: what each route task sees."""
        self.mail.clear()
        return self._routed(frame, plan)

    def read_tables(self, plan: RoutePlan) -> list[RouteReport]:
        """Route what `tables` has."""
        return self._routed(self.tables, plan)

    def _routed(self, frame: Sequence[Seen], plan: RoutePlan) -> list[RouteReport]:
        instructions, reports = encode(plan), list[RouteReport]()
        for partition, tuples in enumerate(frame):
            attempts = list[Exchange]()
            for attempt in range(2 if self.twice else 1):
                seen = self._mixed(tuples) if self.disorder and attempt else tuples
                report, exchange = routed(
                    instructions, partition, seen, self.world, sorts=self.disorder
                )
                attempts.append(exchange)
            sent_by(attempts, self.rng, self.mail)
            reports.append(decode(encode(report), RouteReport))
        self.step("routed")
        return reports

    def _mixed(self, tuples: Seen) -> Seen:
        """The rows of each batch in another order."""
        return [
            (source, batch if isinstance(batch, float) else batch.take(self._order(batch)))
            for source, batch in tuples
        ]

    def _order(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array(self.rng.sample(range(batch.num_rows), batch.num_rows), pa.int64())

    def run(self, operator: Operator, tasks: Sequence[OperatorTask]) -> list[OperatorReport]:
        """The reports of tasks, in any order."""
        assert self.stores is not None
        reports, results = list[OperatorReport](), list[list[Exchange]]()
        own, whole = arrived(operator, tasks, self.rng, self.mail)
        for task, packets in zip(tasks, own, strict=True):
            instructions, attempts = encode(task), list[Exchange]()
            for _ in range(2 if self.twice else 1):
                report, exchange = carried_out(
                    operator, instructions, packets, whole, self.stores, self.world
                )
                self.rng.shuffle(packets)
                attempts.append(exchange)
            results.append(attempts)
            reports.append(decode(encode(report), OperatorReport))
            self.step("joined")
        if not any(report.lost for report in reports):
            for attempts in results:
                sent_by(attempts, self.rng, self.mail)
        random.Random(tasks[0].header.batch).shuffle(reports)
        return reports
