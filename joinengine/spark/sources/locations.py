"""Places that users give: folders of a POSIX file system, and URLs of object stores."""

from __future__ import annotations

import re
from pathlib import Path

from joinengine.model.errors import InvalidRequest
from joinengine.world.buckets import SCHEMES, is_url

#: A scheme of a file system: of two letters at least, and followed by a slash.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
#: The options that take URLs of object stores.
_REMOTE = (
    *("checkpointLocation", "stateLocation", "storeLocation", "path", "sideOutput"),
    "parquet_stream",
    *("--state", "left", "right"),
)


def place(location: str | Path, what: str) -> str:
    """The URL of a place in an object store, or a folder as `local_path` gives it.

    Raises InvalidRequest for other schemes, by name, and for a URL without a bucket.

    >>> place("s3://bucket/queries/one/", "stateLocation")
    's3://bucket/queries/one'
    """
    text = str(location)
    if not is_url(text):
        return str(local_path(location, what))
    scheme, _, rest = text.partition("://")
    rest = rest.rstrip("/")
    if not rest or rest.startswith("/"):
        raise InvalidRequest(f"{what}: {location} names no bucket; write {scheme}://bucket/folder")
    return f"{scheme}://{rest}"


def local_path(location: str | Path, what: str) -> Path:
    """A folder of a local or shared POSIX file system, also as a `file:` URL.

    Raises InvalidRequest for other schemes, by name.
    """
    if not isinstance(location, str | Path) or not str(location):
        raise InvalidRequest(f"{what}: {location!r} is no path; give a folder")
    plain = str(location).removeprefix("file://").removeprefix("file:")
    scheme = _SCHEME.match(plain)
    if scheme is not None:
        urls = ", ".join(f"{one}://" for one in SCHEMES)
        raise InvalidRequest(
            f"{what}: {location} is not a path of a POSIX file system, and {scheme[1]} is not "
            f"served here; use a local or shared folder{_instead(what, urls)}"
        )
    return Path(plain).expanduser().absolute()


def _instead(what: str, urls: str) -> str:
    """Which URLs an option takes beside folders, in words."""
    return f", or an object store ({urls})" if what in _REMOTE else ""
