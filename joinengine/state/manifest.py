"""Manifests: all that one batch leaves behind, and all that the next one starts from.

Why: state lives in many files that many tasks write. A batch is done when one file says so: created
whole and exclusively, it names the runs that exist, what is gone from them, the results that count,
and the watermark, layout and moves of the next batch. A kill before it leaves garbage, a kill after
it leaves a batch that is done.

Law: the newest manifest is the truth. If it is damaged the checkpoint is refused, never the next
older one taken. Its format is a number; an unknown one is refused, never guessed. A manifest is
committed if it was created while its batch was above the boundary (joinengine.state.fence).
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joinengine.model.errors import CheckpointMismatch, DamagedState, TakenOver
from joinengine.model.keys import Side
from joinengine.routing.moves import Drop, Moves, Pull
from joinengine.state import fence
from joinengine.state.run import Run
from joinengine.state.storage import Checkpoint, StoredFile, create, delete, names_in

FORMAT = 5
_HEADER = re.compile(rb"joinengine manifest (\d+) crc32=([0-9a-f]{8}) bytes=(\d+)\n")
_NAME = re.compile(r"(\d{8,})\.json")
#: How many manifests stay; only the newest is ever needed, one more helps whoever looks. The batch
#: of each that goes is closed first.
KEPT = 2


Runs = Mapping[tuple[str, int], Run]


@dataclass(frozen=True)
class Watched:
    """What the watchers of a join hold between two batches (outer, semi and anti joins).

    `pending`: tuples whose fate is open, per watcher; `unread`: marks (this tuple has matched) that
    the last batch made; `seen`: marks that the watchers have read
    (joinengine.operators.join.watching).
    """

    pending: Runs = field(default_factory=dict)
    unread: Runs = field(default_factory=dict)
    seen: Runs = field(default_factory=dict)

    @property
    def runs(self) -> list[Run]:
        """All of them."""
        return [*self.pending.values(), *self.unread.values(), *self.seen.values()]


@dataclass(frozen=True)
class JoinState:
    """One join between two batches.

    `layout` is the account of the layout of the next batch (`joinengine.layouts.Chosen`), and
    `version` its number; `older` are the layouts of earlier versions that have runs; since
    version `sized_at` there have been as many instances as now. `before` is
    the account of the layout that the runs of `version` are stored under where that is another: the
    next batch carries out `moves`, or looks at every tuple where there are none. `requested` is the
    layout and the number of instances that the user has last started the query with. `watchers` is
    how many watch, 0 where no side is watched; it never changes. `newest` is
    the greatest event time seen per side (-inf: none yet, inf: the side has ended); `idle_since`
    when a side last brought a tuple, in seconds since the epoch; `watermark` that of the next
    batch. `ahead` is per side what its watermark would be if no result of an earlier join came a
    batch after its cause; `held_back`, whether that is more than `watermark` knows. `closed` is the
    end of the last windows that an aggregation may have closed.
    """

    layout: Mapping[str, Any]
    version: int = 0
    older: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    sized_at: int = 0
    runs: Runs = field(default_factory=dict)
    watched: Watched = field(default_factory=Watched)
    watchers: int = 0
    files: Mapping[str, StoredFile] = field(default_factory=dict)
    moves: Moves = field(default_factory=Moves)
    before: Mapping[str, Any] | None = None
    requested: Mapping[str, Any] | None = None
    newest: tuple[float, float] = (-math.inf, -math.inf)
    idle_since: tuple[float, float] = (math.inf, math.inf)
    watermark: float = -math.inf
    ahead: tuple[float, float] = (-math.inf, -math.inf)
    held_back: bool = False
    closed: float = -math.inf
    history: tuple[StoredFile, ...] = ()
    late_rows: int = 0

    @property
    def rehomes(self) -> bool:
        """Whether the next batch looks at every tuple."""
        return self.before is not None and not self.moves

    @property
    def live_versions(self) -> tuple[int, ...]:
        """The versions by whose rules the next batch is routed, newest first."""
        if self.rehomes:
            return (self.version,)
        return (self.version, *sorted(self.older, reverse=True))

    def held_per_instance(self, instances: int) -> list[int]:
        """(N,) copies held by each instance that were stored since there are so many."""
        held = [0] * instances
        for run in self.runs.values():
            if run.version >= self.sized_at:
                held[run.instance] += run.live
        return held

    @property
    def state_rows(self) -> int:
        """Copies held."""
        return sum(run.live for run in self.runs.values())

    @property
    def state_bytes(self) -> int:
        """Bytes of the copies held."""
        return sum(run.live_bytes for run in self.runs.values())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not (self.runs or self.watched.runs)


@dataclass(frozen=True)
class Manifest:
    """What is true after batch `batch`.

    `results` are the staged result files of that batch, `refused` those of tuples that joins
    refused, where somebody wants them. `generation` is the driver's that committed it, `nonce` what
    tells its attempt from any other, `parent` nonce and CRC of the manifest that it follows.
    `crc32` is its own, known once it is on disk.
    """

    query: str
    batch: int
    joins: tuple[JoinState, ...]
    results: tuple[StoredFile, ...] = ()
    refused: tuple[StoredFile, ...] = ()
    generation: int = 0
    nonce: str = ""
    parent: tuple[str, int] = ("", 0)
    crc32: int = 0

    @property
    def link(self) -> tuple[str, int]:
        """What the next manifest calls its parent."""
        return self.nonce, self.crc32

    def named_files(self) -> set[str]:
        """The files of the runs folder that exist."""
        names = set[str]()
        for join in self.joins:
            names |= join.files.keys()
            names |= {stored.name for stored in join.history}
        return names


def commit(checkpoint: Checkpoint, manifest: Manifest, *, fsync: bool = False) -> Manifest:
    """Make `manifest` true; what is true now, which an older driver may have been faster with.

    Raises TakenOver where a newer driver was faster, or goes on without this one. Until this
    returns nothing may be delivered or removed.
    """
    body = json.dumps(_to_json(manifest), separators=(",", ":")).encode()
    crc = zlib.crc32(body)
    header = f"joinengine manifest {FORMAT} crc32={crc:08x} bytes={len(body)}\n"
    path = checkpoint.manifests / f"{manifest.batch:08d}.json"
    try:
        created = create(path, header.encode() + body, fsync=fsync)
    except OSError:
        if not path.exists():
            raise
        created = False  # it may be ours none the less
    found = replace(manifest, crc32=crc) if created else _found(path)
    # After the create, so that whoever has removed this name before is seen.
    fence.check_boundary(checkpoint, manifest.batch)
    fence.check_generation(checkpoint.generations, manifest.generation)
    if found is None or found.generation > manifest.generation:
        raise TakenOver(
            f"another driver has committed batch {manifest.batch} of checkpoint "
            f"{checkpoint.root.parent}; nothing is lost, leave this one stopped"
        )
    if found.parent != manifest.parent:
        raise CheckpointMismatch(
            f"manifest {path} follows another batch {manifest.batch - 1} than the one that this "
            f"driver knows: files of two checkpoints are mixed; restore it from a copy"
        )
    return found


def retire(checkpoint: Checkpoint, batch: int) -> None:
    """Remove the manifests that nobody needs once `batch` is committed.

    Their batches are closed before, because a name that is gone protects nothing.
    """
    last = batch - KEPT
    if last < 0:
        return
    fence.raise_boundary(checkpoint, last)
    for old in _batches(checkpoint.manifests):
        if old <= last:
            delete(checkpoint.manifests / f"{old:08d}.json")


def newest(folder: Path) -> Manifest | None:
    """The newest manifest, None in a fresh checkpoint.

    Raises DamagedState where it is not what was written, CheckpointMismatch for another format.
    """
    while batches := _batches(folder):
        found = _found(folder / f"{max(batches):08d}.json")
        if found is not None:  # else whoever runs has gone on far since the listing
            return found
    return None


def _found(path: Path) -> Manifest | None:
    try:
        return read(path)
    except FileNotFoundError:
        return None


def read(path: Path) -> Manifest:
    """One manifest, checked."""
    content = path.read_bytes()
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


def _batches(folder: Path) -> list[int]:
    names = (_NAME.fullmatch(name) for name in names_in(folder))
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
        "generation": manifest.generation,
        "nonce": manifest.nonce,
        "parent": manifest.parent,
        "joins": [_join_to_json(join) for join in manifest.joins],
        "results": _files_to_json(manifest.results),
        "refused": _files_to_json(manifest.refused),
    }


def _join_to_json(join: JoinState) -> dict[str, Any]:
    return {
        "layout": join.layout,
        "version": join.version,
        "sized_at": join.sized_at,
        "older": sorted(join.older.items()),
        "run_columns": _RUN_COLUMNS,
        "runs": _runs_to_json(join.runs),
        "watchers": join.watchers,
        "pending": _runs_to_json(join.watched.pending),
        "unread": _runs_to_json(join.watched.unread),
        "seen": _runs_to_json(join.watched.seen),
        "files": _files_to_json(join.files.values()),
        "pulls": [[p.side, p.source, p.target, p.lower, p.upper] for p in join.moves.pulls],
        "drops": [[d.side, d.instance, d.lower, d.upper] for d in join.moves.drops],
        "before": join.before,
        "requested": join.requested,
        "newest": [_time_to_json(time) for time in join.newest],
        "idle_since": [_time_to_json(time) for time in join.idle_since],
        "watermark": _time_to_json(join.watermark),
        "ahead": [_time_to_json(time) for time in join.ahead],
        "held_back": join.held_back,
        "closed": _time_to_json(join.closed),
        "history": _files_to_json(join.history),
        "late_rows": join.late_rows,
    }


def _from_json(plain: dict[str, Any]) -> Manifest:
    return Manifest(
        query=plain["query"],
        batch=plain["batch"],
        joins=tuple(_join_from_json(join) for join in plain["joins"]),
        results=_files_from_json(plain["results"]),
        refused=_files_from_json(plain["refused"]),
        generation=plain["generation"],
        nonce=plain["nonce"],
        parent=(plain["parent"][0], plain["parent"][1]),
    )


def _join_from_json(plain: dict[str, Any]) -> JoinState:
    names = plain["run_columns"]
    pulls = tuple(Pull(Side(side), *rest) for side, *rest in plain["pulls"])
    drops = tuple(Drop(Side(side), *rest) for side, *rest in plain["drops"])
    left, right = (_time_from_json(time) for time in plain["newest"])
    idle_left, idle_right = (_time_from_json(time) for time in plain["idle_since"])
    ahead_left, ahead_right = (_time_from_json(time) for time in plain["ahead"])
    return JoinState(
        layout=plain["layout"],
        version=plain["version"],
        sized_at=plain["sized_at"],
        older=dict(plain["older"]),
        runs=_runs_from_json(names, plain["runs"]),
        watchers=plain["watchers"],
        watched=Watched(
            pending=_runs_from_json(names, plain["pending"]),
            unread=_runs_from_json(names, plain["unread"]),
            seen=_runs_from_json(names, plain["seen"]),
        ),
        files={stored.name: stored for stored in _files_from_json(plain["files"])},
        moves=Moves(pulls, drops),
        before=plain["before"],
        requested=plain["requested"],
        newest=(left, right),
        idle_since=(idle_left, idle_right),
        watermark=_time_from_json(plain["watermark"]),
        ahead=(ahead_left, ahead_right),
        held_back=plain["held_back"],
        closed=_time_from_json(plain["closed"]),
        history=_files_from_json(plain["history"]),
        late_rows=plain["late_rows"],
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


def _time_to_json(time: float) -> float | str:
    return str(time) if math.isinf(time) else time


def _time_from_json(time: float | str) -> float:
    return float(time) if isinstance(time, str) else time
