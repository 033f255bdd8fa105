"""The driver's part of a batch: it interprets what `joinengine.driver.step` decides.

`Jobs` runs the tasks, a `Sink` delivers; here is only the order in which things happen.

Why the order: until the manifest is there nothing has happened; from then on everything has.
Results are delivered after it, and delivering is repeatable, so a kill at any point is made good
by running the same batch again (docs/decisions/0001).

Law: a batch that the manifest knows is never computed again; one that does not follow it is
refused.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from joinengine.balancing.statistics import Interval
from joinengine.driver import clock, relayout, step
from joinengine.driver.folding import fold
from joinengine.driver.jobs import Jobs
from joinengine.driver.records import BatchRecord, OperatorRecord
from joinengine.driver.relayout import Relayout
from joinengine.driver.settings import Settings
from joinengine.driver.sinks import SideOutput, Sink
from joinengine.driver.step import Arrived, Batch, Counts, Done, Moment, Program
from joinengine.exchange.reports import OperatorReport, RouteReport
from joinengine.exchange.ticks import request_tick
from joinengine.layouts.base import LayoutChoice
from joinengine.model.errors import CheckpointMismatch
from joinengine.operators.base import QuerySpec
from joinengine.state import manifest as manifests
from joinengine.state.manifest import Manifest
from joinengine.state.operator_state import OperatorState
from joinengine.state.storage import Checkpoint, collect_garbage, read_sealed, write_sealed


class BatchRunner:
    """Runs the batches of one query; the callable that `foreachBatch` gets."""

    def __init__(
        self,
        jobs: Jobs,
        query: QuerySpec,
        choices: Sequence[LayoutChoice],
        checkpoint: Checkpoint,
        query_id: str,
        sink: Sink,
        settings: Settings,
        aside: SideOutput | None = None,
    ) -> None:
        self._jobs = jobs
        self.query = query
        self._program = Program(
            query, settings, str(checkpoint.runs), jobs.parallelism, driver=uuid.uuid4().hex
        )
        self._wishes: SimpleQueue[Relayout] = SimpleQueue()
        self._checkpoint = checkpoint
        self._sink = sink
        self._aside = aside
        self._settings = settings
        self._observers = list[Callable[[BatchRecord], None]]()
        found = manifests.newest(checkpoint.manifests)
        if found is not None and found.query != query_id:
            raise CheckpointMismatch(
                f"{checkpoint.root} holds the state of query {found.query}, not {query_id}"
            )
        if found is None:
            found = step.begin(query, choices, query_id)
        # A restart may ask for other layouts; until it commits, the manifest on disk names files
        # that this one does not.
        self._on_disk = found.named_files()
        self._counts: Counts = _read_counts(checkpoint, found)
        self.manifest = step.resume(query, found, choices, lazy=settings.lazy)
        for wishes in settings.schedule.values():
            for wish in wishes:
                self._check(wish)

    @property
    def choices(self) -> list[LayoutChoice]:
        """The layouts of the operators as they are now."""
        return [state.layouts.newest.choice for state in self.manifest.operators]

    def relayout(self, wish: Relayout) -> None:
        """Change all layouts after the running batch. Raises InvalidRequest where one cannot."""
        self._check(wish)
        self._wishes.put(wish)

    def observe(self, observer: Callable[[BatchRecord], None]) -> None:
        """Call `observer` with the record of each batch that is computed."""
        self._observers.append(observer)

    def recover(self) -> None:
        """Finish what a kill has interrupted: deliver the last batch, collect garbage."""
        if self.manifest.batch >= 0:
            self._deliver()
        self._collect_garbage()

    def __call__(self, frame: Any, batch: int) -> None:
        """One micro-batch. Raises CheckpointMismatch where it does not follow the manifest."""
        last = self.manifest
        if batch == last.batch:
            self._deliver()
            return
        if batch != last.batch + 1:
            raise CheckpointMismatch(
                f"batch {batch} does not follow batch {last.batch}, the last one of "
                f"{self._checkpoint.root}: Spark's own part of the checkpoint was changed or "
                f"removed; restore it, or start with a new checkpoint"
            )
        record = BatchRecord(batch)
        here = self._open(batch)
        with record.timed("elapsed_s"):
            with record.timed("route_s"):
                routed = self._route(frame, here)
            with record.timed("join_s"):
                done = self._run_all(here, routed, record)
            with record.timed("plan_s"):
                wishes = self._wishes_before(batch + 1)
                moment = Moment(time.time(), uuid.uuid4().hex[:12])
                after = step.close(self._program, last, here, done, self._counts, wishes, moment)
            with record.timed("commit_s"):
                self._commit(after)
            with record.timed("sink_s"):
                self._deliver()
            with record.timed("clean_s"):
                self._collect_garbage()
                self._request_tick(batch, quiet=not any(one.rows for one in done.arrived.inputs))
        record.close(routed, done, after)
        for observer in self._observers:
            observer(record)

    # The steps

    def _open(self, batch: int) -> Batch:
        exchange = self._checkpoint.exchange / f"{batch:08d}-{uuid.uuid4().hex[:8]}"
        exchange.mkdir()
        aside = None if self._aside is None else str(self._aside.staging)
        return Batch(batch, str(exchange), aside)

    def _route(self, frame: Any, batch: Batch) -> list[RouteReport]:
        plan = step.route(self.query, self.manifest, batch)
        routed = self._jobs.route(frame, plan)
        if self.query.tables and self.manifest.batch < 0:
            for report in self._jobs.read_tables(plan):
                report.source_rows = 0  # input is what streams bring
                routed.append(report)
        return routed

    def _run_all(self, batch: Batch, routed: Sequence[RouteReport], record: BatchRecord) -> Done:
        """Run the tasks of all operators, one operator after the other."""
        arrived = Arrived.routed(routed)
        states, all_reports = list[OperatorState](), list[list[OperatorReport]]()
        expired = step.expire(self.query, self.manifest)
        for operator, (state, gone) in zip(self.query.operators, expired, strict=True):
            tasks = step.order(
                self._program,
                self.manifest,
                batch,
                operator,
                state,
                arrived,
                self._counts,
                self._sink.target,
            )
            reports = self._jobs.run(tasks) if tasks else []
            arrived = arrived.and_results(reports)
            states.append(fold(state, reports))
            all_reports.append(reports)
            record.joins.append(OperatorRecord.of(state, expired_rows=gone))
        return Done(states, all_reports, arrived, clock.progress_of(routed))

    def _commit(self, after: step.Next) -> None:
        for name, content in after.sealed.items():
            write_sealed(self._checkpoint.runs / name, content, fsync=self._settings.fsync)
        manifests.commit(self._checkpoint.manifests, after.manifest, fsync=self._settings.fsync)
        self.manifest, self._counts = after.manifest, after.counts
        self._on_disk = after.manifest.named_files()

    # Around them

    def _wishes_before(self, batch: int) -> list[Relayout]:
        """What is to change before a batch: what was planned for it, and what was asked since."""
        wishes = list(self._settings.schedule.get(batch, ()))
        while not self._wishes.empty():
            wishes.append(self._wishes.get())
        return wishes

    def _check(self, wish: Relayout) -> None:
        for operator, state in zip(self.query.operators, self.manifest.operators, strict=True):
            relayout.check(operator, state.layouts, wish)

    def _deliver(self) -> None:
        """Make what the manifest names visible."""
        self._sink.deliver(self.manifest.batch, self.manifest.results)
        if self._aside is not None:
            self._aside.deliver(self.manifest.batch, self.manifest.refused)

    def _collect_garbage(self) -> None:
        """Remove what no manifest names; what is named stays."""
        collect_garbage(self._checkpoint.runs, self._on_disk)
        self._sink.clean(self.manifest.results)
        if self._aside is not None:
            self._aside.clean(self.manifest.refused)
        for folder in self._checkpoint.exchange.iterdir():
            shutil.rmtree(folder, ignore_errors=True)

    def _request_tick(self, batch: int, *, quiet: bool) -> None:
        """Ask for a batch without data where state is due to leave and no data may come."""
        due = clock.tick_due(self.query, self.manifest, quiet, time.time())
        if due is not None:
            request_tick(self._checkpoint.ticks, batch + 1, due)


def _read_counts(checkpoint: Checkpoint, manifest: Manifest) -> dict[str, Interval]:
    """The counts that a manifest names."""
    named = [stored for state in manifest.operators for stored in state.layouts.history]
    return {
        stored.name: Interval.from_bytes(
            read_sealed(Path(checkpoint.runs / stored.name), stored, "statistics file")
        )
        for stored in named
    }
