"""The folders of a query: where they may lie, and whether they can be made.

Why: a folder that serves two purposes mixes results with state or with input, which shows much
later and cannot be undone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from joinengine.driver.outputs import Wanted
from joinengine.model.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Output:
    """The folder that a sink writes.

    `wanted`: what is asked of it, if markers in it say whose results it holds; None: it has none.
    """

    folder: str
    wanted: Wanted | None = None


def check_apart(
    checkpoint: Path, output: Path | None, aside: Path | None, inputs: Iterable[Path]
) -> None:
    """Raise InvalidRequest if two of the folders of a query are one, or one disturbs another.

    What lies below a name that begins with `_` or `.` disturbs nobody: readers skip it.
    """
    written = [("checkpointLocation", checkpoint), ("path", output), ("sideOutput", aside)]
    there = [(what, path.resolve()) for what, path in written if path is not None]
    for number, (what, path) in enumerate(there):
        for other, taken in there[:number]:
            if path == taken:
                raise InvalidRequest(
                    f"{other} and {what} are both {path}; give each a folder of its own"
                )
        for source in inputs:
            if _is_read_with(source.resolve(), path):
                raise InvalidRequest(
                    f"{what}: {path} lies in the folder {source} that the query reads: it would "
                    f"read its own files; use a folder outside"
                )
    places = dict(there)
    if "path" in places:
        inner, outer = places["path"], places["checkpointLocation"]
        if inner.is_relative_to(outer) or _is_read_with(inner, outer):
            raise InvalidRequest(
                f"checkpointLocation {outer} and path {inner}: one lies in the other, so state and "
                f"results would be mixed; use two folders side by side"
            )


def check_folder(path: Path, what: str) -> None:
    """Raise InvalidRequest if a folder cannot be made, or no file be written there.

    It is not made: a start that is refused leaves nothing behind.
    """
    there = next(found for found in (path, *path.parents) if os.path.lexists(found))
    if not there.is_dir():
        raise InvalidRequest(f"{what}: {there} is a file; give a folder")
    try:
        if there != path:  # whether a folder may be made, only a trial tells
            Path(mkdtemp(prefix=".joinengine-", dir=there)).rmdir()
    except OSError as error:
        raise InvalidRequest(
            f"{what}: {path} cannot be made ({error.strerror}); give a folder that you may write"
        ) from None
    if not os.access(there, os.W_OK | os.X_OK):
        raise InvalidRequest(f"{what}: {path} cannot be written; give a folder that you may write")


def _is_read_with(folder: Path, path: Path) -> bool:
    """Whether who reads `folder` finds what lies in `path`."""
    if not path.is_relative_to(folder):
        return False
    return not any(part[0] in "._" for part in path.relative_to(folder).parts)
