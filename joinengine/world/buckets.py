"""Object stores as clients see them: URLs, buckets, requests, errors, and the files of users.

How: `obstore` makes the requests, with credentials of its own chain (environment, metadata service,
web identity), which are never written anywhere.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any

import pyarrow as pa
from typing_extensions import override

from joinengine.model.errors import InvalidRequest, StoreUnreachable

#: Schemes of URLs that are served; the bucket, or the container of an account, follows them.
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_URL = re.compile(r"([a-z0-9]+)://(.*)", re.DOTALL)
#: For how long a request is repeated, in seconds; a task should survive a restart of the store.
PATIENCE_S = 60


def is_url(folder: str) -> bool:
    """Whether a folder is named by the URL of an object store that is served.

    >>> is_url("s3://bucket/x"), is_url("/tmp/x"), is_url("hdfs://host/x")
    (True, False, False)
    """
    match = _URL.match(folder)
    return match is not None and match[1] in SCHEMES


@contextmanager
def asking(verb: str, url: str) -> Iterator[None]:
    """An error of the store in the block becomes one sentence; FileNotFoundError stays."""
    try:
        yield
    except library().exceptions.BaseError as error:
        raise refusal(verb, url, error) from None
    except FileNotFoundError as error:
        if _lacks_bucket(str(error)):
            raise refusal(verb, url, error) from None
        raise FileNotFoundError(url) from None


def refusal(verb: str, url: str, error: Exception) -> Exception:
    """The engine's error for an error of the library; `verb`: what the store was asked to do."""
    bucket, reason = root_of(url)[0], str(error)
    if _lacks_bucket(reason):
        return InvalidRequest(
            f"bucket {bucket} does not exist; create it, or correct the name (URL {url})"
        )
    if "Account must be specified" in reason:
        return InvalidRequest(
            f"{bucket} names no account of Azure; write abfss://container@account.dfs.core.windows"
            ".net/folder, or set AZURE_STORAGE_ACCOUNT_NAME for the driver and the executors"
        )
    if "169.254.169.254" in reason or "metadata.google" in reason:
        return InvalidRequest(
            f"no credentials for {bucket}; set them in the environment of the driver and of the "
            "executors (for S3 AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION), or run on "
            "a machine that has a role"
        )
    if isinstance(error, lasting_errors(library().exceptions)):
        return InvalidRequest(
            f"{bucket} does not let these credentials {verb} {url}; grant them the right to read, "
            "write, list and delete in this bucket"
        )
    return StoreUnreachable(
        f"the object store did not {verb} {url} within {PATIENCE_S} s ({_reason(reason)}); nothing "
        "is lost: start the query again when the store answers"
    )


def _lacks_bucket(reason: str) -> bool:
    return "NoSuchBucket" in reason or "ContainerNotFound" in reason


def _reason(text: str) -> str:
    """The part of an error of the library that a reader understands.

    >>> _reason("Generic S3 error: Error performing PUT http://h/b/x in 3s - HTTP error: sending")
    'HTTP error: sending'
    """
    first = text.partition("\n")[0]
    return first.rpartition(" - ")[2].partition("<")[0].strip(" :")


def lasting_errors(errors: Any) -> tuple[type[Exception], ...]:
    """The errors that do not go away if the request is repeated."""
    return errors.PermissionDeniedError, errors.UnauthenticatedError


@lru_cache(maxsize=1024)
def root_of(url: str) -> tuple[str, str]:
    """The URL of the bucket, and the key of the folder in it.

    >>> root_of("s3://bucket/a/b"), root_of("az://container/a")
    (('s3://bucket', 'a/b'), ('az://container', 'a'))
    """
    match = _URL.match(url)
    assert match is not None, url
    bucket, _, key = match[2].partition("/")
    return f"{match[1]}://{bucket}", key


def library() -> Any:
    """The package `obstore`. Raises InvalidRequest, which says how to get it, if it is missing."""
    try:
        import obstore  # noqa: PLC0415 # an extra: who needs no object store need not have it
        import obstore.exceptions  # noqa: PLC0415
    except ImportError:
        raise InvalidRequest(
            "object stores need the package obstore, which this Python lacks; run pip install "
            "'joinengine[s3]' for the driver and the executors"
        ) from None
    return obstore


def is_plain() -> bool:
    """Whether the environment names an object store without TLS."""
    return os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")


@lru_cache(maxsize=16)
def store_of(bucket: str, process: int) -> Any:
    """The client of a bucket; each process has its own, because connections do not survive a fork.

    Time-outs and repetitions are those of a task, which takes seconds.
    """
    library()
    from obstore.store import from_url  # noqa: PLC0415

    return from_url(
        bucket,
        client_options={"timeout": "10s", "connect_timeout": "3s", "allow_http": is_plain()},
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
    bucket, key = root_of(place)
    with asking("list", place):
        at = file_at(place)
        if at is not None:
            yield at
        for some in library().list(store_of(bucket, os.getpid()), prefix=f"{key}/".lstrip("/")):
            for entry in some:
                yield _facts(bucket, entry)


def file_at(url: str) -> tuple[str, int, int, float] | None:
    """The same for one file; None: it does not exist."""
    bucket, key = root_of(url)
    if not key:
        return None
    try:
        with asking("look for", url):
            return _facts(bucket, library().head(store_of(bucket, os.getpid()), key))
    except FileNotFoundError:
        return None


def reader_of(url: str) -> Any:
    """A file to read from, which requests only the ranges that are read; or FileNotFoundError."""
    file = file_at(url)
    if file is None:
        raise FileNotFoundError(url)
    return pa.PythonFile(_Ranges(url, file[1]), "r")


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
        bucket, key = root_of(self._url)
        with asking("read", self._url):
            content = library().get_range(
                store_of(bucket, os.getpid()), key, start=self._at, end=end
            )
        self._at = end
        return bytes(content)


def _facts(bucket: str, entry: Any) -> tuple[str, int, int, float]:
    modified = entry["last_modified"]
    seconds = modified.timestamp()
    return f"{bucket}/{entry['path']}", entry["size"], round(seconds * 1e9), seconds
