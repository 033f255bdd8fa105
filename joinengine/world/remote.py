"""Storage in an object store: S3 or a store with its protocol, Google Cloud Storage, Azure.

How: joinengine.world.buckets makes the requests. A file is written to the local disk and uploaded
when it is closed; a file that never changes may stay there as a copy (joinengine.world.file_cache).

Law: a file is seen whole or not at all; `create` succeeds once for a name (the probe of
joinengine.world.store_probe tries it before a query starts).
Cost: a method makes one request, of tens of milliseconds; `move` makes two, `exists` up to two.
"""

from __future__ import annotations

import io
import os
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from typing_extensions import override

from joinengine.world.buckets import (
    PATIENCE_S,
    asking,
    lasting_errors,
    library,
    refusal,
    root_of,
    store_of,
)
from joinengine.world.file_cache import Draft, FileCache, file_cache
from joinengine.world.storage import Entry, Fetched, Storage, StoredFile

#: The pause before a create with an unknown outcome is tried again, in seconds.
_PAUSE_S = 0.2
#: Bytes of one ranged request of a large file.
_PART_BYTES = 8 << 20


class _Upload(io.RawIOBase):
    """A draft that is uploaded when it is closed."""

    def __init__(self, draft: Draft, done: Callable[[Draft], None]) -> None:
        super().__init__()
        self._draft, self._done = draft, done

    @override
    def writable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._draft.tell()

    @override
    def write(self, data: Any) -> int:
        return self._draft.write(data)

    @override
    def close(self) -> None:
        if not self.closed:
            super().close()
            self._done(self._draft)


@dataclass(frozen=True, slots=True)
class RemoteStorage(Storage):
    """The files below a URL; `cache_bytes` as in `World.storage`."""

    folder: str = field()
    cache_bytes: int = 0
    fetched: Fetched = field(default_factory=Fetched, compare=False, repr=False)
    #: size and CRC of the files that this storage has written and not yet sealed
    _written: dict[str, StoredFile] = field(default_factory=dict, compare=False, repr=False)

    @override
    def at(self, name: str) -> RemoteStorage:
        return RemoteStorage(f"{self.folder}/{name}", self.cache_bytes)

    @override
    def make(self, mode: int | None = None) -> None:
        """Nothing to do: folders are parts of names, and policies give permissions."""

    @override
    def entries(self) -> list[Entry]:
        """One request for each thousand names."""
        with asking("list", self.folder):
            listing = library().list_with_delimiter(self._store, f"{self._key()}/")
        folders = [Entry(_last(path), True) for path in listing["common_prefixes"]]
        files = [Entry(_last(facts["path"]), False) for facts in listing["objects"]]
        return [entry for entry in folders + files if entry.name[0] != "."]

    @override
    def names(self) -> list[str]:
        """One request for a thousand."""
        return [entry.name for entry in self.entries()]

    @override
    def exists(self, name: str) -> bool:
        if self.cache_bytes and self._cache.find(self._url(name)) is not None:
            return True
        with asking("look for", self._url(name)):
            try:
                library().head(self._store, self._key(name))
            except FileNotFoundError:
                below = library().list(self._store, prefix=f"{self._key(name)}/", chunk_size=1)
                return next(iter(below), None) is not None
        return True

    @override
    def get(self, name: str) -> bytes:
        with asking("read", self._url(name)):
            return bytes(library().get(self._store, self._key(name)).bytes())

    @override
    def create(self, name: str, content: bytes) -> bool:
        """Repeats an attempt with an unknown outcome; False may then mean this very writer."""
        give_up = time.monotonic() + PATIENCE_S
        errors = library().exceptions
        while True:
            try:
                library().put(self._store, self._key(name), content, mode="create")
            except (errors.AlreadyExistsError, errors.PreconditionError):
                return False
            except (errors.BaseError, FileNotFoundError) as error:
                lasting = (*lasting_errors(errors), FileNotFoundError)  # there is no bucket
                if isinstance(error, lasting) or time.monotonic() > give_up:
                    raise refusal("create", self._url(name), error) from None
                time.sleep(_PAUSE_S)
            else:
                return True

    @override
    def put(self, name: str, content: bytes | memoryview) -> None:
        with asking("write", self._url(name)):
            library().put(self._store, self._key(name), content)

    @override
    def move(self, name: str, to: str) -> None:
        """A copy and a removal: for a moment both names exist, each with the whole file."""
        self.copy(name, to)
        self.delete(name)

    @override
    def copy(self, name: str, to: str) -> None:
        """Within the store."""
        with asking("copy", self._url(name)):
            library().copy(self._store, self._key(name), self._key(to))

    @override
    def delete(self, *names: str) -> None:
        """One request for a thousand."""
        if not names:
            return
        with asking("delete", self._url(names[0])):
            self._remove([self._key(name) for name in names])
        if self.cache_bytes:
            for name in names:
                self._cache.forget(self._url(name))

    @override
    def delete_folder(self, name: str) -> None:
        with asking("delete", self._url(name)):
            for some in library().list(self._store, prefix=f"{self._key(name)}/"):
                self._remove([facts["path"] for facts in some])

    def _remove(self, keys: list[str]) -> None:
        try:
            library().delete(self._store, keys)
        except FileNotFoundError:  # Azure and Google stop at a file that is already gone
            for key in keys:
                with suppress(FileNotFoundError):
                    library().delete(self._store, key)

    @override
    def output(self, name: str) -> Any:
        """A draft on the local disk, or in memory if the disk is full; uploaded when closed."""
        return _Upload(self._cache.draft(), lambda draft: self._upload(name, draft))

    def _upload(self, name: str, draft: Draft) -> None:
        try:
            content = draft.content()
            with asking("write", self._url(name)):
                library().put(self._store, self._key(name), memoryview(content).cast("B"))
            self._written[name] = StoredFile(_last(name), content.size, zlib.crc32(content))
            if self.cache_bytes:
                self._cache.adopt(draft, self._url(name), self.cache_bytes)
        finally:
            draft.drop()

    @override
    def map(self, name: str) -> pa.Buffer:
        """From the cache; otherwise fetched, and cached if this storage has a cache."""
        cache, url = self._cache, self._url(name)
        path = cache.find(url) if self.cache_bytes else None
        if path is not None:
            with suppress(FileNotFoundError):  # another process has just removed it
                return pa.memory_map(path).read_buffer()
        content = self._fetched(name)
        self.fetched.files += 1
        self.fetched.size_bytes += content.size
        if not (self.cache_bytes and content.size):
            return content
        draft = cache.draft()
        try:
            draft.write(content)
            kept = draft.content()
            cache.adopt(draft, url, self.cache_bytes)
        finally:
            draft.drop()
        return kept

    def keep(self, name: str, path: str) -> None:
        """Make a local file with the content of a file in the store its copy here."""
        if self.cache_bytes:
            self._cache.keep(path, self._url(name), self.cache_bytes)

    @override
    def is_near(self, name: str) -> bool:
        return bool(self.cache_bytes) and self._cache.find(self._url(name)) is not None

    @override
    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """One request for ranges that lie close together; they are not cached."""
        starts, ends = ([span[i] for span in ranges] for i in (0, 1))
        with asking("read", self._url(name)):
            parts = library().get_ranges(self._store, self._key(name), starts=starts, ends=ends)
        buffers = [pa.py_buffer(part) for part in parts]
        self.fetched.size_bytes += sum(buffer.size for buffer in buffers)
        return buffers

    @override
    def forget(self, name: str) -> bool:
        return bool(self.cache_bytes) and self._cache.forget(self._url(name))

    @override
    def seal(self, name: str) -> StoredFile:
        """The size and CRC of the upload, which is durable."""
        return self._written.pop(name)

    def _fetched(self, name: str) -> pa.Buffer:
        """A whole file; a large one by requests of a bounded size, side by side."""
        with asking("read", self._url(name)):
            key, first = self._key(name), {"range": (0, _PART_BYTES)}
            answer = library().get(self._store, key, options=first)
            size, head = answer.meta["size"], answer.bytes()
            if size <= _PART_BYTES:
                return pa.py_buffer(head)
            starts = list(range(_PART_BYTES, size, _PART_BYTES))
            ends = [min(start + _PART_BYTES, size) for start in starts]
            parts = library().get_ranges(self._store, key, starts=starts, ends=ends, coalesce=0)
            return pa.py_buffer(b"".join([head, *parts]))

    @property
    def _store(self) -> Any:
        return store_of(root_of(self.folder)[0], os.getpid())

    @property
    def _cache(self) -> FileCache:
        return file_cache()

    def _key(self, name: str = "") -> str:
        return "/".join(part for part in (root_of(self.folder)[1], name) if part)

    def _url(self, name: str) -> str:
        return f"{self.folder}/{name}"


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
