"""Computes the state after a batch from its reports. Pure: no Spark, no files.

Why: if a batch is tried again, the driver must arrive at the same state. The state is therefore a
function of the last manifest and of the reports of the task attempts that won.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from joinengine.balancing.costs import Amounts, Costs
from joinengine.balancing.statistics import Interval, KeyCounts, Prices, summarise, weighed
from joinengine.layouts.copies import Refill
from joinengine.state.operator_state import (
    STATE,
    OperatorState,
    Rehome,
    Runs,
    Shelves,
)
from joinengine.state.run import Run
from joinengine.state.upkeep import Changes
from joinengine.wire.reports import OperatorReport, work_of


def fold(state: OperatorState, reports: Sequence[OperatorReport]) -> OperatorState:
    """The state after the reported changes, without the pending moves or refill: they are done.

    After a re-homing, every run is new or reported as unmoved. Layout versions without runs go.
    """
    layouts, before = state.layouts, state.shelves
    shelves = dict(before.runs)
    if isinstance(layouts.pending, Rehome):
        shelves[STATE] = {}
    changes = [(shelf, change) for report in reports for shelf, change in report.changes.items()]
    for shelf in dict.fromkeys(shelf for shelf, _ in changes):
        ours = (change for name, change in changes if name == shelf)
        shelves[shelf] = _changed(shelves.get(shelf, {}), ours)
    known = dict(before.files)
    known.update({stored.name: stored for _, change in changes for stored in change.files})
    named = {run.file for runs in shelves.values() for run in runs.values()}
    files = {name: stored for name, stored in known.items() if name in named}
    newest = layouts.newest
    copied = newest.layout.copied
    if isinstance(layouts.pending, Refill) and copied is not None:
        newest = replace(newest, layout=copied.refilled(layouts.pending))
    live = {run.version for run in shelves.get(STATE, {}).values()}
    older = {version: layout for version, layout in layouts.older.items() if version in live}
    return replace(
        state,
        layouts=replace(layouts, newest=newest, older=older, pending=None),
        shelves=Shelves({shelf: runs for shelf, runs in shelves.items() if runs}, files),
    )


def _changed(runs: Runs, changes: Iterable[Changes]) -> dict[tuple[str, int], Run]:
    after = dict(runs)
    for change in changes:
        for ident in change.gone:
            after.pop(ident, None)
        after.update(change.runs)
    return after


def costs_of(costs: Costs, reports: Sequence[OperatorReport]) -> Costs:
    """The fit of an operator's costs after a batch."""
    return costs.after([(report.seconds, _amounts(report)) for report in reports])


def _amounts(report: OperatorReport) -> Amounts:
    """What a task has done."""
    each = report.instances.values()
    return Amounts(
        turns=report.turns,
        routed=sum(sum(report.received) for report in each),
        stored=sum(sum(report.stored) for report in each),
        probed=sum(report.probed for report in each),
        candidates=sum(report.candidates for report in each),
        results=report.result_rows,
        size_bytes=report.result_bytes,
    )


def interval_of(
    reports: Sequence[OperatorReport],
    state: OperatorState,
    tasks: int,
    *,
    whole: bool = True,
    prices: Prices | None = None,
) -> Interval:
    """The counts of an operator in this batch, for its planner; `state`: after the batch.

    `tasks`: how many tasks routed tuples to the operator. `whole`: the reports are whole, not
    light. `prices`: the cost of work; None: planners balance tuples. Runs of older layout versions
    are left out: no plan moves them.
    """
    layout = state.layouts.newest.layout
    held = np.zeros((2, layout.instances), np.int64)
    work = work_of(reports, layout.instances)
    routed, kept = work.received.sum(axis=0), work.stored.sum(axis=0)
    done = np.array([routed, kept, work.probed, work.candidates, work.results], float)
    for run in state.shelves.state.values():
        if run.version == state.layouts.version and run.instance < layout.instances:
            held[run.side.routed, run.instance] += run.live
    keys = KeyCounts.concat([keys for report in reports for keys in report.keys])
    copied = layout.copied
    copies = None if copied is None else (work.backed, copied.base)
    interval = summarise(keys, work.stored, held, layout.table, tasks, copies)._replace(whole=whole)
    if prices is None:
        return interval
    return weighed(interval, keys, layout.table, layout.base_function, done, prices)
