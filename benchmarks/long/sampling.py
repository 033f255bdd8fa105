"""Samples of what a query holds: the files of its checkpoint, and its processes' resources.

Processes are found as descendants of this one: the JVM, and below it the Python workers. Figures
come from `/proc`, so this runs on Linux alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_MB = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, in no order."""
    children = dict[int, list[int]]()
    for child, parent in _processes():
        children.setdefault(parent, []).append(child)
    pids, waiting = list[int](), [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        pids += below
        waiting += below
    return pids


def _processes() -> Iterator[tuple[int, int]]:
    """(process, its parent) for all running processes."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        yield int(folder.name), int(fields[1])


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def held_by(pids: Sequence[int]) -> dict[str, float]:
    """Descriptors, memory maps, and resident MB of processes, added up; without ended ones."""
    descriptors = maps = pages = 0
    for pid in pids:
        try:
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
            maps += len(Path(f"/proc/{pid}/maps").read_text().splitlines())
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return {"descriptors": descriptors, "maps": maps, "rss_mb": pages * _PAGE / _MB}


def worked_s(pids: Sequence[int]) -> float:
    """Seconds of the processor that processes have had, and those below them that have ended."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def files_below(folder: Path) -> tuple[int, float]:
    """How many files a folder holds with all below it, and their MB."""
    count = size = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.stat(f"{root}/{name}").st_size
            except OSError:
                continue  # removed meanwhile
            count += 1
    return count, size / _MB


def sample(checkpoint: Path) -> dict[str, float]:
    """What is held now, by name."""
    below = descendants(os.getpid())
    jvm = [pid for pid in below if _name(pid) == "java"]
    workers = [pid for pid in below if _name(pid).startswith("python")]
    figures = dict[str, float]()
    figures["files"], figures["files_mb"] = files_below(checkpoint)
    for who, pids in (("driver", [os.getpid()]), ("jvm", jvm), ("workers", workers)):
        figures |= {f"{who}_{what}": value for what, value in held_by(pids).items()}
    figures["workers"] = len(workers)
    figures["cpu_s"] = worked_s([os.getpid(), *below])
    return figures
