"""Instances that have lost their state, under a layout that keeps copies of keys.

A lost instance stays: the first complete backup of each key that had its home there becomes the
home, and the instance a backup, which is then refilled word by word. Until it has a copy again it
is *incomplete*, and no copy there becomes a home. Once it is whole again, so are its roles: it is
the home of its hashed keys.

Law: a home is never at an instance that has lost the key's tuples.
Source: Fang et al., World Wide Web 2019, section 3.2, step 1. Ours: the lost instance goes on, as a
backup; hashed keys change their roles by their base home, all at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from joinengine.exchange.reports import OperatorReport
from joinengine.layouts import Chosen
from joinengine.layouts.key_based import KeyBased, has_backups
from joinengine.layouts.replicas import Ftlb
from joinengine.model.errors import DamagedState
from joinengine.model.keys import ALL_WORDS, HASH_BITS, U_BITS, Placement
from joinengine.model.recovery import Recovery
from joinengine.routing.base import Backed
from joinengine.routing.table import RoutingTable
from joinengine.state.operator_state import STATE, Layouts, OperatorState, Refill, Rehome

#: Keys that a refusal tells one by one.
_MOST_KEYS = 8


def losses_in(reports: Iterable[OperatorReport]) -> dict[int, str]:
    """The instances whose state tasks could not read, and why."""
    return {instance: why for report in reports for instance, why in report.lost.items()}


def way_of(layouts: Layouts) -> Recovery:
    """How instances go on whose keys have copies: by copies of keys, or of instances."""
    choice = layouts.newest.choice
    return Recovery.TASKB if isinstance(choice, Ftlb) and choice.standby else Recovery.REPLICAS


def recovered(operator: int, state: OperatorState, lost: Mapping[int, str]) -> OperatorState:
    """The state with which a batch is run again whose tasks could not read that of `lost`.

    Raises DamagedState, naming the operator, if some of it has no copy.
    """
    runs = state.shelves.state
    gone = [run for run in runs.values() if run.instance in lost]
    kept = {ident: run for ident, run in runs.items() if run.instance not in lost}
    layouts, versions = state.layouts, {run.version for run in gone}
    known = tuple(sorted({*layouts.lost, *lost}))
    shelves = replace(state.shelves, runs={**state.shelves.runs, STATE: kept})
    try:
        older = {
            version: _promoted(one, lost) if version in versions else one
            for version, one in layouts.older.items()
        }
        layouts = replace(_without(layouts, lost), older=older, lost=known)
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
    assert isinstance(after.layout, KeyBased)
    # A re-homing fills every instance.
    whole = replace(after, layout=replace(after.layout, incomplete=()))
    return replace(layouts, newest=whole, pending=Rehome(old, tuple(sorted(absent))))


def _promoted(chosen: Chosen, lost: Mapping[int, str]) -> Chosen:
    """The same with `promoted`; raises DamagedState if the layout keeps no copies."""
    if not has_backups(chosen.layout):
        raise DamagedState(next(iter(lost.values())))
    return replace(chosen, layout=promoted(chosen.layout, lost))


def promoted(layout: KeyBased, lost: Collection[int]) -> KeyBased:
    """The layout once the instances `lost` have no state: their backups are homes.

    Raises DamagedState, which counts and names the keys, if some have no complete backup.
    """
    assert isinstance(layout.base, Backed)
    lost = {one for one in lost if one < layout.instances}
    missing = dict(layout.incomplete) | dict.fromkeys(lost, 0)
    roles = layout.base.roles.copy()
    orphans = list[int]()
    for row in np.flatnonzero(np.isin(roles[:, 0], list(lost))).tolist():
        home, *backups = roles[row].tolist()
        heirs = [backup for backup in backups if backup not in missing]
        if heirs:
            roles[row] = [heirs[0], *(one for one in backups if one != heirs[0]), home]
        else:
            orphans.append(row)
    table, gone = dict(layout.table.placements), list[int]()
    for hash_, placement in layout.table.placements.items():
        (home,) = placement.homes
        if home not in lost:
            continue
        word = hash_ << U_BITS
        heirs = [one for one in placement.backups if word < missing.get(one, ALL_WORDS)]
        if heirs:
            others = tuple(one for one in placement.backups if one != heirs[0])
            table[hash_] = Placement.whole(heirs[0], (*others, home))
        else:
            gone.append(hash_)
    if orphans or gone:
        raise DamagedState(_no_copy(lost, orphans, gone))
    base = replace(layout.base, roles=roles)
    return KeyBased(base, RoutingTable(table), tuple(sorted(missing.items())))


def refilled(layout: KeyBased, refill: Refill) -> KeyBased:
    """The layout once a refill is done."""
    missing = dict(layout.incomplete) | {refill.instance: refill.upper}
    left = tuple((one, word) for one, word in sorted(missing.items()) if word < ALL_WORDS)
    return replace(layout, incomplete=left)


def returned(layout: KeyBased) -> KeyBased:
    """The layout whose instances, none of them incomplete, are the homes of their base homes."""
    assert isinstance(layout.base, Backed)
    roles = layout.base.roles.copy()
    for row in np.flatnonzero(roles[:, 0] != np.arange(len(roles))).tolist():
        roles[row] = [row, *(one for one in roles[row].tolist() if one != row)]
    return replace(layout, base=replace(layout.base, roles=roles))


def next_refill(layout: KeyBased, held: int, most: int) -> Refill | None:
    """What the next batch makes anew: some `most` of the `held` tuples that an instance has.

    Keys come whole, since one number says which are complete.
    """
    if not layout.incomplete:
        return None
    instance, lower = layout.incomplete[0]
    hashes = max(1, (1 << HASH_BITS) * most // max(held, 1))
    return Refill(instance, lower, min(ALL_WORDS, lower + (hashes << U_BITS)))


def _no_copy(lost: Iterable[int], homes: list[int], keys: list[int]) -> str:
    named = ", ".join(str(one) for one in sorted(lost))
    told = list[str]()
    if homes:
        told.append(f"all keys of base {_many('home', homes)}")
    if keys:
        shown = ", ".join(f"#{hash_:0{HASH_BITS // 4}x}" for hash_ in keys[:_MOST_KEYS])
        more = f" and {len(keys) - _MOST_KEYS:,} more" if len(keys) > _MOST_KEYS else ""
        told.append(f"{len(keys):,} keys of the routing table ({shown}{more})")
    return (
        f"the state of instances {named} is lost, and of {' and '.join(told)} there is no copy; "
        f"restore checkpoint and output from a copy"
    )


def _many(noun: str, numbers: list[int]) -> str:
    listed = ", ".join(map(str, numbers))
    return f"{noun} {listed}" if len(numbers) == 1 else f"{noun}s {listed}"
