"""Instances that have lost their state, under a layout that keeps copies of keys.

The layout says where their keys go on (joinengine.layouts.copies); here is what becomes of the
state of an operator, and of moves that were pending.
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
    """The instances whose state tasks could not read, and why."""
    return {instance: why for report in reports for instance, why in report.lost.items()}


def way_of(layouts: Layouts) -> Recovery:
    """How instances go on whose keys have copies: by copies of keys, or of instances."""
    copying = layouts.newest.choice.copying
    return Recovery.TASKB if copying is not None and copying.standby else Recovery.REPLICAS


def recovered(operator: int, state: OperatorState, lost: Mapping[int, str]) -> OperatorState:
    """The state with which a batch is run again whose tasks could not read that of `lost`.

    Raises DamagedState, naming the operator, if some of it has no copy.
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
    """The layouts once `lost` have no state; moves that are pending become a re-homing."""
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
    """The same once `lost` have no state; raises DamagedState if the layout keeps no copies."""
    copied = chosen.layout.copied
    if copied is None:
        raise DamagedState(next(iter(lost.values())))
    return replace(chosen, layout=copied.without(lost))
