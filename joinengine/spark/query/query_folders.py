"""Checks the folders of a query: that they are apart, and that they can be made.

Why: a folder that serves two purposes mixes results with state or with input. Users notice this
much later, and cannot undo it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import mkdtemp

from joinengine.model.errors import InvalidRequest
from joinengine.results.outputs import Wanted
from joinengine.results.sinks import STAGING
from joinengine.spark.sources.locations import place
from joinengine.state.checkpoint import Checkpoint

#: The options that name places of state.
_STATES = {"checkpointLocation", "stateLocation", "storeLocation"}


@dataclass(frozen=True, slots=True)
class Output:
    """The folder into which a sink writes.

    `wanted`: the demands on its markers, which name the queries with results in it; None: it has no
    markers.
    """

    folder: str
    wanted: Wanted | None = None


def check_apart(written: Mapping[str, str], inputs: Iterable[str]) -> None:
    """Raise InvalidRequest if two places of a query are the same, or one disturbs another.

    `written`: option -> place into which the query writes. Anything below a name that begins with
    `_` or `.` disturbs no reader: readers skip it.
    """
    there = [(what, comparable(where).resolve()) for what, where in written.items()]
    for number, (what, path) in enumerate(there):
        for other, taken in there[:number]:
            if path == taken:
                raise InvalidRequest(
                    f"{other} and {what} are both {path}; give each its own folder"
                )
        for source in inputs:
            if _is_read_with(comparable(source).resolve(), path):
                raise InvalidRequest(
                    f"{what}: {path} lies in the folder {source}, so the query would read its own "
                    "files; give a folder outside it"
                )
        if what in _STATES and (path / STAGING).is_dir():
            raise InvalidRequest(
                f"{what}: {path} holds the results of a query, so state and results would mix; "
                "give another folder"
            )
    places = dict(there)
    states = _STATES & places.keys()
    results = {"path", "sideOutput"} & places.keys()
    for what, rows in product(sorted(states), sorted(results)):
        inner, outer = places[rows], places[what]
        if inner.is_relative_to(outer) or _is_read_with(inner, outer):
            raise InvalidRequest(
                f"{what} {written[what]} and {rows} {written[rows]}: one folder lies in the "
                "other, so state and results would mix; give two folders side by side"
            )


def checkpoint_at(
    location: str, state: str | None = None, *, fsync: bool = False, mode: int | None = None
) -> Checkpoint:
    """The checkpoint at the places that users give: `checkpointLocation` and `stateLocation`.

    With a `stateLocation`, Spark's part may be anywhere that Spark can write.
    """
    if state is None:
        return Checkpoint.below(place(location, "checkpointLocation"), fsync=fsync, mode=mode)
    logs = str(location) if "://" in str(location) else place(location, "checkpointLocation")
    return Checkpoint.below(logs, place(state, "stateLocation"), fsync=fsync, mode=mode)


def comparable(where: str) -> Path:
    """A path or a URL as a path that can be compared with others."""
    return Path("/", where.replace("://", "/")) if "://" in where else Path(where)


def check_folder(path: Path, what: str) -> None:
    """Raise InvalidRequest if a folder cannot be made, or if no file can be written there.

    The folder is not made: a refused start leaves nothing behind.
    """
    there = next(above for above in (path, *path.parents) if os.path.lexists(above))
    if not there.is_dir():
        raise InvalidRequest(f"{what}: {there} is a file; give a folder")
    try:
        if there != path:  # only a trial shows whether a folder may be made
            Path(mkdtemp(prefix=".joinengine-", dir=there)).rmdir()
    except OSError as error:
        raise InvalidRequest(
            f"{what}: {path} cannot be created ({error.strerror}); give a folder that you may write"
        ) from None
    if not os.access(there, os.W_OK | os.X_OK):
        raise InvalidRequest(f"{what}: {path} cannot be written; give a folder that you may write")


def _is_read_with(folder: Path, path: Path) -> bool:
    """Whether a reader of `folder` finds the files in `path`."""
    if not path.is_relative_to(folder):
        return False
    return not any(part[0] in "._" for part in path.relative_to(folder).parts)
