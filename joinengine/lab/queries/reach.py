"""Uploads the inputs and results of a run to an object store, where all executors reach them.

A recorded stream and the tables beside it are uploaded once and found again by their names; results
that were to go to a folder of this machine wait in the store and are fetched when the run ends.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from joinengine.lab.tpch.generate import Say
from joinengine.lab.tpch.stream import RecordedStream
from joinengine.sources.sourcefiles import find
from joinengine.world.buckets import is_url
from joinengine.world.world import MACHINE

#: The file of a recorded stream that is uploaded last.
_LAST = "stream.json"


def reachable(recorded: RecordedStream, state: str | None, say: Say) -> RecordedStream:
    """A generated stream that tasks find below `state`, if that is the URL of an object store."""
    if state is None or not is_url(state):
        return recorded
    there = MACHINE.storage(f"{state}/streams/{recorded.folder.name}")
    if not there.exists(_LAST):
        say(f"uploading the stream to {there.folder}")
        files = [path for path in recorded.folder.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: path.name == _LAST):
            there.put(str(path.relative_to(recorded.folder)), path.read_bytes())
    return replace(recorded, reach=there.folder)


def reachable_table(recorded: RecordedStream, path: Path) -> str:
    """A generated table: in the store if the recorded stream is there, else on the disk."""
    if recorded.reach is None:
        return str(path)
    # A name of the folder that a scale and a table have.
    name = f"{path.parent.name}-{path.name}"
    there = MACHINE.storage(f"{recorded.reach.rpartition('/')[0]}/tables")
    if not there.exists(name):
        there.put(name, path.read_bytes())
    return f"{there.folder}/{name}"


def results_place(out: Path, state: str | None) -> str:
    """Where a run writes results that are to be in `out`: there, or in the store of its state."""
    return str(out) if state is None or not is_url(state) else f"{state}/results"


def fetch(place: str, out: Path) -> None:
    """Bring the results of a run to its folder, if they lie in a store."""
    if not is_url(place):
        return
    out.mkdir(parents=True, exist_ok=True)
    storage = MACHINE.storage(place)
    for file in find(place):
        name = file.path[len(place) + 1 :]
        if not (out / name).exists():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(storage.get(name))
