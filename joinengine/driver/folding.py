"""From the reports of a batch to the state after it. Pure: no Spark, no files.

Why: if a batch is tried again, the driver must come to the same state. The state is therefore a
function of the last manifest and of the reports of the task attempts that won.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from joinengine.balancing.statistics import Interval, KeyCounts, summarise
from joinengine.driver.losses import refilled
from joinengine.exchange.reports import OperatorReport
from joinengine.layouts.key_based import has_backups
from joinengine.state.operator_state import (
    STATE,
    OperatorState,
    Refill,
    Rehome,
    Runs,
    Shelves,
)
from joinengine.state.run import Run
from joinengine.state.upkeep import Changes


def fold(state: OperatorState, reports: Sequence[OperatorReport]) -> OperatorState:
    """The state after the reported changes; its pending moves, or its refill, are done.

    After a re-homing every run is new, or reported as unmoved. A layout version without runs dies.
    """
    layouts, before = state.layouts, state.shelves
    shelves = dict(before.runs)
    if isinstance(layouts.pending, Rehome):
        shelves[STATE] = {}
    changes = [(shelf, one) for report in reports for shelf, one in report.changes.items()]
    for shelf in dict.fromkeys(shelf for shelf, _ in changes):
        ours = (one for name, one in changes if name == shelf)
        shelves[shelf] = _changed(shelves.get(shelf, {}), ours)
    known = dict(before.files)
    known.update({stored.name: stored for _, change in changes for stored in change.files})
    named = {run.file for runs in shelves.values() for run in runs.values()}
    files = {name: stored for name, stored in known.items() if name in named}
    newest = layouts.newest
    if isinstance(layouts.pending, Refill) and has_backups(newest.layout):
        newest = replace(newest, layout=refilled(newest.layout, layouts.pending))
    live = {run.version for run in shelves.get(STATE, {}).values()}
    older = {version: one for version, one in layouts.older.items() if version in live}
    return replace(
        state,
        layouts=replace(layouts, newest=newest, older=older, pending=None, lost=()),
        shelves=Shelves({shelf: runs for shelf, runs in shelves.items() if runs}, files),
        fetched={},
    )


def _changed(runs: Runs, changes: Iterable[Changes]) -> dict[tuple[str, int], Run]:
    after = dict(runs)
    for change in changes:
        for ident in change.gone:
            after.pop(ident, None)
        after.update(change.runs)
    return after


def interval_of(
    reports: Sequence[OperatorReport], state: OperatorState, tasks: int, *, whole: bool = True
) -> Interval:
    """What an operator counted in this batch, for its planner; `state`: after the batch.

    `tasks`: how many tasks routed tuples to the operator. `whole`: the reports are. Runs of older
    layout versions are left out: no plan moves them.
    """
    layout = state.layouts.newest.layout
    stored, backed, held = np.zeros((3, 2, layout.instances), np.int64)
    for report in reports:
        for instance, counts in report.instances.items():
            if instance < layout.instances:
                stored[:, instance] = counts.stored
                backed[:, instance] = counts.backed
    for run in state.shelves.state.values():
        if run.version == state.layouts.version and run.instance < layout.instances:
            held[run.side, run.instance] += run.live
    keys = KeyCounts.concat([keys for report in reports for keys in report.keys])
    copies = (backed, layout.base) if has_backups(layout) else None
    return summarise(keys, stored, held, layout.table, tasks, copies)._replace(whole=whole)
