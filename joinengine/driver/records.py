"""The records of batches that are over; metrics and reports are made of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from joinengine.balancing.reasons import Balance, Cause, Reason
from joinengine.driver.hot import Heat, heat_of
from joinengine.driver.losses import way_of
from joinengine.driver.step import Done, Next
from joinengine.exchange.feeds import Skipped
from joinengine.exchange.reports import InputReport, OperatorReport, RouteReport
from joinengine.model.keys import Side
from joinengine.model.recovery import Recovery
from joinengine.operators.base import OperatorTask, QuerySpec
from joinengine.operators.timing import Flow
from joinengine.state.manifest import Manifest
from joinengine.state.operator_state import PENDING, STATE, OperatorState
from joinengine.state.run import Reads
from joinengine.state.upkeep import Changes
from joinengine.world.world import World


@dataclass(slots=True)
class OperatorRecord:
    """One operator in one batch; lists are per instance."""

    instances: int
    #: the layout that routed the batch
    layout: str = ""
    #: how many layouts routed the batch: the newest, and older ones under which state lives
    layout_versions: int = 1
    received: list[int] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    #: of the stored, what is a backup
    backed: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    #: candidate pairs that were looked at, and results
    compared: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    #: per side: copies stored, the greatest event time seen so far, and copies and bytes held
    homed: list[int] = field(default_factory=lambda: [0, 0])
    newest: tuple[float, float] = (-math.inf, -math.inf)
    side_rows: list[int] = field(default_factory=lambda: [0, 0])
    side_bytes: list[int] = field(default_factory=lambda: [0, 0])
    #: of the next batch
    watermark: float = -math.inf
    output_rows: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    #: watched entries that are not judged yet
    pending_rows: int = 0
    #: state rows before a move, 0 in a batch that moved nothing
    moved_from_rows: int = 0
    moved_rows: int = 0
    moved_bytes: int = 0
    #: of the task that took longest to place moved state
    move_s: float = 0.0
    expired_rows: int = 0
    late_rows: int = 0
    null_rows: int = 0
    #: further ahead of the batch's clock than `max_ahead`
    ahead_rows: int = 0
    probe_copies: int = 0
    routing_entries: int = 0
    split_keys: int = 0
    #: instances whose state could not be read, and copies that were made anew for such
    lost: list[int] = field(default_factory=list)
    recovered_rows: int = 0
    #: what tasks told the driver for its planner, and what it told them of what it asks for
    report_bytes_up: int = 0
    report_bytes_down: int = 0
    #: run files that tasks opened in an object store and their bytes, and what was not in a cache
    run_files: int = 0
    run_file_bytes: int = 0
    fetched_files: int = 0
    fetched_bytes: int = 0
    #: whether tasks were asked for all keys that a plan may need
    asked_whole: bool = False
    #: keys of which there is no other copy at present, because it was lost
    unbacked_keys: int = 0
    #: why the layout is another after the batch (or before it, if a restart asked for one)
    reason: Reason | None = None
    #: the hottest keys of the batch
    heat: Heat = field(default_factory=Heat)

    @property
    def candidates(self) -> int:
        """Pairs that were looked at; in semi and anti joins of hot keys, tuples."""
        return sum(self.compared)

    @property
    def replanned(self) -> bool:
        """Whether the layout changed by itself, for balance."""
        return self.reason is not None and self.reason.cause.is_replan

    @property
    def lost_instances(self) -> int:
        """How many instances have lost their state before the batch."""
        return len(self.lost)

    @property
    def whole_reports(self) -> int:
        """1 if tasks were asked for whole reports, else 0."""
        return int(self.asked_whole)

    @property
    def switched_roles(self) -> int:
        """Keys whose home and backup change roles after the batch."""
        return 0 if self.reason is None else self.reason.switched_roles

    def note_asked(self, tasks: Sequence[OperatorTask]) -> None:
        """Take note of the keys that tasks were asked to count."""
        asked = [one for task in tasks for one in (task.header.counted or {}).values()]
        self.report_bytes_down = sum(one.nbytes for one in asked)
        self.asked_whole = any(one.whole for one in asked)

    def note_reads(self, reads: Reads) -> None:
        """Take note of the run files that a task has opened."""
        self.run_files += reads.files
        self.run_file_bytes += reads.size_bytes
        self.fetched_files += reads.fetched_files
        self.fetched_bytes += reads.fetched_bytes

    @classmethod
    def of(
        cls, state: OperatorState, *, expired_rows: int, reason: Reason | None = None
    ) -> OperatorRecord:
        """The record of an operator at the begin of a batch.

        `state`: before the batch; `reason`: why its layout is another than after the last batch.
        """
        layouts = state.layouts
        table = layouts.newest.layout.table
        ways = _ways(state)
        if ways:
            held = Balance.of(np.array(state.held_under_any()))
            reason = Reason(Cause.LOSS, held, ways=ways)
        return cls(
            instances=layouts.router.instances,
            layout=layouts.newest.choice.label,
            layout_versions=len(layouts.live_versions),
            expired_rows=expired_rows,
            routing_entries=len(table.placements),
            split_keys=table.split_keys,
            lost=sorted({*layouts.lost, *state.fetched}),
            recovered_rows=sum(state.fetched.values()),
            moved_from_rows=0 if layouts.pending is None else state.shelves.rows,
            reason=reason,
        )


def _ways(state: OperatorState) -> tuple[tuple[Recovery, tuple[int, ...]], ...]:
    """How the instances that the running batch has found lost have gone on."""
    found = {
        way_of(state.layouts): state.layouts.lost,
        Recovery.STORE: tuple(state.fetched),
    }
    return tuple((way, instances) for way, instances in found.items() if instances)


@dataclass(slots=True)
class BatchRecord:
    """One batch. `seconds` holds the driver's wall time per step, `work_s` the tasks' by part.

    `started`: in seconds since the epoch.
    """

    batch: int
    started: float
    seconds: dict[str, float] = field(default_factory=dict)
    work_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    joins: list[OperatorRecord] = field(default_factory=list)
    input_rows: int = 0
    output_rows: int = 0
    checksum: int = 0
    #: how much longer the batch took to its commit because instances were lost
    recovery_s: float = 0.0
    left_at: list[tuple[float, int]] = field(default_factory=list)
    #: files of sources that were not read, with the reason
    skipped: list[Skipped] = field(default_factory=list)
    #: the whole trigger, Spark's own logs included; known when Spark has told it
    trigger_s: float = 0.0

    @contextmanager
    def timed(self, world: World, step: str) -> Iterator[None]:
        """Take the wall time of a step."""
        start = world.timer_s()
        yield
        self.seconds[step] = world.timer_s() - start

    def close(
        self,
        routed: Sequence[RouteReport],
        done: Done,
        query: QuerySpec,
        before: Manifest,
        after: Next,
    ) -> None:
        """Add up the reports of the tasks, and take over the facts of the next manifest.

        `before`: the manifest whose layouts have routed the batch.
        """
        self.input_rows = sum(task.source_rows for task in routed)
        for task in routed:
            self._add_work(task.seconds)
        for number, (entry, ours, state) in enumerate(
            zip(self.joins, done.reports, after.manifest.operators, strict=True)
        ):
            here = [report for report in done.arrived.inputs if report.operator == number]
            self._fill(entry, ours, state, here)
            entry.reason = _both(entry.reason, after.reasons[number])
            routing = before.operators[number].layouts.newest
            counted = bool(ours) and routing.choice.counts_keys
            entry.report_bytes_up = sum(one.count_bytes for one in ours) if counted else 0
            counted = counted and query.operators[number].admission(Side.LEFT).keying.is_plain
            history = state.layouts.history
            told = counted and history and history[-1].name in after.sealed
            interval = after.counts.get(history[-1].name) if told else None
            entry.heat = heat_of(ours, routing.layout, interval)
            for report in ours:
                self._add_work(report.seconds)
        last = done.reports[-1]
        self.output_rows = sum(report.result_rows for report in last)
        self.checksum = sum(report.result_checksum for report in last) % (1 << 64)
        self.left_at = [(at - self.started, rows) for report in last for at, rows in report.left_at]

    def latency_s(self, quantile: float) -> float | None:
        """Seconds from the start of the batch until `quantile` of its results left the tasks."""
        if not self.left_at:
            return None
        ordered = sorted(self.left_at)
        rows = np.cumsum([n for _, n in ordered])
        return ordered[int(np.searchsorted(rows, quantile * rows[-1]))][0]

    def _add_work(self, seconds: dict[str, float]) -> None:
        for part, spent in seconds.items():
            self.work_s[part] += spent

    def _fill(
        self,
        entry: OperatorRecord,
        reports: Sequence[OperatorReport],
        state: OperatorState,
        inputs: Sequence[InputReport],
    ) -> None:
        entry.received = [0] * entry.instances
        entry.stored = [0] * entry.instances
        entry.backed = [0] * entry.instances
        entry.held = [0] * entry.instances
        entry.busy_s = [0.0] * entry.instances
        entry.compared = [0] * entry.instances
        entry.made = [0] * entry.instances
        for report in reports:
            for instance, counts in report.instances.items():
                if instance >= entry.instances:  # after a shrink it only watches
                    continue
                entry.received[instance] = sum(counts.received)
                entry.stored[instance] = sum(counts.stored)
                entry.backed[instance] = sum(counts.backed)
                entry.busy_s[instance] = counts.busy_s
                entry.compared[instance] = counts.candidates
                entry.made[instance] = counts.results
                entry.probe_copies += counts.probe_copies
                entry.unbacked_keys += counts.unbacked
                entry.homed = [a + b for a, b in zip(entry.homed, counts.stored, strict=True)]
            changes = report.changes.get(STATE, Changes())
            entry.move_s = max(entry.move_s, report.seconds.get("move", 0.0))
            entry.moved_rows += changes.moved_rows
            entry.moved_bytes += changes.moved_bytes
            entry.recovered_rows += changes.recovered_rows
            entry.expired_rows += changes.expired_rows
            entry.output_rows += report.result_rows
            if report.reads is not None:
                entry.note_reads(report.reads)
        for run in state.shelves.state.values():
            live = run.live
            if run.instance < entry.instances:
                entry.held[run.instance] += live
            entry.side_rows[run.side] += live
            entry.side_bytes[run.side] += run.live_bytes
        left, right = state.clock.sides
        entry.newest = left.newest, right.newest
        entry.watermark = state.clock.watermark
        entry.state_rows = sum(entry.side_rows)
        entry.state_bytes = sum(entry.side_bytes)
        entry.pending_rows = state.shelves.live_rows(PENDING)
        entry.late_rows = sum(report.late_rows for report in inputs)
        entry.null_rows = sum(report.null_rows for report in inputs)
        entry.ahead_rows = sum(report.ahead_rows for report in inputs)


def _both(before: Reason | None, after: Reason | None) -> Reason | None:
    """Why a layout changes around a batch: a plan after it says too what was lost in it."""
    if after is None or before is None or not before.ways:
        return after or before
    return before if after.cause is Cause.LOADS else replace(after, ways=before.ways)


def skipped_files(routed: Sequence[RouteReport], told: set[Skipped]) -> list[Skipped]:
    """The files that route tasks have skipped, each once, but for those `told`; adds them there."""
    found = {one.file: one for task in routed for one in task.skipped if one not in told}
    told.update(found.values())
    return list(found.values())


def rates_seen(records: Sequence[BatchRecord]) -> dict[tuple[int, Side], Flow]:
    """(operator, side) -> how its tuples came so far; sides that are not known yet are left out.

    It is measured from a side's first batch to its last. The tuples of the first batch do not
    count: it is unknown over how much event time they were gathered.
    """
    seen = dict[tuple[int, Side], Flow]()
    for number in range(len(records[0].joins)) if records else ():
        for side in Side:
            flow = _flow([record.joins[number] for record in records], side)
            if flow is not None:
                seen[number, side] = flow
    return seen


def _flow(batches: Sequence[OperatorRecord], side: Side) -> Flow | None:
    brought = [b for b in batches if b.homed[side] and math.isfinite(b.newest[side])]
    if len(brought) < 2:
        return None
    span_us = brought[-1].newest[side] - brought[0].newest[side]
    if span_us <= 0:
        return None
    lags = [b.newest[side] - b.watermark for b in brought if math.isfinite(b.watermark)]
    held = next((b for b in reversed(brought) if b.side_rows[side]), None)
    return Flow(
        batch_rows=sum(b.homed[side] for b in brought[1:]) / (len(brought) - 1),
        batch_us=span_us / (len(brought) - 1),
        newest_us=brought[-1].newest[side],
        lag_us=median(lags) if lags else None,
        copy_bytes=held.side_bytes[side] / held.side_rows[side] if held else 0.0,
    )
