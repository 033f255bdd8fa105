"""The file cache: drafts on their way to an object store, and whole copies of files that lie there.

Why: a run file is read in every batch until it is merged, and never changes. So an executor that
wrote it, or has read it once, keeps it on its own disk.

Law: a copy is one of a file that never changes, so it is never stale; it may vanish at any moment,
and who has mapped it goes on with it. Several processes of a machine share a folder.
Cost: a copy that is there costs one look at the folder and no request.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

#: Free disk that copies never take, in bytes.
RESERVE_BYTES = 1 << 30
#: Copies are counted anew after this many have been added, since other processes add and remove.
_COUNT_EVERY = 32

_log = logging.getLogger("joinengine")


@dataclass
class FileCache:
    """A folder of this machine's own disk."""

    folder: str
    _added: int = 0

    def find(self, url: str) -> str | None:
        """The path of the copy of a file; None: there is none. It counts as used now."""
        path = self._path(url)
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        return path

    def draft(self) -> str | None:
        """The path of a new file; None: the disk has no room, so it must stay in memory."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            if shutil.disk_usage(self.folder).free > RESERVE_BYTES:
                return f"{self.folder}/.{uuid.uuid4().hex}"
        except OSError:
            pass
        _warn_full(self.folder)
        return None

    def adopt(self, draft: str, url: str, cache_bytes: int) -> None:
        """Make a draft the copy of a file; the copies used longest ago go, above `cache_bytes`."""
        path = self._path(url)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.replace(draft, path)
        self._added += 1
        if self._added % _COUNT_EVERY == 1:
            self._thin(cache_bytes)

    def forget(self, url: str) -> bool:
        """Drop a copy; False: there is none."""
        try:
            os.unlink(self._path(url))
        except FileNotFoundError:
            return False
        return True

    def forget_all(self) -> None:
        """Drop all copies."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, url: str) -> str:
        folder, _, name = url.rpartition("/")
        return f"{self.folder}/{hashlib.sha1(folder.encode()).hexdigest()[:16]}/{name}"

    def _thin(self, cache_bytes: int) -> None:
        """Remove the copies that were used longest ago, until the others fit."""
        found = list[tuple[float, int, str]]()
        for below, _, names in os.walk(self.folder):
            for name in names:
                with suppress(FileNotFoundError):
                    path = os.path.join(below, name)
                    facts = os.stat(path)
                    found.append((facts.st_mtime, facts.st_size, path))
        over = sum(size for _, size, _ in found) - cache_bytes
        free = shutil.disk_usage(self.folder).free
        over = max(over, RESERVE_BYTES - free)
        for _, size, path in sorted(found):
            if over <= 0:
                return
            if not os.path.basename(path).startswith("."):  # drafts are being written
                with suppress(FileNotFoundError):
                    os.unlink(path)
                    over -= size


@functools.cache
def _warn_full(folder: str) -> None:
    _log.warning(
        "joinengine: the disk of %s has less than %s GB left, so files of the object store are not "
        "kept there and are read again in every batch; give the executors more disk",
        folder,
        RESERVE_BYTES >> 30,
    )


@functools.cache
def file_cache() -> FileCache:
    """The folder of this process: of its executor, or of the machine if there is none."""
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
    return f"{tempfile.gettempdir()}/joinengine-cache-{os.getuid()}"
