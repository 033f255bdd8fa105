"""Replaces instances that have lost their state, under a layout that keeps copies of keys.

The layout says where their keys go on (`joinengine.layouts.copies`). This module changes the state
of the operator and its pending moves accordingly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from joinengine.layouts import Chosen
from joinengine.layouts.copies import Refill
from joinengine.model.errors import DamagedState
from joinengine.model.recovery import Recovery
from joinengine.state.operator_state import STATE, Layouts, OperatorState, Rehome
from joinengine.wire.reports import OperatorReport


def losses_in(reports: Iterable[OperatorReport]) -> dict[int, str]:
    """Instance whose state a task could not read -> the reason, in words."""
    return {instance: why for report in reports for instance, why in report.lost.items()}


def way_of(layouts: Layouts) -> Recovery:
    """Which copies the layouts keep: of keys (REPLICAS), or of whole instances (TASKB)."""
    copying = layouts.newest.choice.copying
    return Recovery.TASKB if copying is not None and copying.standby else Recovery.REPLICAS


def recovered(operator: int, state: OperatorState, lost: Mapping[int, str]) -> OperatorState:
    """The state without the instances `lost`, on which the tasks of a batch run again.

    Raises DamagedState, naming the operator, if some lost state has no copy.
    """
    runs = state.shelves.state
    gone = [run for run in runs.values() if run.instance in lost]
    kept = {ident: run for ident, run in runs.items() if run.instance not in lost}
    layouts, versions = state.layouts, {run.version for run in gone}
    shelves = replace(state.shelves, runs={**state.shelves.runs, STATE: kept})
    try:
        older = {
            version: _promoted(layout, lost) if version in versions else layout
            for version, layout in layouts.older.items()
        }
        layouts = replace(_without(layouts, lost), older=older)
    except DamagedState as error:
        raise DamagedState(f"join {operator}: {error}") from None
    return replace(state, layouts=layouts, shelves=shelves)


def _without(layouts: Layouts, lost: Mapping[int, str]) -> Layouts:
    """The layouts without the state of `lost`; pending moves become a re-homing."""
    newest, pending = layouts.newest, layouts.pending
    before = newest if pending is None or isinstance(pending, Refill) else pending.before
    after = _promoted(newest, lost)
    if before is newest:
        return replace(layouts, newest=after, pending=None)
    old = _promoted(before, lost)
    absent = set(old.absent)
    if isinstance(pending, Rehome):
        absent |= set(pending.absent)
    copied = after.layout.copied
    assert copied is not None
    whole = replace(after, layout=copied.whole())  # a re-homing fills every instance
    return replace(layouts, newest=whole, pending=Rehome(old, tuple(sorted(absent))))


def _promoted(chosen: Chosen, lost: Mapping[int, str]) -> Chosen:
    """A layout without the state of `lost`; raises DamagedState if it keeps no copies."""
    copied = chosen.layout.copied
    if copied is None:
        raise DamagedState(next(iter(lost.values())))
    return replace(chosen, layout=copied.without(lost))
