"""Writes the changes of a batch to the states of operators as plain values, and applies them.

Why: a batch changes few runs and few keys of the routing table. So a manifest that holds only the
changes is short, however large the state is. Runs and files that leave are given by their places in
the previous state, which the reader has in the same order.

Law: `changed(before, change(before, after))` equals `after`, and has its runs and files in the same
order.
Cost: one look at each run and file, and at each key of the routing table if the layout changes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from joinengine.layouts import Chosen
from joinengine.layouts.copies import Refill
from joinengine.routing import table as routing_table
from joinengine.routing.table import RoutingTable
from joinengine.state.operator_state import Layouts, OperatorState, Runs, Shelves
from joinengine.state.plain_states import (
    RUN_COLUMNS,
    Held,
    Names,
    clock_from_json,
    clock_to_json,
    costs_from_json,
    costs_to_json,
    files_from_json,
    files_to_json,
    held_from_json,
    held_to_json,
    layouts_from_json,
    layouts_to_json,
    runs_of,
)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def change(before: OperatorState, after: OperatorState) -> dict[str, Any]:
    """The changes from one state to the next, as plain values."""
    had, has = before.shelves, after.shelves
    files = _entries(had.files, has.files)
    names = Names(_known_names(had, files.new))
    shelves = dict[str, Any]()
    for shelf, runs in has.runs.items():
        entries = _entries(had.on(shelf), runs)
        shelves[shelf] = {"gone": entries.gone, "runs": names.rows(entries.new.values())}
    return {
        "layouts": layouts_to_json(
            after.layouts, partial(_chosen_change, _by_part(before.layouts))
        ),
        "clock": clock_to_json(after.clock),
        "run_columns": RUN_COLUMNS,
        "shelves": shelves,
        "files": {"gone": files.gone, "new": files_to_json(files.new.values())},
        "other_names": names.others,
        "watchers": after.watchers,
        "late_rows": after.late_rows,
        "costs": costs_to_json(after.costs),
    }


def changed(before: OperatorState, plain: Mapping[str, Any]) -> OperatorState:
    """The state after the changes: the inverse of `change`."""
    had, files = before.shelves, plain["files"]
    new = {stored.name: stored for stored in files_from_json(files["new"])}
    names = [*_known_names(had, new), *plain["other_names"]]

    def on(shelf: str, entries: Mapping[str, Any]) -> Runs:
        runs = runs_of(plain["run_columns"], entries["runs"], names)
        return _updated(had.on(shelf), entries["gone"], runs)

    runs = {shelf: on(shelf, entries) for shelf, entries in plain["shelves"].items()}
    return OperatorState(
        layouts=layouts_from_json(
            plain["layouts"], partial(_chosen_changed, _by_part(before.layouts))
        ),
        clock=clock_from_json(plain["clock"]),
        shelves=Shelves(runs, _updated(had.files, files["gone"], new)),
        watchers=plain["watchers"],
        late_rows=plain["late_rows"],
        costs=costs_from_json(plain),
    )


def held_change(before: Held | None, after: Held | None) -> Any:
    """The changes of the results that are held back: oldest ones leave, new ones come last."""
    if after is None:
        return None
    was = before or ()
    for stay in range(min(len(was), len(after)), -1, -1):
        if was[len(was) - stay :] == after[:stay]:
            return {"stay": stay, "new": held_to_json(after[stay:])}
    raise AssertionError("two empty tuples are equal")


def held_changed(before: Held | None, plain: Any) -> Held | None:
    """The inverse of `held_change`."""
    if plain is None:
        return None
    was, new = before or (), held_from_json(plain["new"])
    assert new is not None
    return (*was[len(was) - plain["stay"] :], *new)


# Mappings whose order counts


class _Entries(NamedTuple, Generic[K, V]):
    """The places, in the previous mapping, of entries that are gone; and the new entries."""

    gone: list[int]
    new: dict[K, V]


def _entries(before: Mapping[K, V], after: Mapping[K, V]) -> _Entries[K, V]:
    """The arguments of `_updated`; an entry with another value counts as new."""
    gone = [place for place, key in enumerate(before) if key not in after]
    new = _new(before, after)
    stay = [key for key in before if key in after] if gone else list(before)
    if [*stay, *(key for key in new if key not in before)] != list(after):  # replace all of them
        return _Entries(list(range(len(before))), dict(after))
    return _Entries(gone, new)


def _new(before: Mapping[K, V], after: Mapping[K, V]) -> dict[K, V]:
    """The entries of `after` whose values have changed; most values are the same objects."""
    get = before.get
    return {
        key: value
        for key, value in after.items()
        if (was := get(key)) is not value and was != value
    }


def _updated(before: Mapping[K, V], gone: Sequence[int], new: Mapping[K, V]) -> dict[K, V]:
    leaving = set(gone)
    after = {
        key: value for place, (key, value) in enumerate(before.items()) if place not in leaving
    }
    after.update(new)
    return after


def _known_names(before: Shelves, new: Iterable[str]) -> list[str]:
    """The file names to which runs refer by number, each once."""
    return list(dict.fromkeys([*before.files, *new]))


# Layouts: mostly a layout of the previous state, or one with another routing table


def _by_part(layouts: Layouts) -> dict[str, Chosen]:
    """The layouts of a state to which changes refer, by their roles in it."""
    pending = layouts.pending
    parts = {"newest": layouts.newest, "asked": layouts.asked}
    if pending is not None and not isinstance(pending, Refill):
        parts["before"] = pending.before
    return parts | {f"older {version}": chosen for version, chosen in layouts.older.items()}


def _chosen_change(parts: Mapping[str, Chosen], chosen: Chosen) -> dict[str, Any]:
    for part, other in parts.items():
        if _alike(chosen, other):
            return {"same": part}
    layout, before = chosen.layout, parts["newest"].layout
    if layout.base_function is None or before.base_function is None:
        return chosen.to_json()
    placed = layout.table.placements
    new = _new(before.table.placements, placed)
    return {
        **replace(chosen, layout=layout.listing(RoutingTable())).to_json(),
        "of": "newest",
        "gone": [hash_ for hash_ in before.table.placements if hash_ not in placed],
        "table": routing_table.to_columns(RoutingTable(new)),
    }


def _chosen_changed(parts: Mapping[str, Chosen], plain: Mapping[str, Any]) -> Chosen:
    if "same" in plain:
        return parts[plain["same"]]
    chosen = Chosen.from_json(plain)
    if "of" not in plain:
        return chosen
    layout, before = chosen.layout, parts[plain["of"]].layout
    placed = dict(before.table.placements)
    for hash_ in plain["gone"]:
        del placed[hash_]
    placed.update(routing_table.from_columns(plain["table"]).placements)
    return replace(chosen, layout=layout.listing(RoutingTable(placed)))


def _alike(chosen: Chosen, other: Chosen) -> bool:
    """Whether both layouts would be read back as equal."""
    if chosen is other:
        return True
    if (chosen.wanted, chosen.choice) != (other.wanted, other.choice):
        return False
    ours, theirs = chosen.layout, other.layout
    if ours is theirs:
        return True
    if ours.base_function is not None:
        return ours == theirs
    return ours.to_json() == theirs.to_json()
