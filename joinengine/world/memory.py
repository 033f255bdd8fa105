"""A world in memory, in which everything that happens follows from the calls alone.

Why: a test of the engine, or of a user's operator, can run a whole query without a disk or a clock,
and every run is the same.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from typing_extensions import override

from joinengine.world.storage import Entry, Fetched, Storage, StoredFile
from joinengine.world.world import World


class _Output(io.BytesIO):
    """A file that exists once it is closed."""

    def __init__(self, files: dict[str, bytes], path: str) -> None:
        super().__init__()
        self._files, self._path = files, path

    @override
    def close(self) -> None:
        if not self.closed:
            self._files[self._path] = self.getvalue()
        super().close()


@dataclass(frozen=True, slots=True)
class MemoryStorage(Storage):
    """Files as a dict from paths to contents, which all storages of a world share."""

    folder: str = field()  # field(): else the protocol's property would be the default
    files: dict[str, bytes]
    fetched: Fetched | None = None

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def _content(self, name: str) -> bytes:
        if self._path(name) not in self.files:
            raise FileNotFoundError(self._path(name))
        return self.files[self._path(name)]

    @override
    def at(self, name: str) -> MemoryStorage:
        return MemoryStorage(self._path(name), self.files)

    @override
    def make(self, mode: int | None = None) -> None:
        pass

    @override
    def entries(self) -> list[Entry]:
        start = f"{self.folder}/"
        below = (p.removeprefix(start).partition("/") for p in self.files if p.startswith(start))
        return sorted({Entry(name, bool(rest)) for name, rest, _ in below})

    @override
    def names(self) -> list[str]:
        return [entry.name for entry in self.entries()]

    @override
    def exists(self, name: str) -> bool:
        return self._path(name) in self.files or bool(self.at(name).names())

    @override
    def get(self, name: str) -> bytes:
        return self._content(name)

    @override
    def create(self, name: str, content: bytes) -> bool:
        return self.files.setdefault(self._path(name), content) is content

    @override
    def put(self, name: str, content: bytes | memoryview) -> None:
        self.files[self._path(name)] = bytes(content)

    @override
    def move(self, name: str, to: str) -> None:
        self.files[self._path(to)] = self._content(name)
        del self.files[self._path(name)]

    @override
    def copy(self, name: str, to: str) -> None:
        self.files[self._path(to)] = self._content(name)

    @override
    def delete(self, *names: str) -> None:
        for name in names:
            self.files.pop(self._path(name), None)

    @override
    def delete_folder(self, name: str) -> None:
        for path in [
            path_below for path_below in self.files if path_below.startswith(f"{self._path(name)}/")
        ]:
            del self.files[path]

    @override
    def output(self, name: str) -> io.BytesIO:
        return _Output(self.files, self._path(name))

    @override
    def map(self, name: str) -> pa.Buffer:
        return pa.py_buffer(self._content(name))

    @override
    def is_near(self, name: str) -> bool:
        return True

    @override
    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        return [self.map(name).slice(start, end - start) for start, end in ranges]

    @override
    def forget(self, name: str) -> bool:
        return False

    @override
    def seal(self, name: str) -> StoredFile:
        content = self._content(name)
        return StoredFile(name.rpartition("/")[2], len(content), zlib.crc32(content))


@dataclass
class MemoryWorld(World):
    """Its clock goes on by 1/1024 s whenever it is read; nonces are numbered.

    A power of two is exact in floats, so that a duration does not depend on when it began.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    readings: int = 0
    nonces: int = 0

    @override
    def now_s(self) -> float:
        self.readings += 1
        return 1.8e9 + self.readings / 1024

    @override
    def timer_s(self) -> float:
        self.readings += 1
        return self.readings / 1024

    @override
    def sleep(self, seconds: float) -> None:
        self.readings += int(seconds * 1024)

    @override
    def nonce(self) -> str:
        self.nonces += 1
        return f"{self.nonces:012d}"

    @override
    def process(self) -> dict[str, str | int]:
        return {"host": "memory", "pid": 1}

    @override
    def storage(
        self, folder: str, *, fsync: bool = False, cache_bytes: int = 0, is_behind: bool = False
    ) -> MemoryStorage:
        return MemoryStorage(folder, self.files)
