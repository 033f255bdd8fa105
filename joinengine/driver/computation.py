"""Computes a batch: routes its tuples, then runs the tasks of its operators, one after the other.

Nothing is committed or delivered here: the outcome may be thrown away, or computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from joinengine.driver import step
from joinengine.driver.folding import fold
from joinengine.driver.jobs import Jobs
from joinengine.driver.recovery.attempts import Attempts
from joinengine.driver.stages import Arrived, Computed, Counts, Opened, Program, Ran, Routed
from joinengine.exchange.exchange import through
from joinengine.exchange.task_results import Target
from joinengine.operators.base import Attempt, Operator, OperatorTask
from joinengine.results.sinks import SideOutput
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest, Position
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

    def open(
        self,
        last: Manifest,
        counts: Counts,
        end: Position,
        generation: int,
        clock_s: float,
    ) -> Opened:
        """The batch after `last`, with an exchange of its own; parameters as in `Opened`."""
        name = tagged(generation, f"{last.batch + 1:08d}-{self._checkpoint.world.nonce()}")
        folder = self._checkpoint.exchange.at(name)
        kind = self.program.settings.exchange
        return Opened(
            last,
            counts,
            end_of(self._jobs, last),
            end,
            through(kind, self._jobs.parallelism, folder),
            generation,
            clock_s,
        )

    def route(self, frame: Any, opened: Opened, aside: SideOutput | None = None) -> Routed:
        """Route the tuples of a batch; in the first batch, those of all tables, too.

        `frame`: as in `Jobs.route`; `aside`: where skipped files are reported.
        """
        plan = step.route(self.program, opened)
        reports = self._jobs.route(frame, plan, opened.start, opened.end)
        if self.program.query.tables and opened.last.batch < 0:
            for report in self._jobs.read_tables(plan):
                report.source_rows = 0  # input is what streams bring
                reports.append(report)
        by_file = {skip.file: skip for task in reports for skip in task.skipped}
        skipped = tuple(skip for skip in by_file.values() if skip not in opened.named)
        if aside is None or not skipped:
            return Routed(opened, reports, skipped)
        name = f"skipped-{self._checkpoint.world.nonce()}.parquet"
        name = tagged(opened.generation, name)
        return Routed(
            opened, reports, skipped, (aside.stage_skipped(name, opened.number, skipped),)
        )

    def run(self, routed: Routed, target: Callable[[], Target]) -> Computed:
        """Run the tasks of all operators; `target`: gives the place for the results."""
        opened, query = routed.opened, self.program.query
        arrived, done = Arrived.routed(routed.reports), list[Ran]()
        expired = step.expire(query, opened.last)
        for operator, (begun, gone) in zip(query.operators, expired, strict=True):

            def order(
                attempt: Attempt, operator: Operator = operator, arrived: Arrived = arrived
            ) -> Sequence[OperatorTask]:
                return step.order(self.program, opened, operator, attempt, arrived, target)

            attempt, tasks, reports = self.attempts.run(operator, begun, order)
            arrived = arrived.and_results(reports)
            done.append(Ran(attempt, tasks, reports, fold(attempt.state, reports), gone))
        self._jobs.read_ahead(opened.end)  # while the driver commits
        return Computed(routed, done, arrived)


def end_of(jobs: Jobs, manifest: Manifest) -> Position:
    """Where the batch of a manifest ends; manifests of an earlier version do not say so."""
    if manifest.position is not None:
        return manifest.position
    return jobs.logged_end(manifest.batch, manifest.spark) if manifest.batch >= 0 else {}
