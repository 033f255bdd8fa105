"""A batch computed: its tuples routed, and the tasks of its operators run, one after the other.

Nothing is committed or delivered here: what is computed may be thrown away, or computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from joinengine.balancing.reasons import Reason
from joinengine.driver import clock, step
from joinengine.driver.attempts import Attempts
from joinengine.driver.folding import fold
from joinengine.driver.jobs import Jobs
from joinengine.driver.records import BatchRecord, OperatorRecord
from joinengine.driver.step import Arrived, Batch, Counts, Done, Program
from joinengine.exchange.exchange import through
from joinengine.exchange.reports import OperatorReport, RouteReport
from joinengine.exchange.results import Target
from joinengine.operators.base import Operator, OperatorTask
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest
from joinengine.state.operator_state import OperatorState
from joinengine.world.storage import tagged


class Computing:
    """Computes the batches of one start of a driver."""

    def __init__(
        self, program: Program, jobs: Jobs, attempts: Attempts, checkpoint: Checkpoint
    ) -> None:
        self.program = program
        self.attempts = attempts
        self._jobs = jobs
        self._checkpoint = checkpoint

    def open(self, batch: int, generation: int, clock_s: float, aside: str | None) -> Batch:
        """A batch with an exchange of its own; parameters as in `Batch`."""
        name = tagged(generation, f"{batch:08d}-{self._checkpoint.world.nonce()}")
        folder = self._checkpoint.exchange.at(name)
        kind = self.program.settings.exchange
        exchange = through(kind, self._jobs.parallelism, folder)
        return Batch(batch, exchange, generation, clock_s, aside)

    def route(self, frame: Any, last: Manifest, batch: Batch) -> list[RouteReport]:
        """Route the tuples of a batch, and before the first one those of all tables."""
        plan = step.route(self.program, last, batch)
        routed = self._jobs.route(frame, plan)
        if self.program.query.tables and last.batch < 0:
            for report in self._jobs.read_tables(plan):
                report.source_rows = 0  # input is what streams bring
                routed.append(report)
        return routed

    def run(
        self,
        batch: Batch,
        last: Manifest,
        counts: Counts,
        routed: Sequence[RouteReport],
        target: Callable[[], Target],
        record: BatchRecord,
        resumed_for: Sequence[Reason | None] = (),
    ) -> Done:
        """Run the tasks of all operators.

        `counts`: those that the manifest `last` names; `target`: where results go; `resumed_for`:
        why layouts differ from those of the batch before, which the record tells.
        """
        arrived = Arrived.routed(routed)
        states, all_reports = list[OperatorState](), list[list[OperatorReport]]()
        query = self.program.query
        reasons = resumed_for or [None] * len(query.operators)
        expired = step.expire(query, last)
        for operator, (begun, gone) in zip(query.operators, expired, strict=True):

            def order(
                state: OperatorState, operator: Operator = operator, arrived: Arrived = arrived
            ) -> Sequence[OperatorTask]:
                return step.order(
                    self.program, last, batch, operator, state, arrived, counts, target
                )

            state, tasks, reports = self.attempts.run(operator, begun, order)
            arrived = arrived.and_results(reports)
            states.append(fold(state, reports))
            all_reports.append(reports)
            entry = OperatorRecord.of(state, expired_rows=gone, reason=reasons[operator.index])
            entry.note_asked(tasks)
            record.joins.append(entry)
        return Done(states, all_reports, arrived, clock.progress_of(routed))
