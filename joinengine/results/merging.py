"""Merges staged result files: many small files become few of about a target size.

Why tasks: the driver never handles tuples. A task holds one row group at a time, or some 64 MB of
it, so its memory does not depend on how much is merged.

Law: the merged files hold the rows of their sources, each once. Files of different Hive folders
are never merged; a single file stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from joinengine.results.staging import Cutting, ParquetFiles, gathered, rows_of
from joinengine.world.buckets import is_url
from joinengine.world.storage import Storage, StoredFile, remove_unnamed, tagged
from joinengine.world.world import World

#: The default size of merged files, in bytes: that of an HDFS block.
TARGET_BYTES = 128 << 20
#: The rows in a row group of a merged file.
GROUP_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Files of `folder` that become one or a few; `place`: their Hive folder; empty: none."""

    folder: str
    files: tuple[StoredFile, ...]
    place: str
    generation: int
    cutting: Cutting
    fsync: bool = False


@dataclass(slots=True)
class MergeReport:
    """The merged files."""

    files: list[StoredFile] = field(default_factory=list)


#: Runs merging tasks; returns their reports in the order of the tasks.
Merge = Callable[[Sequence[MergeTask]], Sequence[MergeReport]]


def merges_nothing(tasks: Sequence[MergeTask]) -> Sequence[MergeReport]:
    """The `Merge` of a sink that holds nothing back; it is never called."""
    raise AssertionError("no files are held back")


def together(
    files: Sequence[StoredFile],
    staging: Storage,
    generation: int,
    cutting: Cutting,
    fsync: bool,
    merge: Merge,
) -> list[StoredFile]:
    """Merge `files` of `staging` that belong together; returns the files that hold all their rows.

    If a task fails, the files that tasks have written are removed, since the disk may be full. In
    an object store they stay: it has room, and may itself be what has failed.
    """
    tasks, merged = list[MergeTask](), list[StoredFile]()
    for place, pack in packs(files, cutting.target_bytes or TARGET_BYTES):
        if len(pack) == 1:
            merged.append(pack[0])
        else:
            tasks.append(MergeTask(staging.folder, tuple(pack), place, generation, cutting, fsync))
    if not tasks:
        return merged
    try:
        return merged + [stored for report in merge(tasks) for stored in report.files]
    except Exception:
        if not is_url(staging.folder):
            with suppress(Exception):  # report the first error
                named = [stored.name for stored in files]
                remove_unnamed(staging, named, range(generation, generation + 1))
        raise


def packs(files: Sequence[StoredFile], target_bytes: int) -> Iterator[tuple[str, list[StoredFile]]]:
    """(Hive folder, files that become one), in order; a pack ends at the target size."""
    waiting = dict[str, list[StoredFile]]()
    sizes = dict[str, int]()
    for stored in files:
        place = "/".join(stored.name.split("/")[1:-1])
        waiting.setdefault(place, []).append(stored)
        sizes[place] = sizes.get(place, 0) + stored.size_bytes
        if sizes[place] >= target_bytes:
            yield place, waiting.pop(place)
            del sizes[place]
    yield from waiting.items()


def merge(task: MergeTask, world: World) -> MergeReport:
    """Carry out one task. Raises DamagedState if a file is not what was sealed."""
    staging = world.storage(task.folder, fsync=task.fsync)
    stem = tagged(task.generation, world.nonce())
    merged = ParquetFiles(staging, f"{stem}/{task.place}/0" if task.place else stem, task.cutting)
    what = "result file that is held back"
    pieces = (rows for stored in task.files for rows in rows_of(staging, stored, GROUP_ROWS, what))
    for group in gathered(pieces, GROUP_ROWS):
        merged.add(group)
    return MergeReport(merged.close())
