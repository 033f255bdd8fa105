"""Marks output folders: whose results a folder holds, and where a checkpoint has written.

Why: a checkpoint continues its results. With another folder, it would leave a part of them behind.
With another query's folder, it would mix two sets of results. So each query that writes into a
folder leaves a *marker* with its id there, below a name that readers skip. The marker counts, not
the path, so folders may be moved. The checkpoint notes the path, for messages. A marker also names
the Hive folders of the results, because readers find only a part of a folder that mixes several
kinds of Hive folders.

Law: only files whose names contain the id of a marker are removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from joinengine.model.errors import (
    CheckpointMismatch,
    DamagedState,
    InvalidRequest,
    JoinEngineError,
)
from joinengine.results.sinks import STAGING, marker_of
from joinengine.state import manifests
from joinengine.state.checkpoint import Checkpoint, read_note, write_note
from joinengine.world.storage import Storage

#: The note of a checkpoint: the output folder.
NOTE = "output.json"
_RESULT = re.compile(r"part-(\d{8,})-(\w+)-.*\.parquet")
#: Where Spark's own file sink lists the files of a folder; Spark then reads no others.
SPARKS_LOG = "_spark_metadata"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The demands of a query on its output folder.

    `shared`: results of other queries may be there. `overwrite`: if the checkpoint is new, they are
    removed. `partition_by`: the columns of the Hive folders, outermost first. `takes_waiting`: the
    folder also gets results that another sink has left waiting in the checkpoint.
    """

    shared: bool = False
    overwrite: bool = False
    partition_by: tuple[str, ...] = ()
    takes_waiting: bool = False


def check(
    checkpoint: Checkpoint, output: Storage, query: str, wanted: Wanted, *, runs: bool = False
) -> None:
    """Raise the errors of `take`, without writing anything.

    `runs`: a query of this process is running on the checkpoint. It may commit its first batch at
    any moment, so its folder counts from its start on.

    Raises CheckpointMismatch if the checkpoint has written to another folder or other Hive folders,
    or if its results are gone; DamagedState if there are results of later batches than it knows of;
    InvalidRequest if results of others are in the way.
    Cost: the names in the folder; in an object store, a request for each thousand names.
    """
    is_new = not runs and _is_new(checkpoint)
    overwrite = wanted.overwrite and is_new
    if not output.exists(marker_of(query)):
        if not is_new:
            _check_note(checkpoint, output)
            _check_sink(checkpoint, output, wanted)
        _check_others(output, shared=wanted.shared, overwrite=overwrite)
        if overwrite:
            return
    else:
        _check_reaches(checkpoint, output, query)
    _check_partitions(checkpoint, output, query, wanted.partition_by)


def take(checkpoint: Checkpoint, output: Storage, query: str, wanted: Wanted) -> None:
    """Make `output` the folder of the query with this checkpoint. Raises as `check`."""
    check(checkpoint, output, query, wanted)
    if not output.exists(marker_of(query)):
        if wanted.overwrite and _is_new(checkpoint):
            _remove_others(output)
        output.at(STAGING).make()
        about = {
            "query": query,
            "checkpoint": checkpoint.location,
            "partitionBy": wanted.partition_by,
        }
        output.create(marker_of(query), json.dumps(about).encode())
        try:  # again: another query may have begun here since, and each now sees the other's marker
            _check_others(output, shared=wanted.shared, overwrite=False, own=query)
        except InvalidRequest:
            output.delete(marker_of(query))
            raise
    if _noted(checkpoint) != output.folder:
        write_note(checkpoint, NOTE, {"folder": output.folder})


def _is_new(checkpoint: Checkpoint) -> bool:
    return manifests.newest(checkpoint.manifests) is None


def _check_reaches(checkpoint: Checkpoint, output: Storage, query: str) -> None:
    """Raise DamagedState if a checkpoint is older than its results: it would repeat some."""
    shown = max((batch for _, owner, batch in _numbered(output) if owner == query), default=-1)
    # Read the manifest after the names: a running driver commits a batch before it shows results.
    newest = manifests.newest(checkpoint.manifests)
    if newest is None and shown >= 0:
        raise DamagedState(
            f"{checkpoint.manifests.folder} is missing or empty, but {output.folder} holds "
            "results of its batches, which would be written again; restore it "
            "from a copy"
        )
    if newest is not None and shown > newest.batch:
        raise DamagedState(
            f"{output.folder} holds results of this query up to batch {shown}, and the newest "
            f"manifest of checkpoint {checkpoint.location} is of batch {newest.batch}, so the "
            "checkpoint is an older copy or has lost its newest manifests, and results would be "
            "written again; restore the newest copy of the checkpoint, or start with a new "
            "checkpointLocation and another folder"
        )


def _check_partitions(
    checkpoint: Checkpoint, output: Storage, query: str, asked: tuple[str, ...]
) -> None:
    """Raise CheckpointMismatch if the existing results have other Hive folders.

    A marker that does not name its Hive folders is damaged.
    """
    for owner, about in _markers(output):
        columns = about.get("partitionBy")
        # Spark names folders as the columns of the results, whatever case the user gave.
        if columns is None or [name.lower() for name in columns] == [
            name.lower() for name in asked
        ]:
            continue
        was, now = _folders(columns), _folders(asked)
        if owner == query:
            raise CheckpointMismatch(
                f"partitionBy: checkpoint {checkpoint.location} has written its results to "
                f"{output.folder} {was}, and this query writes them {now}, so readers would find "
                "only part of them; give the same partitionBy as before, or start with a new "
                "checkpointLocation and another folder"
            )
        raise InvalidRequest(
            f"partitionBy: query {owner} writes its results to {output.folder} {was}, and this "
            f"query writes them {now}, so readers would find only part of them; give the same "
            "partitionBy, or use another folder"
        )


def _folders(columns: Iterable[str]) -> str:
    """The Hive folders of results, in words."""
    names = ", ".join(columns)
    return f"in folders by {names}" if names else "without folders"


def _check_note(checkpoint: Checkpoint, output: Storage) -> None:
    """Raise CheckpointMismatch if the checkpoint's earlier results lie elsewhere or are gone."""
    before = _noted(checkpoint)
    if before is None:
        return
    ways = (
        "restore it from a copy; if the results are no longer needed, start with a new "
        "checkpointLocation"
    )
    if before == output.folder:
        raise CheckpointMismatch(
            f"path: {before} no longer holds the results of checkpoint {checkpoint.location}, "
            f"because it was deleted or emptied; {ways}"
        )
    raise CheckpointMismatch(
        f"path: checkpoint {checkpoint.location} has written its results to {before}, but the "
        f"path given is {output.folder}, which holds none of them; use {before}, move its whole "
        f"content to {output.folder}, or start with a new checkpointLocation"
    )


def _check_sink(checkpoint: Checkpoint, output: Storage, wanted: Wanted) -> None:
    """Raise CheckpointMismatch if another sink has, or waits for, the checkpoint's last results."""
    newest = manifests.newest(checkpoint.manifests)
    if newest is None or not newest.results:
        return
    waiting = all(checkpoint.results.exists(file.name) for file in newest.results)
    if not (wanted.takes_waiting and waiting):
        raise CheckpointMismatch(
            f"path: checkpoint {checkpoint.location} made the results of its last batch for "
            f"another sink, so {output.folder} would lack them; go on with that sink, or start "
            "with a new checkpointLocation"
        )


def _check_others(
    output: Storage, *, shared: bool, overwrite: bool, own: str | None = None
) -> None:
    """InvalidRequest if results of others are in the way; `own`: the query with a marker here."""
    if SPARKS_LOG in output.names():
        raise InvalidRequest(
            f"path: {output.folder} holds {SPARKS_LOG}, a log that a streaming query of Spark's "
            "has written. Readers in Spark follow this log and would not see joinengine's files; "
            f"use another folder, or remove {SPARKS_LOG} once no query of Spark's writes there"
        )
    if shared:
        return
    others = {owner: about for owner, about in _markers(output) if owner != own}
    strange = next((name for name, owner in _results(output) if owner not in others), None)
    if strange is not None:
        raise InvalidRequest(
            f"path: {output.folder} already holds Parquet files that no joinengine query has "
            f"marked as its own, such as {strange}; use another folder, or .option('shared', "
            "True) to write beside them"
        )
    if others and not overwrite:
        query, about = next(iter(others.items()))
        raise InvalidRequest(
            f"path: {output.folder} already holds Parquet files: the results of query {query}, "
            f"with the checkpoint {about.get('checkpoint', 'unknown')}. To continue that query, "
            "use its checkpointLocation. Otherwise use another folder, .option('shared', True) "
            "to write beside these files, or, with a new checkpoint, .option('overwrite', True) "
            "to remove them"
        )


def _remove_others(output: Storage) -> None:
    """Remove the results of all queries that have markers; each marker goes last."""
    owners = dict(_markers(output))
    for name, owner in list(_results(output)):
        if owner in owners:
            output.delete(name)
    for query in owners:
        output.delete_folder(f"{STAGING}/{query}")
        output.delete(marker_of(query))


def _results(output: Storage) -> Iterator[tuple[str, str | None]]:
    """(name, id of the query or None) of each visible Parquet file, also in Hive folders."""
    return ((path, owner) for path, owner, _ in _numbered(output))


def _numbered(output: Storage, below: str = "") -> Iterator[tuple[str, str | None, int]]:
    """As `_results`, with the number of the batch; InvalidRequest if a folder cannot be listed."""
    folder = output.at(below) if below else output
    try:
        names = folder.names()
    except OSError as error:
        raise InvalidRequest(
            f"path: {folder.folder} cannot be listed ({error.strerror}), so whose results it holds "
            "is unknown; remove the link if it leads back to a folder above it, or use another "
            "folder"
        ) from None
    except JoinEngineError as error:
        raise InvalidRequest(f"path: {error}") from None
    for name in names:
        path = f"{below}/{name}" if below else name
        match = _RESULT.fullmatch(name)
        if match:
            yield path, match[2], int(match[1])
        elif name.endswith(".parquet"):
            yield path, None, -1
        elif "=" in name:
            yield from _numbered(output, path)


def _markers(output: Storage) -> Iterable[tuple[str, dict[str, Any]]]:
    for name in output.at(STAGING).names():
        if name.endswith(".json"):
            with suppress(FileNotFoundError):  # removed since, by a start with overwrite
                yield name.removesuffix(".json"), _about(output.get(f"{STAGING}/{name}"))


def _about(content: bytes) -> dict[str, Any]:
    """The content of a marker; empty if it is damaged: its name still names the query."""
    try:
        about = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(about, dict):
        return {}
    columns = about.get("partitionBy")
    is_whole = columns is None or (
        isinstance(columns, list) and all(isinstance(name, str) for name in columns)
    )
    return about if is_whole else {}


def _noted(checkpoint: Checkpoint) -> str | None:
    note = read_note(checkpoint, NOTE, "which names the output folder", "folder")
    return None if note is None else str(note["folder"])
