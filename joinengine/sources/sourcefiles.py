"""The files of a source: of a folder, or below the URL of a place in an object store.

A user's files are no part of the engine's world: they are found, looked at and opened here alone.
Cost in a store: one request for a thousand names, and one for each range of bytes that is read.
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

#: So many names are read at a time.
_AT_ONCE = 1024
#: A name has gone, or is a link that leads nowhere.
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
#: Is told of a folder.
Entered = Callable[[str], None]


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


def _nothing(folder: str) -> None:
    """Tell nobody."""


def find(place: str) -> list[SourceFile]:
    """The Parquet files below a place (or the file that it is), hidden ones left out."""
    return list(found_below(place, list))


def found_below(
    place: str, asked: Callable[[list[str]], list[str]], entered: Entered = _nothing
) -> Iterator[SourceFile]:
    """The same, one by one, of the paths that `asked` leaves of some; no other is looked at.

    `entered`: as in `paths_below`; of a store nobody is told.
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

    They are those among so many names, and may be none. Hidden ones are left out. `entered` is told
    each folder before the names in it are read. `root`: the place that the folder lies in; None:
    it is the place. A link leads into a folder elsewhere; one into the place, or around it, is
    left out, since what is there is found without it. Raises JoinEngineError for a folder that may
    not be read, and for a name that is no text.
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
    """The paths on the way from a folder to one below it.

    >>> _between("/in", "/in/a/b"), _between("/in", "/in")
    (['/in/a', '/in/a/b'], [])
    """
    names = folder[len(root) :].strip("/").split("/") if folder != root else []
    return [f"{root}/{'/'.join(names[: n + 1])}" for n in range(len(names))]


def _led_to(link: str, tops: tuple[str, ...]) -> tuple[str, ...] | None:
    """The tops of what a walk is in, behind a link; None: it leads to where the walk is or gets.

    `tops`: the folders without links, of the place and of each link on the way.
    """
    target = os.path.realpath(link)
    if any(_lies_in(top, target) or _is_walked(target, top) for top in tops):
        return None
    return (*tops, target)


def _is_walked(target: str, top: str) -> bool:
    """Whether a walk through a folder gets to another: none does to what is hidden there."""
    return _lies_in(target, top) and not any(
        part[0] in "._" for part in target[len(top) :].split("/") if part
    )


def _lies_in(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def check_name(path: str) -> None:
    """Refuse a name of bytes that are no text, which no log and no error could hold."""
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = path.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise JoinEngineError(
            f"source {shown} has a name that is not UTF-8, so it cannot be logged, and what is in "
            "it would be missing; rename it, or move it out of the source. Nothing is lost"
        ) from None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether a name is a folder, also by a link; one that leads nowhere is none."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return False
        raise


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """What has gone is nothing; what may not be read is an error, since it would be missing."""
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
    """The file at a path or URL; None: it has gone."""
    if is_url(path):
        facts = buckets.file_at(path)
        return None if facts is None else SourceFile(*facts)
    file = None
    with _reading(path):
        stat = os.stat(path)
        # The change of the inode, not of the content: a copy may be given an old time.
        file = SourceFile(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime)
    return file


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


def _is_shown(path: str, place: str) -> bool:
    """Whether a file of a store is a Parquet file, and no part of its path is hidden.

    Of the place itself no part counts.

    >>> _is_shown("s3://b/in/day=1/a.parquet", "s3://b/in"), _is_shown("s3://b/a.csv", "s3://b")
    (True, False)
    >>> _is_shown("s3://b/_in/_staged/a.parquet", "s3://b/_in")
    False
    """
    below = path[len(place) :]
    parts = [part for part in below.split("/") if part]
    return path == place or (below.endswith(".parquet") and not any(p[0] in "._" for p in parts))
