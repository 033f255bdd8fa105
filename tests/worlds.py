"""A world in memory, in which everything that happens follows from the calls alone."""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass, field

import pyarrow as pa

from joinengine.world.storage import Entry, StoredFile


class _Output(io.BytesIO):
    def __init__(self, files, path):
        super().__init__()
        self.files, self.path = files, path

    def close(self):
        if not self.closed:
            self.files[self.path] = self.getvalue()
        super().close()


@dataclass(frozen=True)
class MemoryStorage:
    """Files as a dict from paths to contents, which all storages of a world share."""

    folder: str
    files: dict
    fetched: None = None

    def _path(self, name):
        return f"{self.folder}/{name}"

    def _found(self, name):
        if self._path(name) not in self.files:
            raise FileNotFoundError(self._path(name))
        return self.files[self._path(name)]

    def at(self, name):
        return MemoryStorage(self._path(name), self.files)

    def make(self, mode=None):
        pass

    def entries(self):
        start = f"{self.folder}/"
        below = (p.removeprefix(start).partition("/") for p in self.files if p.startswith(start))
        return sorted({Entry(name, bool(rest)) for name, rest, _ in below})

    def names(self):
        return [one.name for one in self.entries()]

    def exists(self, name):
        return self._path(name) in self.files or bool(self.at(name).names())

    def get(self, name):
        return self._found(name)

    def create(self, name, content):
        return self.files.setdefault(self._path(name), content) is content

    def put(self, name, content):
        self.files[self._path(name)] = content

    def move(self, name, to):
        self.files[self._path(to)] = self._found(name)
        del self.files[self._path(name)]

    def copy(self, name, to):
        self.files[self._path(to)] = self._found(name)

    def delete(self, *names):
        for name in names:
            self.files.pop(self._path(name), None)

    def delete_folder(self, name):
        for found in [one for one in self.files if one.startswith(f"{self._path(name)}/")]:
            del self.files[found]

    def output(self, name):
        return _Output(self.files, self._path(name))

    def map(self, name):
        return pa.py_buffer(self._found(name))

    def is_near(self, name):
        return True

    def get_ranges(self, name, ranges):
        return [self.map(name).slice(start, end - start) for start, end in ranges]

    def forget(self, name):
        return False

    def seal(self, name):
        content = self._found(name)
        return StoredFile(name.rpartition("/")[2], len(content), zlib.crc32(content))


@dataclass
class MemoryWorld:
    """Its clock ticks whenever it is read, 1024 times a second; nonces are numbered.

    By powers of two: how long something took is then the same whenever it began.
    """

    files: dict = field(default_factory=dict)
    readings: int = 0
    nonces: int = 0

    def now_s(self):
        self.readings += 1
        return 1.8e9 + self.readings / 1024

    def timer_s(self):
        self.readings += 1
        return self.readings / 1024

    def sleep(self, seconds):
        self.readings += int(seconds * 1024)

    def nonce(self):
        self.nonces += 1
        return f"{self.nonces:012d}"

    def process(self):
        return {"host": "memory", "pid": 1}

    def storage(self, folder, *, fsync=False, cache_bytes=0, is_behind=False):
        return MemoryStorage(folder, self.files)
