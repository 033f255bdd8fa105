"""Finds and opens the files of a source: of a folder, or below a URL of an object store.

A user's files are not part of the engine's world: only this module finds, inspects and opens them.
Cost in an object store: one request for each thousand names, and one for each range of bytes read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from joinengine.model.errors import JoinEngineError
from joinengine.world import buckets
from joinengine.world.buckets import is_url
from joinengine.world.local import check_blame
from joinengine.world.remote import RemoteStorage

#: How many names are read at a time.
_AT_ONCE = 1024
#: Errors of a name that is gone, or a link that leads nowhere.
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
#: Takes each folder that a walk enters.
Entered = Callable[[str], None]


class SourceFile(NamedTuple):
    """A file as a listing finds it; `changed_s`: its last change, in seconds since the epoch."""

    path: str
    size: int
    modified_ns: int
    changed_s: float


def exists(place: str) -> bool:
    """Whether there is a folder or a file; in an object store, whether there is a file below."""
    if is_url(place):
        return next(buckets.files_below(place), None) is not None
    return os.path.exists(place)


def _nothing(folder: str) -> None:
    """Do nothing."""


def find(place: str) -> list[SourceFile]:
    """The Parquet files below a place (or the file that it is), hidden ones left out."""
    return list(found_below(place, list))


def found_below(
    place: str, asked: Callable[[list[str]], list[str]], entered: Entered = _nothing
) -> Iterator[SourceFile]:
    """As `find`, one by one, but only for the paths that `asked` keeps of those it is given.

    `entered`: as in `paths_below`; not called for an object store.
    """
    if is_url(place):
        shown = (facts for facts in buckets.files_below(place) if _is_shown(facts[0], place))
        while some := list(islice(shown, _AT_ONCE)):
            left = set(asked([path for path, *_ in some]))
            yield from (SourceFile(*facts) for facts in some if facts[0] in left)
        return
    for paths in paths_below(place, entered):
        for path in asked(paths):
            if (file := look_at(path)) is not None:
                yield file


def paths_below(
    folder: str, entered: Entered = _nothing, root: str | None = None
) -> Iterator[list[str]]:
    """The paths of the Parquet files below a folder (or the file that it is), some at a time.

    Each list is from the next _AT_ONCE names, and may be empty. Hidden files are left out.
    `entered` is called with each folder before its names are read. `root`: the place in which the
    folder lies; None: the folder is the place. A link to a folder elsewhere is followed. A link
    into the place, or to a folder around it, is left out, since its files are found without it.
    Raises JoinEngineError for a folder that may not be read, and for a name that is not text.
    """
    if os.path.isfile(folder):
        yield [folder]
        return
    root = root or folder
    tops: tuple[str, ...] | None = (os.path.realpath(root),)
    for path in _between(root, folder):
        if tops is not None and os.path.islink(path):
            tops = _led_to(path, tops)
    folders, some, read = [] if tops is None else [(folder, tops)], list[str](), 0
    while folders:
        current, tops = folders.pop()
        entered(current)
        with _reading(current), os.scandir(current) as entries:
            for entry in entries:
                read += 1
                if read % _AT_ONCE == 0:
                    yield some
                    some = []
                if entry.name[0] in "._":
                    continue
                is_folder = _is_folder(entry)
                if is_folder or entry.name.endswith(".parquet"):
                    check_name(entry.path)
                if is_folder:
                    if not entry.is_symlink():
                        folders.append((entry.path, tops))
                    elif (led_to := _led_to(entry.path, tops)) is not None:
                        folders.append((entry.path, led_to))
                elif entry.name.endswith(".parquet"):
                    some.append(entry.path)
    yield some


def _between(root: str, folder: str) -> list[str]:
    """The paths on the way from `root` to a folder below it.

    >>> _between("/in", "/in/a/b"), _between("/in", "/in")
    (['/in/a', '/in/a/b'], [])
    """
    names = folder[len(root) :].strip("/").split("/") if folder != root else []
    return [f"{root}/{'/'.join(names[: n + 1])}" for n in range(len(names))]


def _led_to(link: str, tops: tuple[str, ...]) -> tuple[str, ...] | None:
    """The `tops` beyond a link; None: the walk is in its target, or gets there without it.

    `tops`: the resolved folders of the place and of the targets of all links on the way.
    """
    target = os.path.realpath(link)
    if any(_lies_in(top, target) or _is_walked(target, top) for top in tops):
        return None
    return (*tops, target)


def _is_walked(target: str, top: str) -> bool:
    """Whether a walk through `target` reaches `top`; a walk does not enter hidden folders."""
    return _lies_in(target, top) and not any(
        part[0] in "._" for part in target[len(top) :].split("/") if part
    )


def _lies_in(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def check_name(path: str) -> None:
    """Raise an error for a name whose bytes are not text: no log and no error could hold it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = path.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise JoinEngineError(
            f"source {shown} has a name that is not UTF-8, so it cannot be logged, and what is in "
            "it would be missing; rename it, or move it out of the source. Nothing is lost"
        ) from None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether a name is a folder or a link to one; a link that leads nowhere is not."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return False
        raise


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """In the block, a folder that is gone counts as empty; one that may not be read is an error."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return
        check_blame(f"source {path}", error)
        raise JoinEngineError(
            f"source {path} cannot be read ({error.strerror}), so what lies there would be "
            "missing; give this process the right to read it, or move it out of the source. "
            "Nothing is lost"
        ) from None


def look_at(path: str) -> SourceFile | None:
    """The file at a path or URL; None: it is gone."""
    if is_url(path):
        facts = buckets.file_at(path)
        return None if facts is None else SourceFile(*facts)
    file = None
    with _reading(path):
        stat = os.stat(path)
        # The change time of the inode: the modification time of a copy may be set to an old time.
        file = SourceFile(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime)
    return file


def opened(path: str) -> Any:
    """A path, or a file that reads ranges from the store, for Arrow's Parquet reader."""
    return buckets.reader_of(path) if is_url(path) else path


def parquet(path: str) -> Any:
    """A Parquet file; Spark's old type of instants is read as instants.

    From an object store, the wanted columns are read together, with few requests.
    """
    return pq.ParquetFile(
        opened(path), memory_map=True, coerce_int96_timestamp_unit="us", pre_buffer=is_url(path)
    )


def text_of(path: str) -> str:
    """The content of a small file."""
    if is_url(path):
        folder, _, name = path.rpartition("/")
        return RemoteStorage(folder).get(name).decode()
    return Path(path).read_text()


def _is_shown(path: str, place: str) -> bool:
    """Whether a file of a store is a Parquet file, and no part of its path below `place` is hidden.

    >>> _is_shown("s3://b/in/day=1/a.parquet", "s3://b/in"), _is_shown("s3://b/a.csv", "s3://b")
    (True, False)
    >>> _is_shown("s3://b/_in/_staged/a.parquet", "s3://b/_in")
    False
    """
    below = path[len(place) :]
    parts = [part for part in below.split("/") if part]
    return path == place or (below.endswith(".parquet") and not any(p[0] in "._" for p in parts))
