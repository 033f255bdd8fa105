"""Paths that users give: folders of a POSIX file system."""

from __future__ import annotations

import re
from pathlib import Path

from joinengine.model.errors import InvalidRequest

#: A scheme of a file system: of two letters at least, and followed by a slash.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def local_path(location: str | Path, what: str) -> Path:
    """A folder of a local or shared POSIX file system, also as a `file:` URL.

    Raises InvalidRequest for other schemes, by name.
    """
    if not isinstance(location, str | Path) or not str(location):
        raise InvalidRequest(f"{what}: {location!r} is no path; give a folder")
    plain = str(location).removeprefix("file://").removeprefix("file:")
    scheme = _SCHEME.match(plain)
    if scheme is not None:
        raise InvalidRequest(
            f"{what}: {location} is not a path of a POSIX file system, and {scheme[1]} is not "
            f"served yet; use a local or shared one"
        )
    return Path(plain).expanduser().absolute()
