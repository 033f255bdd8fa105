"""The driver's part of a batch: route, join by join, plan, commit, deliver.

`Jobs` runs the tasks, a `Sink` delivers; here is only what must be the same whoever does.

Why the order: until the manifest is there nothing has happened; from then on everything has.
Results are delivered after it, and delivering is repeatable, so a kill at any point is made good
by running the same batch again (docs/decisions/0001).

Law: a batch that the manifest knows is never computed again; one that does not follow it is
refused. A driver removes nothing before a manifest of its own is committed, and then nothing that a
newer driver has made (docs/decisions/0009).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from joinengine.balancing.statistics import Interval
from joinengine.driver import bookkeeping, clock
from joinengine.driver.instructions import Arriving, Instructions, Order
from joinengine.driver.jobs import Jobs
from joinengine.driver.records import BatchRecord, JoinRecord
from joinengine.driver.relayout import PlannedJoin, Relayout, first_states
from joinengine.driver.settings import Settings
from joinengine.driver.sinks import SideOutput, Sink
from joinengine.exchange.blocks import Origin, Role
from joinengine.exchange.reports import InputReport, JoinReport, RouteReport
from joinengine.exchange.results import Target, ToJoin
from joinengine.exchange.route import RoutePlan
from joinengine.exchange.ticks import request_tick
from joinengine.layouts import Chosen
from joinengine.layouts.base import LayoutChoice
from joinengine.model.errors import CheckpointMismatch, DamagedState, TakenOver
from joinengine.model.keys import Side
from joinengine.model.query import FromJoin, FromSource, Operator, QuerySpec
from joinengine.state import fence
from joinengine.state import manifest as manifests
from joinengine.state.manifest import JoinState, Manifest
from joinengine.state.storage import (
    Checkpoint,
    read_sealed,
    remove_unnamed,
    tagged,
    write_sealed,
)

_log = logging.getLogger("joinengine")


def _nonce() -> str:
    return uuid.uuid4().hex[:12]


class BatchRunner:
    """Runs the batches of one query; the callable that `foreachBatch` gets.

    It has a generation from `recover` on; `nonce` tells its attempts apart.
    """

    nonce: Callable[[], str] = staticmethod(_nonce)

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
        self._query_id = query_id
        self._choices = choices
        self.generation = 0
        self._committed = False
        self._wishes: SimpleQueue[Relayout] = SimpleQueue()
        self._checkpoint = checkpoint
        self._sink = sink
        self._aside = aside
        self._instructions = Instructions(settings, checkpoint, jobs.parallelism)
        self._settings = settings
        self._granted: Sequence[Relayout] = ()
        self._observers = list[Callable[[BatchRecord], None]]()
        self.manifest = Manifest(query_id, -1, ())
        self._take_up_newest()
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
        """Take the checkpoint over, and finish what a kill has interrupted: deliver the last batch.

        Whoever ran on it before stops at its next step, also where it commits one batch more.
        """
        self.generation = fence.claim(self._checkpoint)
        if self._aside is not None:
            self._aside.prepare()
        self._take_up_newest()
        # Who slept since may hold a newer driver's manifest, to which its files would be remains.
        self._check_alone()
        if self.manifest.batch >= 0:
            self._deliver()

    def __call__(self, frame: Any, batch: int) -> None:
        """One micro-batch. Raises CheckpointMismatch where it does not follow the manifest.

        Raises TakenOver where another driver was started on the checkpoint, whatever else fails
        because of that.
        """
        self._check_alone()
        with self.fenced():
            self._run(frame, batch)

    def _run(self, frame: Any, batch: int) -> None:
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
        name = tagged(self.generation, f"{batch:08d}-{self.nonce()}")
        exchange = self._checkpoint.exchange / name
        exchange.mkdir()
        with record.timed("elapsed_s"):
            with record.timed("route_s"):
                routed = self._route(frame, batch, exchange)
            with record.timed("join_s"):
                states, reports, arriving = self._join_all(batch, exchange, routed, record)
            with record.timed("plan_s"):
                states = self._plan(states, reports, arriving.inputs, record)
                progress = clock.progress_of(routed)
                states = clock.next_watermarks(
                    self.query, last, states, arriving.inputs, progress, time.time()
                )
            with record.timed("commit_s"):
                results = tuple(f for report in reports[-1] for f in report.result_files)
                refused = tuple(r.refused for r in arriving.inputs if r.refused is not None)
                done = Manifest(last.query, batch, tuple(states), results, refused)
                ours = self._commit(done)
            with record.timed("sink_s"):
                self._deliver()
            with record.timed("clean_s"):
                self._remove_unnamed()
                self._request_tick(batch, quiet=not any(r.rows for r in arriving.inputs))
        if not ours:
            return
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
    ) -> tuple[list[JoinState], list[list[JoinReport]], Arriving]:
        arriving = Arriving({}, [report for task in routed for report in task.inputs])
        for block in (block for task in routed for block in task.blocks):
            arriving.blocks.setdefault((block.join, block.side), []).append(block)
        states, all_reports = list[JoinState](), list[list[JoinReport]]()
        for join in self._joins:
            state, expired = bookkeeping.expire(join.spec, self._state(join.spec))
            last = join.spec.index == len(self._joins) - 1
            blocks = arriving.at(join.spec)
            order = Order(join, state, batch, self.generation, str(exchange), blocks, last)
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
            return self._sink.target(self.generation)
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
        self._granted = wishes
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
        name = tagged(self.generation, f"counts-{batch:08d}-{index}-{self.nonce()}.npz")
        content = join.history[-1].to_bytes()
        stored = write_sealed(self._checkpoint.runs / name, content, fsync=self._settings.fsync)
        return replace(state, history=(*state.history, stored)[-len(join.history) :])

    def _commit(self, done: Manifest) -> bool:
        """Make `done` true; False where an older driver was first with the batch: it counts then.

        The offsets of a batch are in Spark's log before it is computed, so that both have joined
        the same tuples.
        """
        done = replace(
            done, generation=self.generation, nonce=self.nonce(), parent=self.manifest.link
        )
        found = manifests.commit(self._checkpoint, done, fsync=self._settings.fsync)
        if found.nonce == done.nonce:
            self.manifest, self._committed = found, True
            return True
        _log.warning(
            "joinengine: the driver before this one (generation %s) was first to commit batch %s "
            "of checkpoint %s; this one, generation %s, has taken over and goes on from there",
            *(found.generation, found.batch, self._checkpoint.root.parent, self.generation),
        )
        self._take_up(found)
        for wish in self._granted:
            self._wishes.put(wish)
        return False

    # Around them

    def _take_up_newest(self) -> None:
        """Go on from the newest manifest, of which there may be a newer one any moment."""
        folder = self._checkpoint.manifests
        while True:
            found = manifests.newest(folder)
            try:
                return self._take_up(found)
            except DamagedState:
                again = manifests.newest(folder)
                if found is None or again is None or again.nonce == found.nonce:
                    raise

    def _take_up(self, found: Manifest | None) -> None:
        """Go on from `found`; None: from nothing."""
        query, checkpoint = self.query, self._checkpoint
        if found is not None and found.query != self._query_id:
            raise CheckpointMismatch(
                f"{checkpoint.root} holds the state of query {found.query}, not {self._query_id}"
            )
        if found is None:
            found = Manifest(self._query_id, -1, first_states(query, self._choices))
        self._joins = [
            PlannedJoin(spec, Chosen.from_json(state.layout), self._settings.lazy)
            for spec, state in zip(query.joins, found.joins, strict=True)
        ]
        self._read_history(found)
        states = [
            join.as_asked(state, choice)
            for join, state, choice in zip(self._joins, found.joins, self._choices, strict=True)
        ]
        self.manifest = replace(found, joins=tuple(states))

    @contextmanager
    def fenced(self) -> Iterator[None]:
        """Whatever fails inside is TakenOver where another driver has been started."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, TakenOver):
                self._check_alone()
            raise

    def _check_alone(self) -> None:
        fence.check_generation(self._checkpoint.generations, self.generation)

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

    def _deliver(self) -> None:
        """Make what the manifest names visible."""
        self._sink.deliver(self.manifest.batch, self.manifest.results, self.generation)
        if self._aside is not None:
            self._aside.deliver(self.manifest.batch, self.manifest.refused)

    def _role(self, join: Operator, side: Side) -> Role:
        aside = None if self._aside is None else self._aside.staging
        state = self._state(join)
        router = self._joins[join.index].router(state)
        found = bookkeeping.role(join, side, state, router, aside)
        return replace(found, generation=self.generation)

    def _remove_unnamed(self) -> None:
        """Remove what the newest manifest does not name and drivers up to this one have made.

        Only where the newest manifest is this driver's own: then no older driver can commit any
        more what it has made, and a newer one names nothing of it but what is named here.
        """
        if not self._committed:
            return
        checkpoint, own = self._checkpoint, self.generation
        manifests.retire(checkpoint, self.manifest.batch)
        remove_unnamed(checkpoint.runs, self.manifest.named_files(), own)
        self._sink.clean(self.manifest.results, own)
        if self._aside is not None:
            self._aside.clean(self.manifest.refused, own)
        remove_unnamed(checkpoint.exchange, (), own)
        remove_unnamed(checkpoint.ticks, [checkpoint.ticks_of(own).name], own)

    def _request_tick(self, batch: int, *, quiet: bool) -> None:
        """Ask for a batch without data where state is due to leave and no data may come."""
        due = clock.tick_due(self.query, self.manifest, quiet, time.time())
        if due is not None:
            request_tick(self._checkpoint.ticks_of(self.generation), batch + 1, due)
