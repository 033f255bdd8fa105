"""Checks the places that users give: folders of a POSIX file system, and URLs of object stores."""

from __future__ import annotations

import re
from pathlib import Path

from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import in_a_line, quoted, without_secrets
from joinengine.world.buckets import SCHEMES, is_url

#: A scheme of a file system: at least two letters, followed by a slash.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
#: The most bytes of a name, and of a path, below which the engine's own folders need room.
_MOST_OF_A_NAME, _MOST_OF_A_PATH = 255, 3_800
#: The options that take URLs of object stores.
_REMOTE = (
    *("checkpointLocation", "stateLocation", "storeLocation", "path", "sideOutput"),
    "parquet_stream",
    *("--state", "left", "right"),
)

#: The characters of names of buckets and containers.
_BUCKET = re.compile(r"[\w.-]+", re.ASCII)
#: A container and its account, as Azure writes them; the library supports accounts at these hosts.
_OF_ACCOUNT = re.compile(
    r"[\w-]+@[\w-]+\.dfs\.(core\.windows\.net|fabric\.microsoft\.com)", re.ASCII
)
_AZURE = ("abfs", "abfss")


def place(location: str | Path, what: str) -> str:
    """The URL of a place in an object store, or a folder as `local_path` gives it.

    Raises InvalidRequest for other schemes, by name, and for a URL without a bucket.

    >>> place("s3://bucket/queries/one/", "stateLocation")
    's3://bucket/queries/one'
    >>> place("abfss://data@account.dfs.core.windows.net/in", "left")
    'abfss://data@account.dfs.core.windows.net/in'
    """
    text = str(location)
    if not is_url(text):
        return str(local_path(location, what))
    scheme, _, rest = text.partition("://")
    bucket, *parts = rest.rstrip("/").split("/")
    if not bucket:
        raise InvalidRequest(
            f"{what}: {in_a_line(location)} names no bucket; write {scheme}://bucket/folder"
        )
    if "@" in bucket and not (scheme in _AZURE and _OF_ACCOUNT.fullmatch(bucket)):
        form = "container@account.dfs.core.windows.net" if scheme in _AZURE else "bucket"
        raise InvalidRequest(
            f"{what}: a {scheme} URL may not contain a user or password; give "
            f"{scheme}://{form}/folder, and set the credentials in the environment "
            "(docs/cluster.md)"
        )
    if "@" not in bucket and not _BUCKET.fullmatch(bucket):
        raise InvalidRequest(
            f"{what}: {quoted(bucket)} is not a name of a bucket: these have letters, digits, '.', "
            "'-' and '_'"
        )
    parts = [part for part in parts if part]  # `//` is one `/`, as in a path
    odd = next((step for step in parts if step in (".", "..") or not step.isprintable()), None)
    if odd is not None:
        raise InvalidRequest(
            f"{what}: {quoted(odd)} cannot be part of a name in an object store; give another name"
        )
    return f"{scheme}://{'/'.join([bucket, *parts])}"


def local_path(location: str | Path, what: str) -> Path:
    """A folder of a local or shared POSIX file system, also as a `file:` URL.

    Raises InvalidRequest for other schemes, by name.
    """
    if not isinstance(location, str | Path) or not str(location):
        raise InvalidRequest(f"{what}: {location!r} is not a path; give a folder")
    plain = str(location).removeprefix("file://").removeprefix("file:")
    longest = max(len(part.encode()) for part in plain.split("/"))
    if "\0" in plain or longest > _MOST_OF_A_NAME or len(plain.encode()) > _MOST_OF_A_PATH:
        raise InvalidRequest(
            f"{what}: {quoted(plain)} is not a valid path: names have at most {_MOST_OF_A_NAME} "
            f"bytes, paths at most {_MOST_OF_A_PATH}, and none is a zero byte; give another folder"
        )
    scheme = _SCHEME.match(plain)
    if scheme is not None:
        urls = ", ".join(f"{known}://" for known in SCHEMES)
        raise InvalidRequest(
            f"{what}: {without_secrets(location)} is not a path of a POSIX file system, and "
            f"{scheme[1]} is not supported here; use a local or shared folder{_instead(what, urls)}"
        )
    return Path(plain).expanduser().absolute()


def _instead(what: str, urls: str) -> str:
    """The URLs that an option takes beside folders, in words."""
    return f", or an object store ({urls})" if what in _REMOTE else ""
