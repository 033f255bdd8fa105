"""The driver's part of a batch: route, join by join, plan, commit, deliver.

`Jobs` runs the tasks, a `Sink` delivers; here is only what must be the same whoever does.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from joinengine.balancing.statistics import Interval
from joinengine.layouts import Chosen
from joinengine.layouts.base import LayoutChoice
from joinengine.layouts.versions import VersionedRouter
from joinengine.model.errors import CheckpointMismatch
from joinengine.model.keys import Side
from joinengine.model.query import FromJoin, FromSource, JoinSpec, Operator, QuerySpec
from joinengine.model.reports import Block, InputReport, JoinReport, RouteReport
from joinengine.reporting.records import BatchRecord, JoinRecord
from joinengine.spark import bookkeeping
from joinengine.spark.exchange import Origin, Role
from joinengine.spark.instructions import Instructions, Order
from joinengine.spark.jobs import Jobs
from joinengine.spark.planning import PlannedJoin, Relayout
from joinengine.spark.results import Target, ToJoin
from joinengine.spark.route import RoutePlan
from joinengine.spark.settings import Settings
from joinengine.spark.sink import SideOutput, Sink
from joinengine.spark.source import request_tick
from joinengine.state import manifest as manifests
from joinengine.state.manifest import JoinState, Manifest
from joinengine.state.storage import (
    Checkpoint,
    collect_garbage,
    read_sealed,
    write_sealed,
)


@dataclass
class _Arriving:
    """What is on its way to the joins of one batch."""

    blocks: dict[tuple[int, Side], list[Block]]
    inputs: list[InputReport]

    def at(self, spec: Operator) -> Mapping[Side, tuple[Block, ...]]:
        """What is on its way to one operator, per side."""
        return {side: tuple(self.blocks.get((spec.index, side), ())) for side in Side}


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
        self._wishes: SimpleQueue[Relayout] = SimpleQueue()
        self._checkpoint = checkpoint
        self._sink = sink
        self._aside = aside
        self._instructions = Instructions(
            settings, checkpoint, jobs.parallelism, driver=uuid.uuid4().hex
        )
        self._settings = settings
        self._observers = list[Callable[[BatchRecord], None]]()
        found = manifests.newest(checkpoint.manifests)
        if found is not None and found.query != query_id:
            raise CheckpointMismatch(
                f"{checkpoint.root} holds the state of query {found.query}, not {query_id}"
            )
        asked = list(zip(query.joins, choices, strict=True))
        if found is None:
            chosen = [Chosen(c, c.start(spec.instances), spec.instances) for spec, c in asked]
            states = [
                JoinState(
                    one.to_json(),
                    requested=one.to_json(),
                    watchers=spec.instances if isinstance(spec, JoinSpec) and spec.watched else 0,
                )
                for one, spec in zip(chosen, query.joins, strict=True)
            ]
            found = Manifest(query_id, -1, tuple(states))
        self._joins = [
            PlannedJoin(spec, Chosen.from_json(state.layout), settings.lazy)
            for spec, state in zip(query.joins, found.joins, strict=True)
        ]
        self._read_history(found)
        states = [
            join.as_asked(state, choice)
            for join, state, (_, choice) in zip(self._joins, found.joins, asked, strict=True)
        ]
        self.manifest = replace(found, joins=tuple(states))
        for wishes in self._settings.schedule.values():
            for wish in wishes:
                self._check(wish)

    @property
    def choices(self) -> list[LayoutChoice]:
        """The layouts of the joins as they are now."""
        return [join.choice for join in self._joins]

    def relayout(self, wish: Relayout) -> None:
        """Change all joins after the running batch. Raises InvalidRequest where one cannot."""
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
        exchange = self._checkpoint.exchange / f"{batch:08d}-{uuid.uuid4().hex[:8]}"
        exchange.mkdir()
        with record.timed("elapsed_s"):
            with record.timed("route_s"):
                routed = self._route(frame, batch, exchange)
            with record.timed("join_s"):
                states, reports, arriving = self._join_all(batch, exchange, routed, record)
            with record.timed("plan_s"):
                states = self._plan(states, reports, arriving.inputs, record)
                progress = bookkeeping.progress_of(routed)
                states = bookkeeping.next_watermarks(
                    self.query, last, states, arriving.inputs, progress, time.time()
                )
            with record.timed("commit_s"):
                results = tuple(f for report in reports[-1] for f in report.result_files)
                refused = tuple(r.refused for r in arriving.inputs if r.refused is not None)
                done = Manifest(last.query, batch, tuple(states), results, refused)
                manifests.commit(self._checkpoint.manifests, done, fsync=self._settings.fsync)
                self.manifest = done
            with record.timed("sink_s"):
                self._deliver()
            with record.timed("clean_s"):
                self._collect_garbage()
                self._request_tick(batch, quiet=not any(r.rows for r in arriving.inputs))
        record.close(routed, arriving.inputs, reports, states)
        for observer in self._observers:
            observer(record)

    # The steps

    def _route(self, frame: Any, batch: int, exchange: Path) -> list[RouteReport]:
        sources = range(len(self.query.sources))
        roles = {
            source: tuple(
                self._role(join, side) for join, side in self.query.roles_of(FromSource(source))
            )
            for source in sources
        }
        plan = RoutePlan(batch, roles, str(exchange))
        routed = self._jobs.route(frame, plan)
        if self.query.tables and self.manifest.batch < 0:
            for report in self._jobs.read_tables(plan):
                report.source_rows = 0  # input is what streams bring
                routed.append(report)
        return routed

    def _join_all(
        self, batch: int, exchange: Path, routed: list[RouteReport], record: BatchRecord
    ) -> tuple[list[JoinState], list[list[JoinReport]], _Arriving]:
        arriving = _Arriving({}, [report for task in routed for report in task.inputs])
        for block in (block for task in routed for block in task.blocks):
            arriving.blocks.setdefault((block.join, block.side), []).append(block)
        states, all_reports = list[JoinState](), list[list[JoinReport]]()
        for join in self._joins:
            state, expired = bookkeeping.expire(join.spec, self._state(join.spec))
            last = join.spec.index == len(self._joins) - 1
            order = Order(join, state, batch, str(exchange), arriving.at(join.spec), last)
            tasks = self._instructions.tasks(order, self._target)
            reports = self._jobs.join(tasks) if tasks else []
            for report in reports:
                if report.next_input is not None:
                    arriving.inputs.append(report.next_input)
                if report.next_block is not None:
                    block = report.next_block
                    arriving.blocks.setdefault((block.join, block.side), []).append(block)
            states.append(bookkeeping.fold_state(state, reports))
            all_reports.append(reports)
            table = join.layout.table
            record.joins.append(
                JoinRecord(
                    instances=join.router(state).instances,
                    layout_versions=len(state.live_versions),
                    expired_rows=expired,
                    routing_entries=len(table.placements),
                    split_keys=table.split_keys,
                    moved_from_rows=0 if state.before is None else state.state_rows,
                )
            )
        return states, all_reports, arriving

    def _target(self, order: Order, task: int) -> Target:
        """Where the results of one task go."""
        later = self.query.roles_of(FromJoin(order.join.spec.index))
        if not later:
            return self._sink.target()
        (spec, side) = later[0]
        return ToJoin(self._role(spec, side), order.exchange_folder, Origin(order.batch, task))

    def _plan(
        self,
        states: list[JoinState],
        reports: list[list[JoinReport]],
        inputs: list[InputReport],
        record: BatchRecord,
    ) -> list[JoinState]:
        wishes = list(self._settings.schedule.get(record.batch + 1, ()))
        while not self._wishes.empty():
            wishes.append(self._wishes.get())
        planned = list[JoinState]()
        for join, after, ours in zip(self._joins, states, reports, strict=True):
            state = self._observed(join, after, ours, inputs, record.batch)
            state, replanned = join.next_state(state, wishes, self._settings.capacity, bool(ours))
            record.joins[join.spec.index].replanned = replanned
            planned.append(state)
        return planned

    def _observed(
        self,
        join: PlannedJoin,
        state: JoinState,
        reports: list[JoinReport],
        inputs: list[InputReport],
        batch: int,
    ) -> JoinState:
        """The state with the counts of this batch, where the planner wants them."""
        if not (reports and join.choice.history_intervals):
            return state
        index = join.spec.index
        tasks = sum((report.join, report.side) == (index, Side.LEFT) for report in inputs)
        join.see(bookkeeping.interval_of(reports, state, join.layout, tasks))
        name = f"counts-{batch:08d}-{index}-{uuid.uuid4().hex[:12]}.npz"
        content = join.history[-1].to_bytes()
        stored = write_sealed(self._checkpoint.runs / name, content, fsync=self._settings.fsync)
        return replace(state, history=(*state.history, stored)[-len(join.history) :])

    # Around them

    def _check(self, wish: Relayout) -> None:
        for join in self._joins:
            join.check(wish)

    def _read_history(self, found: Manifest) -> None:
        for join, state in zip(self._joins, found.joins, strict=True):
            join.history = [
                Interval.from_bytes(
                    read_sealed(self._checkpoint.runs / stored.name, stored, "statistics file")
                )
                for stored in state.history
            ]

    def _state(self, spec: Operator) -> JoinState:
        return self.manifest.joins[spec.index]

    def _router(self, spec: Operator) -> VersionedRouter:
        return self._joins[spec.index].router(self._state(spec))

    def _deliver(self) -> None:
        """Make what the manifest names visible."""
        self._sink.deliver(self.manifest.batch, self.manifest.results)
        if self._aside is not None:
            self._aside.deliver(self.manifest.batch, self.manifest.refused)

    def _role(self, join: Operator, side: Side) -> Role:
        aside = None if self._aside is None else self._aside.staging
        return bookkeeping.role(join, side, self._state(join), self._router(join), aside)

    def _collect_garbage(self) -> None:
        """Remove what no manifest names; what is named stays."""
        collect_garbage(self._checkpoint.runs, self.manifest.named_files())
        self._sink.clean(self.manifest.results)
        if self._aside is not None:
            self._aside.clean(self.manifest.refused)
        for folder in self._checkpoint.exchange.iterdir():
            shutil.rmtree(folder, ignore_errors=True)

    def _request_tick(self, batch: int, *, quiet: bool) -> None:
        """Ask for a batch without data where state is due to leave and no data may come."""
        due = bookkeeping.tick_due(self.query, self.manifest, quiet, time.time())
        if due is not None:
            request_tick(self._checkpoint.ticks, batch + 1, due)
