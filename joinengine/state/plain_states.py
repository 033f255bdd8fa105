"""Converts states of operators to the plain values of a full manifest, and back.

Why: a manifest is JSON, so that people can read it and no file of a checkpoint names code. A run is
a row of a table, so that thousands of runs stay cheap. File names, which many runs share, are
written once, and a run has the number of its file's name.

Law: what is read equals what was written; runs and files come back in the same order.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from joinengine.balancing.costs import Costs
from joinengine.layouts import Chosen
from joinengine.layouts.copies import Refill
from joinengine.model.keys import Side
from joinengine.routing.moves import Drop, Moves, Pull
from joinengine.state.operator_state import (
    Clock,
    Layouts,
    Move,
    OperatorState,
    Rehome,
    Runs,
    Shelves,
    SideClock,
)
from joinengine.state.run import Run
from joinengine.world.storage import StoredFile

RUN_COLUMNS = (
    "file",
    "part",
    "side",
    "instance",
    "version",
    "rows",
    "size_bytes",
    "group",
    "into",
    "min_time",
    "max_time",
    "settled_time",
    "exclusions",
    "excluded",
)
_RUN_VALUES = attrgetter(*RUN_COLUMNS[1:])
_SIDES = tuple(Side)

#: Result files that are held back, per batch.
Held = tuple[tuple[int, tuple[StoredFile, ...]], ...]


class Names:
    """Numbers file names: first those of `known`, then others as runs use them."""

    def __init__(self, known: Iterable[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(known)}
        self._known = len(self._numbers)

    def rows(self, runs: Iterable[Run]) -> list[tuple[object, ...]]:
        """Runs as rows of a table with the columns `RUN_COLUMNS`."""
        numbers = self._numbers
        return [(numbers.setdefault(run.file, len(numbers)), *_RUN_VALUES(run)) for run in runs]

    @property
    def others(self) -> list[str]:
        """The names that were not in `known`."""
        return list(self._numbers)[self._known :]


def runs_of(columns: Sequence[str], rows: Iterable[list[Any]], names: Sequence[str]) -> Runs:
    """The inverse of `Names.rows`."""
    if tuple(columns) != RUN_COLUMNS:
        raise ValueError(f"runs have the columns {', '.join(columns)}")
    runs = dict[tuple[str, int], Run]()
    for row in rows:
        file, part, side, *facts, exclusions, excluded = row
        ranges = tuple(map(tuple, exclusions)) if exclusions else ()
        run = Run._make((names[file], part, _SIDES[side], *facts, ranges, excluded))
        runs[run.ident] = run
    return runs


def state_to_json(state: OperatorState) -> dict[str, Any]:
    """A whole state, as plain values."""
    names = Names(state.shelves.files)
    shelves = {shelf: names.rows(runs.values()) for shelf, runs in state.shelves.runs.items()}
    return {
        "layouts": layouts_to_json(state.layouts, Chosen.to_json),
        "clock": clock_to_json(state.clock),
        "run_columns": RUN_COLUMNS,
        "shelves": shelves,
        "files": files_to_json(state.shelves.files.values()),
        "other_names": names.others,
        "watchers": state.watchers,
        "late_rows": state.late_rows,
        "costs": costs_to_json(state.costs),
    }


def state_from_json(plain: dict[str, Any]) -> OperatorState:
    """The inverse of `state_to_json`."""
    files = {stored.name: stored for stored in files_from_json(plain["files"])}
    columns, names = plain["run_columns"], [*files, *plain.get("other_names", ())]
    runs = {shelf: runs_of(columns, rows, names) for shelf, rows in plain["shelves"].items()}
    return OperatorState(
        layouts=layouts_from_json(plain["layouts"], Chosen.from_json),
        clock=clock_from_json(plain["clock"]),
        shelves=Shelves(runs, files),
        watchers=plain["watchers"],
        late_rows=plain["late_rows"],
        costs=costs_from_json(plain),
    )


def costs_to_json(costs: Costs) -> list[Any]:
    """A fit of costs, as plain values."""
    return [costs.batches, costs.result_bytes, *costs.scales]


def costs_from_json(plain: Mapping[str, Any]) -> Costs:
    """The costs from the plain values of a state; earlier versions wrote none."""
    batches, result_bytes, *scales = plain.get("costs", [0, 0])
    return Costs(tuple(scales), batches, result_bytes)


def layouts_to_json(layouts: Layouts, write: Callable[[Chosen], Any]) -> dict[str, Any]:
    """The layouts of a state, as plain values; `write`: converts one layout."""
    pending, before = layouts.pending, None
    if pending is not None and not isinstance(pending, Refill):
        before = write(pending.before)
    return {
        "newest": write(layouts.newest),
        "asked": write(layouts.asked),
        "version": layouts.version,
        "older": [[version, write(chosen)] for version, chosen in sorted(layouts.older.items())],
        "sized_at": layouts.sized_at,
        "pending": _pending_to_json(pending, before),
        "history": files_to_json(layouts.history),
    }


def layouts_from_json(plain: Mapping[str, Any], read: Callable[[Any], Chosen]) -> Layouts:
    """The inverse of `layouts_to_json`; `read`: the inverse of `write`."""
    before = (plain["pending"] or {}).get("before")
    return Layouts(
        newest=read(plain["newest"]),
        asked=read(plain["asked"]),
        version=plain["version"],
        older={version: read(chosen) for version, chosen in plain["older"]},
        sized_at=plain["sized_at"],
        pending=_pending_from_json(plain["pending"], before and read(before)),
        history=files_from_json(plain["history"]),
    )


def _pending_to_json(
    pending: Move | Rehome | Refill | None, before: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """A pending change of homes, as plain values; `before`: the previous layout, likewise."""
    match pending:
        case None:
            return None
        case Refill(instance, lower, upper):
            return {"kind": "refill", "instance": instance, "words": [lower, upper]}
        case Rehome():
            absent = {"absent": list(pending.absent)} if pending.absent else {}
            return {"kind": "rehome", "before": before, **absent}
        case Move():
            moves = pending.moves
            return {
                "kind": "move",
                "before": before,
                "pulls": [[p.side, p.source, p.target, p.lower, p.upper] for p in moves.pulls],
                "drops": [[d.side, d.instance, d.lower, d.upper] for d in moves.drops],
            }


def _pending_from_json(
    plain: dict[str, Any] | None, before: Chosen | None
) -> Move | Rehome | Refill | None:
    """The inverse of `_pending_to_json`; `before`: the previous layout, if there is one."""
    if plain is None:
        return None
    if plain["kind"] == "refill":
        return Refill(plain["instance"], *plain["words"])
    assert before is not None
    if plain["kind"] == "rehome":
        return Rehome(before, tuple(plain.get("absent", ())))
    pulls = tuple(Pull(Side(side), *rest) for side, *rest in plain["pulls"])
    drops = tuple(Drop(Side(side), *rest) for side, *rest in plain["drops"])
    return Move(before, Moves(pulls, drops))


def clock_to_json(clock: Clock) -> dict[str, Any]:
    """A clock, as plain values; infinite times are text."""
    return {
        "sides": [
            [_time_to_json(time) for time in (side.newest, side.idle_since, *side.ahead)]
            for side in clock.sides
        ],
        "watermark": _time_to_json(clock.watermark),
        "closed": _time_to_json(clock.closed),
        "held_back": clock.held_back,
    }


def clock_from_json(plain: dict[str, Any]) -> Clock:
    """The inverse of `clock_to_json`."""
    return Clock(
        sides=tuple(_side_from_json(*map(_time_from_json, times)) for times in plain["sides"]),
        watermark=_time_from_json(plain["watermark"]),
        closed=_time_from_json(plain["closed"]),
        held_back=plain["held_back"],
    )


def _side_from_json(newest: float, idle_since: float, *ahead: float) -> SideClock:
    return SideClock(newest, idle_since, ahead)


def files_to_json(files: Iterable[StoredFile]) -> list[list[object]]:
    """Stored files as rows: name, bytes, CRC; of an inlined one also the content, in base 64."""
    return [_file_to_json(stored) for stored in files]


def _file_to_json(stored: StoredFile) -> list[object]:
    fields: list[object] = [stored.name, stored.size_bytes, stored.crc32]
    if stored.content is not None:
        fields.append(base64.b64encode(stored.content).decode())
    return fields


def files_from_json(rows: Iterable[list[Any]]) -> tuple[StoredFile, ...]:
    """The inverse of `files_to_json`."""
    return tuple(StoredFile(*row[:3], *map(base64.b64decode, row[3:])) for row in rows)


def held_to_json(held: Held | None) -> list[list[object]] | None:
    """Results that are held back, as plain values; None: results are not held back."""
    return None if held is None else [[batch, files_to_json(files)] for batch, files in held]


def held_from_json(plain: Any) -> Held | None:
    """The inverse of `held_to_json`."""
    return None if plain is None else tuple((n, files_from_json(files)) for n, files in plain)


def _time_to_json(time: float) -> float | str:
    return str(time) if math.isinf(time) else time


def _time_from_json(time: float | str) -> float:
    return float(time) if isinstance(time, str) else time
