"""Manifests: all that one batch leaves behind, and all that the next one starts from.

Why: state lies in many files that many tasks write. A batch is done when its manifest exists: one
file, created whole and exclusively. It names the runs that exist, the exclusions from them, the
results that count, and the watermark, layout and moves of the next batch. If the driver is killed
before the manifest is created, only garbage is left; if after, the batch is done.

Law: the newest manifest is the truth. If it is damaged, the checkpoint is refused; an older
manifest is never taken instead. A manifest of an unknown format is refused, never guessed at. A
manifest is committed if it was created while its batch was above the boundary
(joinengine.state.fence).

Totals came to format 6 later, and the number stayed: a manifest without them is read as one whose
totals are zeros, and a version that does not know them passes them over.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from joinengine.layouts import Chosen
from joinengine.model.errors import CheckpointMismatch, DamagedState, TakenOver
from joinengine.model.keys import Side
from joinengine.routing.moves import Drop, Moves, Pull
from joinengine.state import fence
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.operator_state import (
    Clock,
    Layouts,
    Move,
    OperatorState,
    Refill,
    Rehome,
    Runs,
    Shelves,
    SideClock,
)
from joinengine.state.run import Run
from joinengine.state.totals import Totals
from joinengine.world.storage import Storage, StoredFile

FORMAT = 6
_HEADER = re.compile(rb"joinengine manifest (\d+) crc32=([0-9a-f]{8}) bytes=(\d+)\n")
_NAME = re.compile(r"(\d{8,})\.json")
#: How many manifests stay. Only the newest is needed; one more serves a driver that has listed the
#: folder before. Before a manifest is removed, its batch is closed.
KEPT = 2


@dataclass(frozen=True)
class Manifest:
    """What is true after batch `batch`.

    `results` are the staged result files of the batch, `refused` the staged files of refused
    tuples, if the user keeps them. `held`: the result files of earlier batches that are held back
    to become visible together with these; None: the results become visible with their batch.
    `generation`: of the driver that committed it. `nonce`: tells its attempt from any other.
    `parent`: nonce and CRC of the manifest that it follows. `totals`: of all batches up to this
    one. `crc32`: its own CRC, known once it is on disk.
    """

    query: str
    batch: int
    operators: tuple[OperatorState, ...]
    results: tuple[StoredFile, ...] = ()
    refused: tuple[StoredFile, ...] = ()
    held: tuple[tuple[int, tuple[StoredFile, ...]], ...] | None = None
    generation: int = 0
    nonce: str = ""
    parent: tuple[str, int] = ("", 0)
    totals: Totals = field(default_factory=Totals)
    crc32: int = 0

    @property
    def link(self) -> tuple[str, int]:
        """The `parent` of the next manifest."""
        return self.nonce, self.crc32

    def named_files(self) -> set[str]:
        """The files in the folder of runs that the manifest names."""
        names = set[str]()
        for one in self.operators:
            names |= one.shelves.files.keys()
            names |= {stored.name for stored in one.layouts.history}
        return names


def commit(checkpoint: Checkpoint, manifest: Manifest) -> Manifest:
    """Commit `manifest`; returns the manifest of the batch that counts.

    That is another one if an older driver was faster. Raises TakenOver if a newer driver was
    faster, or has taken the checkpoint over. Until this returns, nothing may be delivered or
    removed.
    """
    body = json.dumps(_to_json(manifest), separators=(",", ":")).encode()
    crc = zlib.crc32(body)
    header = f"joinengine manifest {FORMAT} crc32={crc:08x} bytes={len(body)}\n"
    manifests, name = checkpoint.manifests, name_of(manifest.batch)
    try:
        created = manifests.create(name, header.encode() + body)
    except OSError:
        if not manifests.exists(name):
            raise
        created = False  # the file may be this driver's own all the same: its nonce tells
    found = replace(manifest, crc32=crc) if created else _found(manifests, manifest.batch)
    # After the create: if another driver had removed this name, its boundary or generation is seen.
    fence.check_boundary(checkpoint, manifest.batch)
    fence.check_generation(checkpoint.generations, manifest.generation)
    if found is None or found.generation > manifest.generation:
        raise TakenOver(
            f"another driver has committed batch {manifest.batch} of checkpoint "
            f"{checkpoint.location}; nothing is lost, leave this one stopped"
        )
    if found.parent != manifest.parent:
        raise CheckpointMismatch(
            f"manifest {manifests.folder}/{name} follows another batch {manifest.batch - 1} than "
            f"the one that this driver knows: files of two checkpoints are mixed; restore it from "
            f"a copy"
        )
    return found


def retire(checkpoint: Checkpoint, batch: int) -> None:
    """Remove the manifests that are needed no more once `batch` is committed.

    Their batches are closed before: a name that is gone cannot stop an older driver.
    """
    last = batch - KEPT
    if last < 0:
        return
    fence.raise_boundary(checkpoint, last)
    for old in _batches(checkpoint.manifests):
        if old <= last:
            checkpoint.manifests.delete(name_of(old))


def name_of(batch: int) -> str:
    """The name of the manifest of a batch."""
    return f"{batch:08d}.json"


def newest(manifests: Storage) -> Manifest | None:
    """The newest manifest; None in a fresh checkpoint.

    Raises DamagedState if it is not what was written, CheckpointMismatch if it has another format.
    """
    while batches := _batches(manifests):
        found = _found(manifests, max(batches))
        if found is not None:  # else a running driver has removed it since the listing
            return found
    return None


def _found(manifests: Storage, batch: int) -> Manifest | None:
    try:
        return read(manifests, batch)
    except FileNotFoundError:
        return None


def read(manifests: Storage, batch: int) -> Manifest:
    """Read one manifest, and check it; raises as `newest`."""
    content = manifests.get(name_of(batch))
    path = f"{manifests.folder}/{name_of(batch)}"
    match = _HEADER.match(content)
    if not match:
        raise DamagedState(f"manifest {path} has no readable header; restore it from a copy")
    body = content[match.end() :]
    if int(match[1]) != FORMAT:
        raise CheckpointMismatch(
            f"manifest {path} has format {int(match[1])}, this version reads format {FORMAT}: "
            f"use the version that wrote it, or start with a new checkpoint"
        )
    if len(body) != int(match[3]) or zlib.crc32(body) != int(match[2], 16):
        raise DamagedState(
            f"manifest {path} does not match its header: it is truncated or was altered; "
            f"restore it from a copy"
        )
    return replace(_from_json(json.loads(body)), crc32=zlib.crc32(body))


def _batches(manifests: Storage) -> list[int]:
    names = (_NAME.fullmatch(name) for name in manifests.names())
    return [int(match[1]) for match in names if match]


# Plain values, and back. A run is a row of a table, so that thousands of them stay cheap.

_RUN_COLUMNS = (
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


def _to_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "query": manifest.query,
        "batch": manifest.batch,
        "operators": [_state_to_json(state) for state in manifest.operators],
        "generation": manifest.generation,
        "nonce": manifest.nonce,
        "parent": manifest.parent,
        "totals": manifest.totals.to_json(),
        "results": _files_to_json(manifest.results),
        "refused": _files_to_json(manifest.refused),
        "held": _held_to_json(manifest.held),
    }


def _from_json(plain: dict[str, Any]) -> Manifest:
    return Manifest(
        query=plain["query"],
        batch=plain["batch"],
        operators=tuple(_state_from_json(state) for state in plain["operators"]),
        results=_files_from_json(plain["results"]),
        refused=_files_from_json(plain["refused"]),
        held=_held_from_json(plain["held"]),
        generation=plain["generation"],
        nonce=plain["nonce"],
        parent=(plain["parent"][0], plain["parent"][1]),
        totals=Totals.from_json(plain.get("totals", {})),
    )


def _state_to_json(state: OperatorState) -> dict[str, Any]:
    return {
        "layouts": _layouts_to_json(state.layouts),
        "clock": _clock_to_json(state.clock),
        "run_columns": _RUN_COLUMNS,
        "shelves": {name: _runs_to_json(runs) for name, runs in state.shelves.runs.items()},
        "files": _files_to_json(state.shelves.files.values()),
        "watchers": state.watchers,
        "late_rows": state.late_rows,
    }


def _state_from_json(plain: dict[str, Any]) -> OperatorState:
    names = plain["run_columns"]
    runs = {shelf: _runs_from_json(names, rows) for shelf, rows in plain["shelves"].items()}
    files = {stored.name: stored for stored in _files_from_json(plain["files"])}
    return OperatorState(
        layouts=_layouts_from_json(plain["layouts"]),
        clock=_clock_from_json(plain["clock"]),
        shelves=Shelves(runs, files),
        watchers=plain["watchers"],
        late_rows=plain["late_rows"],
    )


def _layouts_to_json(layouts: Layouts) -> dict[str, Any]:
    return {
        "newest": layouts.newest.to_json(),
        "asked": layouts.asked.to_json(),
        "version": layouts.version,
        "older": [[version, one.to_json()] for version, one in sorted(layouts.older.items())],
        "sized_at": layouts.sized_at,
        "pending": _pending_to_json(layouts.pending),
        "history": _files_to_json(layouts.history),
    }


def _layouts_from_json(plain: dict[str, Any]) -> Layouts:
    return Layouts(
        newest=Chosen.from_json(plain["newest"]),
        asked=Chosen.from_json(plain["asked"]),
        version=plain["version"],
        older={version: Chosen.from_json(one) for version, one in plain["older"]},
        sized_at=plain["sized_at"],
        pending=_pending_from_json(plain["pending"]),
        history=_files_from_json(plain["history"]),
    )


def _pending_to_json(pending: Move | Rehome | Refill | None) -> dict[str, Any] | None:
    match pending:
        case None:
            return None
        case Refill(instance, lower, upper):
            return {"kind": "refill", "instance": instance, "words": [lower, upper]}
        case Rehome():
            absent = {"absent": list(pending.absent)} if pending.absent else {}
            return {"kind": "rehome", "before": pending.before.to_json(), **absent}
        case Move():
            moves = pending.moves
            return {
                "kind": "move",
                "before": pending.before.to_json(),
                "pulls": [[p.side, p.source, p.target, p.lower, p.upper] for p in moves.pulls],
                "drops": [[d.side, d.instance, d.lower, d.upper] for d in moves.drops],
            }


def _pending_from_json(plain: dict[str, Any] | None) -> Move | Rehome | Refill | None:
    if plain is None:
        return None
    if plain["kind"] == "refill":
        return Refill(plain["instance"], *plain["words"])
    before = Chosen.from_json(plain["before"])
    if plain["kind"] == "rehome":
        return Rehome(before, tuple(plain.get("absent", ())))
    pulls = tuple(Pull(Side(side), *rest) for side, *rest in plain["pulls"])
    drops = tuple(Drop(Side(side), *rest) for side, *rest in plain["drops"])
    return Move(before, Moves(pulls, drops))


def _clock_to_json(clock: Clock) -> dict[str, Any]:
    return {
        "sides": [
            [_time_to_json(time) for time in (side.newest, side.idle_since, side.ahead)]
            for side in clock.sides
        ],
        "watermark": _time_to_json(clock.watermark),
        "closed": _time_to_json(clock.closed),
        "held_back": clock.held_back,
    }


def _clock_from_json(plain: dict[str, Any]) -> Clock:
    left, right = (SideClock(*map(_time_from_json, times)) for times in plain["sides"])
    return Clock(
        sides=(left, right),
        watermark=_time_from_json(plain["watermark"]),
        closed=_time_from_json(plain["closed"]),
        held_back=plain["held_back"],
    )


def _runs_to_json(runs: Runs) -> list[list[Any]]:
    return [[getattr(run, name) for name in _RUN_COLUMNS] for run in runs.values()]


def _runs_from_json(names: list[str], rows: list[list[Any]]) -> Runs:
    runs = [_run_from_json(dict(zip(names, row, strict=True))) for row in rows]
    return {run.ident: run for run in runs}


def _run_from_json(row: dict[str, Any]) -> Run:
    exclusions = tuple((lower, upper) for lower, upper in row.pop("exclusions"))
    return Run(**row | {"side": Side(row["side"]), "exclusions": exclusions})


def _files_to_json(files: Iterable[StoredFile]) -> list[list[object]]:
    return [[stored.name, stored.size_bytes, stored.crc32] for stored in files]


def _files_from_json(rows: Iterable[list[Any]]) -> tuple[StoredFile, ...]:
    return tuple(StoredFile(*row) for row in rows)


def _held_to_json(held: tuple[tuple[int, tuple[StoredFile, ...]], ...] | None) -> Any:
    return None if held is None else [[batch, _files_to_json(files)] for batch, files in held]


def _held_from_json(plain: Any) -> tuple[tuple[int, tuple[StoredFile, ...]], ...] | None:
    return None if plain is None else tuple((n, _files_from_json(files)) for n, files in plain)


def _time_to_json(time: float) -> float | str:
    return str(time) if math.isinf(time) else time


def _time_from_json(time: float | str) -> float:
    return float(time) if isinstance(time, str) else time
