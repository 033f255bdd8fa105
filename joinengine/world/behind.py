"""Files that are written to the executor's own disk first, and uploaded in the background.

Why: a batch whose tuples are on the disks of two executors need not wait for a store. So a task
writes its run files to the disk of its executor, threads of the worker upload them while the next
batch runs, and the driver looks in the store which files are there.

Law: a file is removed from the disk once the store has it, and not before. Until then, only its
executor can read it, and it is lost with the executor. Files never change, so uploading one twice
is harmless: a new worker uploads what another has left.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
from typing_extensions import override

from joinengine.model.texts import in_a_line
from joinengine.world.file_cache import file_cache
from joinengine.world.local import PRIVATE, LocalStorage
from joinengine.world.remote import RemoteStorage
from joinengine.world.storage import Entry, Fetched, Storage, StoredFile

#: Parallel uploads of a worker, since a request mostly waits.
_THREADS = 4
#: The pause before the upload of a file is tried again, in seconds.
_PAUSE_S = 0.5
_log = logging.getLogger("joinengine")


@dataclass(frozen=True, slots=True)
class Behind(Storage):
    """The files of a place; some are still only on the disk of this executor."""

    durable: Storage
    near: Storage
    uploads: Uploads

    def upload(self, name: str) -> None:
        """Upload a file, and remove it from the disk; do nothing if it is not there any more."""
        try:
            content = self.near.map(name)
        except FileNotFoundError:
            return
        self.durable.put(name, memoryview(content).cast("B"))
        if isinstance(self.durable, RemoteStorage) and isinstance(self.near, LocalStorage):
            self.durable.keep(name, self.near.path(name))
        self.near.delete(name)

    @property
    @override
    def folder(self) -> str:
        return self.durable.folder

    @property
    @override
    def fetched(self) -> Fetched | None:
        return self.durable.fetched or Fetched()

    @override
    def at(self, name: str) -> Behind:
        return Behind(self.durable.at(name), self.near.at(name), self.uploads)

    @override
    def make(self, mode: int | None = None) -> None:
        self.durable.make(mode)

    @override
    def entries(self) -> list[Entry]:
        """Only what other executors see, too."""
        return self.durable.entries()

    @override
    def names(self) -> list[str]:
        """Only what other executors see, too."""
        return self.durable.names()

    @override
    def exists(self, name: str) -> bool:
        return self.near.exists(name) or self.durable.exists(name)

    @override
    def get(self, name: str) -> bytes:
        content: bytes = self.map(name).to_pybytes()
        return content

    @override
    def create(self, name: str, content: bytes) -> bool:
        """At once in the store, visible to all."""
        return self.durable.create(name, content)

    @override
    def put(self, name: str, content: bytes | memoryview) -> None:
        """At once in the store, visible to all."""
        self.durable.put(name, content)

    @override
    def move(self, name: str, to: str) -> None:
        """Only for files in the store."""
        self.durable.move(name, to)

    @override
    def copy(self, name: str, to: str) -> None:
        """Only for files in the store."""
        self.durable.copy(name, to)

    @override
    def delete(self, *names: str) -> None:
        self.near.delete(*names)
        self.durable.delete(*names)

    @override
    def delete_folder(self, name: str) -> None:
        self.near.delete_folder(name)
        self.durable.delete_folder(name)

    @override
    def output(self, name: str) -> Any:
        """A file on the disk; `seal` starts its upload."""
        return self.near.output(name)

    @override
    def map(self, name: str) -> pa.Buffer:
        try:
            return self.near.map(name)
        except FileNotFoundError:
            return self.durable.map(name)

    @override
    def is_near(self, name: str) -> bool:
        return self.near.exists(name) or self.durable.is_near(name)

    @override
    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        try:
            return self.near.get_ranges(name, ranges)
        except FileNotFoundError:
            return self.durable.get_ranges(name, ranges)

    @override
    def forget(self, name: str) -> bool:
        """False for a file that is not uploaded: it has no other copy."""
        return self.durable.forget(name)

    @override
    def seal(self, name: str) -> StoredFile:
        """Start the upload; other executors see the file some time later."""
        stored = self.near.seal(name)
        self.uploads.add(self, name)
        return stored


class Uploads:
    """Threads of this process that upload files, and end with it."""

    def __init__(self) -> None:
        self._waiting = SimpleQueue[tuple[Behind, str]]()
        for _ in range(_THREADS):
            threading.Thread(target=self._work, name="joinengine-upload", daemon=True).start()

    def add(self, storage: Behind, name: str) -> None:
        """Upload a file; returns at once."""
        self._waiting.put((storage, name))

    def _work(self) -> None:
        failed = False
        while True:
            storage, name = self._waiting.get()
            try:
                storage.upload(name)
                failed = False
            except Exception as error:  # whatever it was, the store may come back later
                if not failed:
                    place = f"{storage.folder}/{name}"
                    _log.warning("joinengine: %s is not uploaded yet: %s", place, in_a_line(error))
                failed = True
                time.sleep(_PAUSE_S)
                self._waiting.put((storage, name))


@cache
def _uploads(process: int) -> Uploads:
    """The threads of a process; threads do not survive a fork."""
    return Uploads()


def behind(durable: Storage) -> Behind:
    """The files of `durable`, written to the disk of this executor first.

    Their folder is beside the file cache, which may remove any of its files.
    """
    folder = hashlib.sha1(durable.folder.encode()).hexdigest()[:16]
    near = LocalStorage(f"{file_cache().folder}-pending/{folder}")
    storage, process = Behind(durable, near, _uploads(os.getpid())), os.getpid()
    if (process, folder) not in _taken_up:
        _taken_up.add((process, folder))
        near.make(PRIVATE)
        for name in near.names():
            storage.uploads.add(storage, name)
    return storage


#: The processes and folders that have already uploaded the files left by other processes.
_taken_up = set[tuple[int, str]]()
