"""The file cache: drafts on their way to an object store, and whole copies of files that lie there.

Why: a run file is read in every batch until it is merged, and never changes. So an executor that
has written it, or read it once, keeps it on its own disk.

Law: files never change, so a copy is never stale. A copy may vanish at any moment, and a process
that has mapped it keeps it. Several processes of a machine share a folder.
Cost: a copy that is there costs one look at the folder and no request.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import io
import logging
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from typing_extensions import override

from joinengine.world.local import PRIVATE

#: Free disk space that copies never take, in bytes.
RESERVE_BYTES = 1 << 30
#: Copies are counted anew after this many have been added, since other processes add and remove.
_COUNT_EVERY = 32
#: A draft that has not grown for so long, in seconds, belongs to a process that was killed.
_DRAFT_S = 3600

_log = logging.getLogger("joinengine")


@dataclass
class FileCache:
    """A folder of this machine's own disk."""

    folder: str
    _added: int = 0

    def find(self, url: str) -> str | None:
        """The path of the copy of a file, which counts as used now; None without a copy."""
        path = self._path(url)
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError:  # the disk is read-only, or no folder was made
            return path if os.path.exists(path) else None
        return path

    def draft(self) -> Draft:
        """A new file; in memory if the disk has no room for it, or runs out of room later."""
        path = f"{self.folder}/.{uuid.uuid4().hex}"
        try:
            os.makedirs(self.folder, mode=PRIVATE, exist_ok=True)
            if shutil.disk_usage(self.folder).free > RESERVE_BYTES:
                return Draft(path)
            why = f"less than {RESERVE_BYTES >> 30} GB free"
        except OSError as error:
            why = error.strerror or str(error)
        _warn_full(self.folder, why)
        return Draft(None)

    def adopt(self, draft: Draft, url: str, cache_bytes: int) -> None:
        """Make a draft the copy of a file, unless it is in memory."""
        if draft.path is not None:
            self.keep(draft.path, url, cache_bytes)

    def keep(self, draft: str, url: str, cache_bytes: int) -> None:
        """Make a local file the copy of `url`; above `cache_bytes`, remove the oldest by use."""
        path = self._path(url)
        try:
            os.makedirs(os.path.dirname(path), mode=PRIVATE, exist_ok=True)
            os.replace(draft, path)
        except OSError as error:
            _warn_full(self.folder, error.strerror or str(error))
            return
        self._added += 1
        if self._added % _COUNT_EVERY == 1:
            self._thin(cache_bytes)

    def forget(self, url: str) -> bool:
        """Drop a copy; False: there is none, or it cannot be removed."""
        try:
            os.unlink(self._path(url))
        except OSError:
            return False
        return True

    def _path(self, url: str) -> str:
        folder, _, name = url.rpartition("/")
        return f"{self.folder}/{hashlib.sha1(folder.encode()).hexdigest()[:16]}/{name}"

    def _thin(self, cache_bytes: int) -> None:
        """Remove the copies that were used longest ago, until the others fit.

        Drafts go only if no process writes them any more.
        """
        files, left_s = list[tuple[float, int, str]](), time.time() - _DRAFT_S
        for below, _, names in os.walk(self.folder):
            for name in names:
                with suppress(FileNotFoundError):
                    path = os.path.join(below, name)
                    facts = os.stat(path)
                    if not name.startswith("."):
                        files.append((facts.st_mtime, facts.st_size, path))
                    elif facts.st_mtime < left_s:
                        os.unlink(path)
        over = sum(size for _, size, _ in files) - cache_bytes
        free = shutil.disk_usage(self.folder).free
        over = max(over, RESERVE_BYTES - free)
        for _, size, path in sorted(files):
            if over <= 0:
                return
            with suppress(FileNotFoundError):
                os.unlink(path)
                over -= size


class Draft(io.RawIOBase):
    """A file that is being written: on the local disk while that has room, else in memory.

    The object store gets the file in the end, so a full disk is no reason to fail.
    """

    def __init__(self, path: str | None) -> None:
        super().__init__()
        self._path = None
        self._file: Any = io.BytesIO()
        if path is not None:
            self._file = open(path, "xb", buffering=0, opener=_own)
            self._path = path

    @override
    def writable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        place: int = self._file.tell()
        return place

    @override
    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        left = view
        while left:
            try:
                left = left[self._file.write(left) :]
            except OSError as error:
                assert self._path is not None
                _warn_full(os.path.dirname(self._path), error.strerror or str(error))
                self._to_memory()
        return len(view)

    def content(self) -> pa.Buffer:
        """The content; for a file on disk it is a memory map, which outlives the draft."""
        if self._path is None:
            return pa.py_buffer(self._file.getvalue())
        return pa.memory_map(self._path).read_buffer() if self.tell() else pa.py_buffer(b"")

    @property
    def path(self) -> str | None:
        """The path of the file, under a name that no one else uses; None: it is in memory."""
        return self._path

    def drop(self) -> None:
        """Remove the file, unless it has another name now."""
        self._file.close()
        if self._path is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path)

    def _to_memory(self) -> None:
        path, size = self._path, self.tell()
        self._file.close()
        assert path is not None
        with open(path, "rb") as file:
            self._file = io.BytesIO()
            self._file.write(file.read(size))
        os.unlink(path)
        self._path = None


def _own(path: str, flags: int) -> int:
    """Open a file that only its owner may use."""
    return os.open(path, flags, 0o600)


@functools.cache
def _warn_full(folder: str, why: str) -> None:
    _log.warning(
        "joinengine: %s takes no more files (%s), so joinengine reads files of the object store "
        "again in every batch; give the executors more disk space",
        folder,
        why,
    )


@functools.cache
def file_cache() -> FileCache:
    """The cache of this process: that of its executor or, without one, of the machine."""
    return FileCache(folder_of(os.environ))


def folder_of(environment: Mapping[str, str]) -> str:
    """`JOINENGINE_CACHE`, or a folder that goes with the executor, or a temporary one.

    >>> folder_of({"SPARK_LOCAL_DIRS": "/scratch/blockmgr-1,/other"})
    '/scratch/blockmgr-1/joinengine'
    """
    chosen = environment.get("JOINENGINE_CACHE")
    if chosen:
        return chosen
    executors = environment.get("SPARK_LOCAL_DIRS")
    if executors:
        return f"{executors.split(',')[0]}/joinengine"
    return _own_folder(f"{tempfile.gettempdir()}/joinengine-cache-{os.getuid()}")


def _own_folder(path: str) -> str:
    """`path`, made for this user alone; a new folder if anybody else may write to it."""
    with suppress(OSError):  # a disk without room for a folder has none for drafts: see `draft`
        os.makedirs(path, mode=PRIVATE, exist_ok=True)
        facts = os.lstat(path)
        if (facts.st_uid, facts.st_mode) != (os.getuid(), stat.S_IFDIR | PRIVATE):
            path = tempfile.mkdtemp(prefix="joinengine-cache-")
            atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
