"""The files of a source: of a folder, or below the URL of a place in an object store.

A user's files are no part of the engine's world: they are found, looked at and opened here alone.
Cost in a store: one request for a thousand names, and one for each range of bytes that is read.
"""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from joinengine.world import buckets
from joinengine.world.buckets import is_url
from joinengine.world.remote import RemoteStorage


class SourceFile(NamedTuple):
    """A file as a listing finds it; `changed_s`: when it came to be as it is, since the epoch."""

    path: str
    size: int
    modified_ns: int
    changed_s: float


def exists(place: str) -> bool:
    """Whether there is a folder or a file; of a store, whether it holds a file there."""
    if is_url(place):
        return next(buckets.files_below(place), None) is not None
    return os.path.exists(place)


def find(place: str, known: Container[str] = ()) -> list[SourceFile]:
    """The Parquet files below a place (or the file that it is), hidden ones left out.

    Files whose paths are `known` are left out too; in a folder they are not looked at again.
    """
    if is_url(place):
        found = (SourceFile(*one) for one in buckets.files_below(place))
        shown = (one for one in found if one.path == place or _is_shown(one.path[len(place) :]))
        return [one for one in shown if one.path not in known]
    paths = (str(path) for path in parquet_files(Path(place)))
    files = (look_at(path) for path in paths if path not in known)
    return [one for one in files if one is not None]


def look_at(path: str) -> SourceFile | None:
    """The file at a path or URL; None: it has gone."""
    if is_url(path):
        found = buckets.file_at(path)
        return None if found is None else SourceFile(*found)
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    # The change of the inode, not of the content: a copy may be given an old time.
    return SourceFile(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime)


def opened(path: str) -> Any:
    """What Arrow's Parquet reader takes: a path, or a file that asks the store for ranges."""
    return buckets.reader_of(path) if is_url(path) else path


def parquet(path: str) -> Any:
    """A Parquet file; instants in the old type of Spark's are read as such.

    Of a store the columns that are wanted are read together, with few requests.
    """
    return pq.ParquetFile(
        opened(path),
        memory_map=True,
        coerce_int96_timestamp_unit="us",
        pre_buffer=is_url(path),
    )


def text_of(path: str) -> str:
    """The content of a small file."""
    if is_url(path):
        folder, _, name = path.rpartition("/")
        return RemoteStorage(folder).get(name).decode()
    return Path(path).read_text()


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files below a folder (or the file that it is), hidden ones left out."""
    if folder.is_file():
        return [folder]
    files = list[Path]()
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        files += [
            Path(root, n) for n in sorted(names) if n[0] not in "._" and n.endswith(".parquet")
        ]
    return files


def _is_shown(below: str) -> bool:
    """Whether a name below a place is that of a Parquet file, and no part of it is hidden.

    >>> _is_shown("/day=1/a.parquet"), _is_shown("/_staged/a.parquet"), _is_shown("/a.csv")
    (True, False, False)
    """
    parts = [part for part in below.split("/") if part]
    return below.endswith(".parquet") and not any(part[0] in "._" for part in parts)
