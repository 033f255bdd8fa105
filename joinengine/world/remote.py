"""Storage in an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure.

How: `obstore` makes the requests, with credentials of its own chain (environment, metadata service,
web identity), which are never written anywhere. A file is written to the local disk and uploaded
when it is closed; a file that never changes may stay there as a copy (joinengine.world.cache).

Law: a file is seen whole or not at all; `create` succeeds once for a name (the probe of
joinengine.world.probing tries it before a query starts).
Cost: a verb is one request, of tens of milliseconds; `move` is two, and `exists` up to two.
"""

from __future__ import annotations

import io
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any

import pyarrow as pa
from typing_extensions import override

from joinengine.model.errors import InvalidRequest, StoreUnreachable
from joinengine.world.cache import FileCache, file_cache
from joinengine.world.storage import Entry, Storage, StoredFile

#: Schemes of URLs that are served, and how many parts of the URL name the bucket.
SCHEMES = {"s3": 1, "s3a": 1, "gs": 1, "az": 2, "abfs": 1, "abfss": 1}
_URL = re.compile(r"([a-z0-9]+)://(.*)", re.DOTALL)
#: How long a request is repeated, in seconds; a task should outlast a restart of the store.
PATIENCE_S = 30
#: Between two attempts of ours at a create whose outcome is unknown.
_PAUSE_S = 0.2
#: Bytes of one ranged request of a large file.
_PART_BYTES = 8 << 20


def is_url(folder: str) -> bool:
    """Whether a folder is named by the URL of an object store that is served.

    >>> is_url("s3://bucket/x"), is_url("/tmp/x"), is_url("hdfs://host/x")
    (True, False, False)
    """
    match = _URL.match(folder)
    return match is not None and match[1] in SCHEMES


class _Upload(pa.OSFile):  # type: ignore[misc] # pyarrow has no types
    """A draft on the local disk that is uploaded when it is closed."""

    done: Callable[[pa.Buffer], None]
    path: str

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        size = os.stat(self.path).st_size
        self.done(pa.memory_map(self.path).read_buffer() if size else pa.py_buffer(b""))


class _Held(pa.BufferOutputStream):  # type: ignore[misc]
    """A draft in memory that is uploaded when it is closed."""

    done: Callable[[pa.Buffer], None]

    def close(self) -> None:
        if not self.closed:
            self.done(self.getvalue())


@dataclass(frozen=True, slots=True)
class RemoteStorage(Storage):
    """The files below a URL; `cache_bytes` as in `World.storage`."""

    folder: str = field()
    cache_bytes: int = 0
    #: size and CRC of the files that this storage has written and not yet sealed
    _written: dict[str, StoredFile] = field(default_factory=dict, compare=False, repr=False)

    @override
    def at(self, name: str) -> RemoteStorage:
        return RemoteStorage(f"{self.folder}/{name}", self.cache_bytes)

    @override
    def make(self) -> None:
        """Folders are parts of names."""

    @override
    def entries(self) -> list[Entry]:
        """One request for a thousand names."""
        with self._asking("list"):
            found = _library().list_with_delimiter(self._store, f"{self._key()}/")
        folders = [Entry(_last(path), True) for path in found["common_prefixes"]]
        files = [Entry(_last(one["path"]), False) for one in found["objects"]]
        return [one for one in folders + files if one.name[0] != "."]

    @override
    def names(self) -> list[str]:
        """One request for a thousand."""
        return [one.name for one in self.entries()]

    @override
    def exists(self, name: str) -> bool:
        if self.cache_bytes and self._cache.find(self._url(name)) is not None:
            return True
        with self._asking("look for", name):
            try:
                _library().head(self._store, self._key(name))
            except FileNotFoundError:
                below = _library().list(self._store, prefix=f"{self._key(name)}/", chunk_size=1)
                return next(iter(below), None) is not None
        return True

    @override
    def get(self, name: str) -> bytes:
        with self._asking("read", name):
            return bytes(_library().get(self._store, self._key(name)).bytes())

    @override
    def create(self, name: str, content: bytes) -> bool:
        """An attempt whose outcome is unknown is repeated; then False may mean this very writer."""
        give_up = time.monotonic() + PATIENCE_S
        errors = _library().exceptions
        while True:
            try:
                _library().put(self._store, self._key(name), content, mode="create")
            except (errors.AlreadyExistsError, errors.PreconditionError):
                return False
            except (errors.BaseError, FileNotFoundError) as error:
                lasting = (*_final(errors), FileNotFoundError)  # there is no bucket
                if isinstance(error, lasting) or time.monotonic() > give_up:
                    raise self._refusal("create", name, error) from None
                time.sleep(_PAUSE_S)
            else:
                return True

    @override
    def put(self, name: str, content: bytes) -> None:
        with self._asking("write", name):
            _library().put(self._store, self._key(name), content)

    @override
    def move(self, name: str, to: str) -> None:
        """A copy and a removal: for a moment both names are there, each with the whole file."""
        self.copy(name, to)
        self.delete(name)

    @override
    def copy(self, name: str, to: str) -> None:
        """Within the store."""
        with self._asking("copy", name):
            _library().copy(self._store, self._key(name), self._key(to))

    @override
    def delete(self, *names: str) -> None:
        """One request for a thousand."""
        if not names:
            return
        with self._asking("delete", names[0]):
            _library().delete(self._store, [self._key(name) for name in names])
        if self.cache_bytes:
            for name in names:
                self._cache.forget(self._url(name))

    @override
    def delete_folder(self, name: str) -> None:
        with self._asking("delete", name):
            for some in _library().list(self._store, prefix=f"{self._key(name)}/"):
                _library().delete(self._store, [one["path"] for one in some])

    @override
    def output(self, name: str) -> Any:
        """A draft on the local disk, or in memory if the disk is full; uploaded when closed."""
        draft = self._cache.draft()
        sink: Any
        if draft is None:
            sink = _Held()
        else:
            sink = _Upload(draft, "wb")
            sink.path = draft
        sink.done = lambda content: self._upload(name, draft, content)
        return sink

    def _upload(self, name: str, draft: str | None, content: pa.Buffer) -> None:
        try:
            with self._asking("write", name):
                _library().put(self._store, self._key(name), memoryview(content).cast("B"))
            self._written[name] = StoredFile(_last(name), content.size, zlib.crc32(content))
            if draft is not None and self.cache_bytes:
                self._cache.adopt(draft, self._url(name), self.cache_bytes)
                draft = None
        finally:
            if draft is not None:
                os.unlink(draft)

    @override
    def map(self, name: str) -> pa.Buffer:
        """From the cache; else it is read, and kept if files of this storage are."""
        here, url = self._cache, self._url(name)
        path = here.find(url) if self.cache_bytes else None
        if path is not None:
            here.tally.hits += 1
            return pa.memory_map(path).read_buffer()
        content = self._fetched(name)
        here.tally.misses += 1
        here.tally.fetched_bytes += content.size
        draft = here.draft() if self.cache_bytes and content.size else None
        if draft is None:
            return content
        with open(draft, "wb") as file:
            file.write(content)
        kept = pa.memory_map(draft).read_buffer()
        here.adopt(draft, url, self.cache_bytes)
        return kept

    @override
    def forget(self, name: str) -> bool:
        return bool(self.cache_bytes) and self._cache.forget(self._url(name))

    @override
    def seal(self, name: str) -> StoredFile:
        """What was uploaded; it is durable."""
        return self._written.pop(name)

    def _fetched(self, name: str) -> pa.Buffer:
        """A whole file; a large one by requests of a bounded size, side by side."""
        with self._asking("read", name):
            key, first = self._key(name), {"range": (0, _PART_BYTES)}
            found = _library().get(self._store, key, options=first)
            size, head = found.meta["size"], found.bytes()
            if size <= _PART_BYTES:
                return pa.py_buffer(head)
            starts = list(range(_PART_BYTES, size, _PART_BYTES))
            ends = [min(start + _PART_BYTES, size) for start in starts]
            parts = _library().get_ranges(self._store, key, starts=starts, ends=ends, coalesce=0)
            return pa.py_buffer(b"".join([head, *parts]))

    @property
    def _store(self) -> Any:
        return store_of(_root(self.folder)[0], os.getpid())

    @property
    def _cache(self) -> FileCache:
        return file_cache()

    def _key(self, name: str = "") -> str:
        return "/".join(part for part in (_root(self.folder)[1], name) if part)

    def _url(self, name: str) -> str:
        return f"{self.folder}/{name}"

    @contextmanager
    def _asking(self, verb: str, name: str = "") -> Iterator[None]:
        """An error of the store inside becomes one sentence; a missing file stays one."""
        try:
            yield
        except _library().exceptions.BaseError as error:
            raise self._refusal(verb, name, error) from None
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._refusal(verb, name, error) from None
            raise FileNotFoundError(f"{self.folder}/{name}".rstrip("/")) from None

    def _refusal(self, verb: str, name: str, error: Exception) -> Exception:
        place = f"{self.folder}/{name}".rstrip("/")
        bucket, told = _root(self.folder)[0], str(error)
        if "NoSuchBucket" in told or "ContainerNotFound" in told:
            return InvalidRequest(
                f"there is no bucket {bucket}: make it, or correct the name (asked for {place})"
            )
        if "169.254.169.254" in told or "metadata.google" in told:
            return InvalidRequest(
                f"no credentials for {bucket}: set those of the store in the environment of the "
                f"driver and of the executors (for S3 AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
                f"AWS_REGION), or run where the machine has a role"
            )
        if isinstance(error, _final(_library().exceptions)):
            return InvalidRequest(
                f"{bucket} refuses to {verb} {place} with these credentials: give them the right "
                f"to read, write, list and delete there"
            )
        return StoreUnreachable(
            f"the object store did not {verb} {place} within {PATIENCE_S} s "
            f"({_reason(told)}); the batch is not committed: start the query again when it answers"
        )


def _reason(told: str) -> str:
    """The part of an error of the library that a reader understands.

    >>> _reason("Generic S3 error: Error performing PUT http://h/b/x in 3s - HTTP error: sending")
    'HTTP error: sending'
    """
    first = told.partition("\n")[0]
    return first.rpartition(" - ")[2].partition("<")[0].strip(" :")


def _final(errors: Any) -> tuple[type[Exception], ...]:
    """The errors that no repetition mends."""
    return errors.PermissionDeniedError, errors.UnauthenticatedError


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


@lru_cache(maxsize=1024)
def _root(url: str) -> tuple[str, str]:
    """The URL of the bucket, and the key of the folder in it.

    >>> _root("s3://bucket/a/b"), _root("az://account/box/a")
    (('s3://bucket', 'a/b'), ('az://account/box', 'a'))
    """
    match = _URL.match(url)
    assert match is not None, url
    parts = match[2].split("/")
    named = SCHEMES[match[1]]
    return f"{match[1]}://{'/'.join(parts[:named])}", "/".join(parts[named:])


def _library() -> Any:
    """The package `obstore`. Raises InvalidRequest, which says how to get it, if it is missing."""
    try:
        import obstore  # noqa: PLC0415 # an extra: who needs no object store need not have it
        import obstore.exceptions  # noqa: PLC0415
    except ImportError:
        raise InvalidRequest(
            "object stores need the package obstore, which this Python lacks: pip install "
            "'joinengine[s3]', for the driver and for the executors"
        ) from None
    return obstore


@lru_cache(maxsize=16)
def store_of(bucket: str, process: int) -> Any:
    """The client of a bucket; each process has its own, because connections do not survive a fork.

    Time-outs and repetitions are those of a task, which takes seconds.
    """
    _library()
    from obstore.store import from_url  # noqa: PLC0415

    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return from_url(
        bucket,
        client_options={"timeout": "10s", "connect_timeout": "3s", "allow_http": plain},
        retry_config={
            "max_retries": 100,
            "retry_timeout": timedelta(seconds=PATIENCE_S),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=2),
                "base": 2,
            },
        },
    )


# Files of users, by their URLs


def files_below(place: str) -> Iterator[tuple[str, int, int, float]]:
    """(URL, size, time of modification in ns, the same in s) of each file below a URL, or at it."""
    bucket, key = _root(place)
    storage = RemoteStorage(place)
    with storage._asking("list"):
        at = file_at(place)
        if at is not None:
            yield at
        for some in _library().list(store_of(bucket, os.getpid()), prefix=f"{key}/".lstrip("/")):
            for one in some:
                yield _facts(bucket, one)


def file_at(url: str) -> tuple[str, int, int, float] | None:
    """The same of one file; None: there is none."""
    bucket, key = _root(url)
    if not key:
        return None
    try:
        with RemoteStorage(url)._asking("look for"):
            return _facts(bucket, _library().head(store_of(bucket, os.getpid()), key))
    except FileNotFoundError:
        return None


def reader_of(url: str) -> Any:
    """A file to read from, which asks for the ranges that are read. Raises FileNotFoundError."""
    found = file_at(url)
    if found is None:
        raise FileNotFoundError(url)
    return pa.PythonFile(_Ranges(url, found[1]), "r")


class _Ranges(io.RawIOBase):
    """A file of the store, of which each read is one request."""

    def __init__(self, url: str, size: int) -> None:
        super().__init__()
        self._url, self._size, self._at = url, size, 0

    @override
    def seekable(self) -> bool:
        return True

    @override
    def readable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._at

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    @override
    def read(self, size: int = -1) -> Any:
        end = self._size if size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        bucket, key = _root(self._url)
        with RemoteStorage(self._url)._asking("read"):
            found = _library().get_range(
                store_of(bucket, os.getpid()), key, start=self._at, end=end
            )
        self._at = end
        return bytes(found)


def _facts(bucket: str, found: Any) -> tuple[str, int, int, float]:
    modified = found["last_modified"]
    seconds = modified.timestamp()
    return f"{bucket}/{found['path']}", found["size"], round(seconds * 1e9), seconds
