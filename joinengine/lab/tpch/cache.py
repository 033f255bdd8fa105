"""`joinengine cache`: lists and clears what the commands keep in the cache folder.

The folder is `generate.home()`. It has TPC-H tables, recorded streams, Spark's logs of runs that
were killed, and the class-data archive of `joinengine archive`. Tables and streams are generated
again when they are needed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
from filelock import FileLock, Timeout

from joinengine.lab.commands.console import tell, write_json
from joinengine.lab.commands.generated_options import PATH
from joinengine.lab.tpch.generate import HOME, home
from joinengine.model.durations import microseconds
from joinengine.model.errors import InvalidRequest

#: Folder of the cache -> what its entries are.
_KINDS = {
    "tables": "TPC-H tables",
    "streams": "recorded stream",
    "logs": "log of Spark",
    "java": "class-data archive",
}
#: A log that is older belongs to no run that is still alive.
_OLD_LOG_S = 7 * 86_400


class Kept(NamedTuple):
    """A file or folder of the cache. Age: seconds since it was last changed."""

    path: Path
    what: str
    size_bytes: int
    age_s: float


def kept() -> list[Kept]:
    """What lies in the cache, largest first."""
    entries, now = list[Kept](), time.time()
    for folder, what in _KINDS.items():
        for path in sorted((home() / folder).glob("*")):
            stats = [file.stat() for file in (path, *path.rglob("*")) if file.is_file()]
            if path.name.endswith(".lock") or not (stats or path.is_dir()):
                continue
            newest = max((stat.st_mtime for stat in stats), default=path.stat().st_mtime)
            size = sum(stat.st_size for stat in stats)
            entries.append(Kept(path, what, size, max(0.0, now - newest)))
    return sorted(entries, key=lambda entry: -entry.size_bytes)


def clear(entries: Sequence[Kept]) -> list[Kept]:
    """Remove entries; returns those that are gone.

    Entries that another process is making now stay, as do entries that cannot be removed.
    """
    gone = list[Kept]()
    for entry in entries:
        lock = _lock_of(entry.path)
        try:
            with FileLock(lock, timeout=0):
                if entry.path.is_dir():
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    entry.path.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
        except (Timeout, OSError):
            continue
        if not entry.path.exists():
            gone.append(entry)
    return gone


def _lock_of(path: Path) -> Path:
    """The lock that a process holds while it makes an entry (`generate.build_once`, `tables`)."""
    if (path / ".lock").exists():
        return path / ".lock"
    if path.name.startswith("."):  # a draft, `.NAME.hex`
        return path.with_name(f"{path.name.rpartition('.')[0]}.lock")
    return path.with_name(f".{path.name}.lock")


def new_log() -> Path:
    """A file for Spark's log of one run; removes week-old logs of runs that were killed.

    If the cache cannot be written, the file is in the folder of temporary files.
    """
    folder = home() / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("spark-*.log"):
            if time.time() - old.stat().st_mtime > _OLD_LOG_S:
                old.unlink(missing_ok=True)
        return Path(tempfile.mkstemp(prefix="spark-", suffix=".log", dir=folder)[1])
    except OSError:
        return Path(tempfile.mkstemp(prefix="joinengine-spark-", suffix=".log")[1])


@contextmanager
def passing_home() -> Iterator[Path]:
    """In the block, the commands use a cache folder that is removed afterwards."""
    before = os.environ.get(HOME)
    with tempfile.TemporaryDirectory(prefix="joinengine-") as folder:
        os.environ[HOME] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ[HOME]
            else:
                os.environ[HOME] = before


@click.command("cache")
@click.option("--clear", "clearing", is_flag=True, help="Remove the listed entries.")
@click.option(
    "--older-than", metavar="DURATION", help="Only entries unchanged for this long, such as 7d."
)
@click.option("--json", "json_path", type=PATH, help="Write the list to this file.")
def cache(clearing: bool, older_than: str | None, json_path: Path | None) -> None:
    """List the cache of the commands: generated tables, recorded streams, logs, an archive."""
    least_s = 0.0 if older_than is None else microseconds(older_than, "older-than") / 1e6
    if least_s < 0:
        raise InvalidRequest(f"older-than: expected a duration of 0 or more, found {older_than}")
    chosen = [entry for entry in kept() if entry.age_s >= least_s]
    if clearing:
        removed = clear(chosen)
        busy = len(chosen) - len(removed)
        chosen = removed
    for entry in chosen:
        size, age = _size(entry.size_bytes), _age(entry.age_s)
        tell(f"{size:>9}  {age:>8}  {entry.what:18}  {entry.path}")
    total = _size(sum(entry.size_bytes for entry in chosen))
    number = f"{len(chosen)} entr{'y' if len(chosen) == 1 else 'ies'}"
    if clearing:
        waiting = f"; kept {busy}, in use or not removable" if busy else ""
        tell(f"removed {number}, {total}{waiting}")
    else:
        tell(f"{number}, {total} in {home()}; `joinengine cache --clear` removes them")
    rows = [entry._asdict() for entry in chosen]
    write_json(json_path, {"folder": str(home()), "cleared": clearing, "entries": rows})


def _size(size_bytes: int) -> str:
    """A size in words.

    >>> _size(459_000_000), _size(12)
    ('459.0 MB', '0.0 MB')
    """
    return f"{size_bytes / 1e6:,.1f} MB"


def _age(age_s: float) -> str:
    """An age in words.

    >>> _age(3.0), _age(7200.0), _age(86_400.0 * 9)
    ('0 min', '2 h', '9 days')
    """
    if age_s < 3600:
        return f"{age_s / 60:.0f} min"
    return f"{age_s / 3600:.0f} h" if age_s < 48 * 3600 else f"{age_s / 86_400:.0f} days"
