"""Computes the record of a batch, its figures, from the reports of its tasks.

Law: equal reports give equal records, whatever has run the tasks and however often.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from joinengine.balancing.reasons import Balance, Cause, Reason
from joinengine.driver.hot_keys import heat_of
from joinengine.driver.records import (
    BatchRecord,
    Lost,
    Moved,
    OperatorRecord,
    Refused,
    SideRecord,
    StateRecord,
    Worked,
)
from joinengine.driver.recovery.losses import way_of
from joinengine.driver.stages import Computed, Counts, Ran
from joinengine.model.keys import Side
from joinengine.model.recovery import Recovery
from joinengine.operators.base import Attempt, Operator, OperatorTask, QuerySpec
from joinengine.state.operator_state import PENDING, STATE, OperatorState
from joinengine.state.run import Reads
from joinengine.state.upkeep import Changes
from joinengine.wire.reports import InputReport, OperatorReport, work_of, worst_capped


def record_of(
    query: QuerySpec,
    computed: Computed,
    states: Sequence[OperatorState],
    reasons: Sequence[Reason | None],
    sealed: Mapping[str, bytes],
    counts: Counts,
) -> BatchRecord:
    """The record of a batch, still without the driver's times by step.

    `states`: those for the next batch. `reasons`: per operator, why its layout changes after this
    batch. `sealed`, `counts`: as in the batch's draft.
    """
    opened, routed = computed.opened, computed.routed
    record = BatchRecord(opened.number, opened.clock_s, skipped=list(routed.skipped))
    record.start, record.end = opened.start, opened.end
    if opened.handed != opened.last.handed:
        record.handed = opened.handed and opened.handed.batch
    record.input_rows = sum(task.source_rows for task in routed.reports)
    for task in routed.reports:
        _add(record, task.seconds)
    resumed = opened.resumed_for or [None] * len(query.operators)
    for number, (operator, ran, state) in enumerate(
        zip(query.operators, computed.operators, states, strict=True)
    ):
        arrived = [report for report in computed.arrived.inputs if report.operator == number]
        entry = _begun(ran, resumed[number])
        entry.sided, entry.timed = len(operator.inputs) > 1, operator.window is not None
        _note_asked(entry, ran.tasks)
        _fill(entry, ran.reports, state, arrived)
        entry.reason = _both(entry.reason, reasons[number])
        before = opened.last.operators[number]
        _note_counts(entry, operator, before, ran.reports, state, sealed, counts)
        for report in ran.reports:
            _add(record, report.seconds)
        record.joins.append(entry)
    last = computed.operators[-1].reports
    record.output_rows = sum(report.result_rows for report in last)
    record.checksum = sum(report.result_checksum for report in last) % (1 << 64)
    record.left_at = [(at - record.started, rows) for report in last for at, rows in report.left_at]
    return record


def _add(record: BatchRecord, seconds: Mapping[str, float]) -> None:
    for part, spent in seconds.items():
        record.work_s[part] += spent


def _begun(ran: Ran, reason: Reason | None) -> OperatorRecord:
    """The record of an operator at the start of a batch.

    `reason`: why its layout differs from that after the last batch; None: it does not.
    """
    attempt, state = ran.begun, ran.begun.state
    layouts = state.layouts
    table = layouts.newest.layout.table
    ways = _ways(attempt)
    if ways:
        held = Balance.of(np.array(state.held_under_any()))
        reason = Reason(Cause.LOSS, held, ways=ways)
    return OperatorRecord(
        instances=layouts.router.instances,
        layout=layouts.newest.choice.label,
        layout_versions=len(layouts.live_versions),
        routing_entries=len(table.placements),
        split_keys=table.split_keys,
        sides=[SideRecord() for _ in state.clock.sides],
        state=StateRecord(expired_rows=ran.expired_rows),
        moved=Moved(from_rows=0 if layouts.pending is None else state.shelves.rows),
        lost=Lost(sorted({*attempt.lost, *attempt.fetched}), sum(attempt.fetched.values())),
        reason=reason,
    )


def _ways(attempt: Attempt) -> tuple[tuple[Recovery, tuple[int, ...]], ...]:
    """How the instances that the batch found lost were recovered."""
    by_way = {
        way_of(attempt.state.layouts): attempt.lost,
        Recovery.STORE: tuple(attempt.fetched),
    }
    return tuple((way, instances) for way, instances in by_way.items() if instances)


def _note_asked(entry: OperatorRecord, tasks: Sequence[OperatorTask]) -> None:
    """Record how many bytes of asked keys tasks got, and whether they reported whole."""
    asked = [keys for task in tasks if (keys := task.header.counted) is not None]
    entry.told.down_bytes = sum(keys.nbytes for keys in asked)
    entry.told.whole = int(any(keys.whole for keys in asked))


def _note_counts(
    entry: OperatorRecord,
    operator: Operator,
    before: OperatorState,
    reports: Sequence[OperatorReport],
    after: OperatorState,
    sealed: Mapping[str, bytes],
    counts: Counts,
) -> None:
    """Record what tasks reported of keys; `before`: the state whose layout routed the batch."""
    routing = before.layouts.newest
    counted = bool(reports) and routing.choice.counts_keys
    entry.told.up_bytes = sum(report.count_bytes for report in reports) if counted else 0
    counted = counted and operator.admission(Side.LEFT).keying.is_plain
    history = after.layouts.history
    is_counted = counted and history and history[-1].name in sealed
    interval = counts.get(history[-1].name) if is_counted else None
    entry.heat = heat_of(reports, routing.layout, interval)


def _fill(
    entry: OperatorRecord,
    reports: Sequence[OperatorReport],
    state: OperatorState,
    inputs: Iterable[InputReport],
) -> None:
    _fill_instances(entry, reports)
    for report in reports:
        changes = report.changes.get(STATE, Changes())
        entry.moved.seconds = max(entry.moved.seconds, report.seconds.get("move", 0.0))
        entry.moved.rows += changes.moved_rows
        entry.moved.size_bytes += changes.moved_bytes
        entry.lost.recovered_rows += changes.recovered_rows
        entry.state.expired_rows += changes.expired_rows
        entry.output_rows += report.result_rows
        entry.capped_pairs += report.capped_pairs
    entry.capped = worst_capped(key for report in reports for key in report.capped)
    reads = [report.reads for report in reports if report.reads is not None]
    entry.reads = Reads(*(sum(figures) for figures in zip(*reads, strict=True)))
    entry.state.held = [0] * entry.instances
    for run in state.shelves.state.values():
        live = run.live
        if run.instance < entry.instances:
            entry.state.held[run.instance] += live
        entry.sides[run.side].held_rows += live
        entry.sides[run.side].held_bytes += run.live_bytes
    for side, clock in zip(entry.sides, state.clock.sides, strict=True):
        side.newest = clock.newest
    entry.watermark = state.clock.watermark
    entry.state.rows = sum(side.held_rows for side in entry.sides)
    entry.state.size_bytes = sum(side.held_bytes for side in entry.sides)
    entry.state.pending_rows = state.shelves.live_rows(PENDING)
    entry.state.pending_bytes = state.shelves.pending_bytes
    for arrived in inputs:
        entry.sides[arrived.side].refused += Refused(
            *(
                arrived.rows,
                arrived.late_rows,
                arrived.null_rows,
                arrived.ahead_rows,
                arrived.unknown_change_rows,
            )
        )


def _fill_instances(entry: OperatorRecord, reports: Sequence[OperatorReport]) -> None:
    work = work_of(reports, entry.instances)
    busy_s = [0.0] * entry.instances
    for report in reports:
        for instance, counts in report.instances.items():
            if instance < entry.instances:
                busy_s[instance] = counts.busy_s
    entry.work = Worked(
        received=work.received.sum(axis=0).tolist(),
        stored=work.stored.sum(axis=0).tolist(),
        backed=work.backed.sum(axis=0).tolist(),
        busy_s=busy_s,
        compared=work.candidates.tolist(),
        made=work.results.tolist(),
        probe_copies=int(work.probe_copies.sum()),
    )
    entry.lost.unbacked_keys = int(work.unbacked.sum())
    for side, homed in zip(entry.sides, work.stored.sum(axis=1).tolist(), strict=False):
        side.homed = homed


def _both(before: Reason | None, after: Reason | None) -> Reason | None:
    """One reason from those before and after a batch; a plan after it also says what was lost."""
    if after is None or before is None or not before.ways:
        return after or before
    return before if after.cause is Cause.LOADS else replace(after, ways=before.ways)
