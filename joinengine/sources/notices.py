"""Notices of the operating system: new files in a folder and below it, without reading all names.

How: by Linux's inotify, through the library inotify-simple. A notice names one file, so a look at a
folder of a million files costs only what is new. The system reports nothing that another machine
writes to a shared file system, so there are notices only for file systems of this machine. It may
refuse to watch a folder (a user has a limited number of watches, 8,192 on some systems), and it
drops notices that are not read in time. `are_short` then says that notices may be missing.

Law: a name that appears in a watched folder is noticed, or `are_short` is true.
Cost: 10 us if nothing is new; one watch for each folder, 1 KB of the system's memory.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from joinengine.sources.sourcefiles import paths_below

_log = logging.getLogger("joinengine")
#: Types of file systems to which no other machine writes.
_LOCAL = {
    *("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs"),
    *("tmpfs", "xfs", "zfs"),
}
_MOUNTS = Path("/proc/self/mountinfo")


class Notices:
    """Notices of new names in the folder `root`, and in the watched folders below it."""

    def __init__(self, root: str) -> None:
        """Raises OSError or ImportError if the system has no notices."""
        # Only the driver needs this package: executors watch no folders.
        from inotify_simple import INotify, flags  # noqa: PLC0415

        self._root = root
        self._flags: Any = flags
        self._folders = dict[int, str]()
        self._inotify: Any = INotify()
        self._has_told = False
        #: whether notices may be missing
        self.are_short = True

    def watch(self, folder: str) -> None:
        """Notice new names in a folder from now on, if the system allows it."""
        names, itself = self._flags, self._flags.DELETE_SELF | self._flags.MOVE_SELF
        wanted = names.CREATE | names.CLOSE_WRITE | names.MOVED_TO | names.ATTRIB | itself
        try:
            self._folders[self._inotify.add_watch(folder, wanted | names.ONLYDIR)] = folder
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            self.are_short |= folder == self._root  # a walk cannot read it either
        except OSError as error:
            self.are_short = True
            if not self._has_told:
                _log.warning(
                    "joinengine: the system does not watch %s (%s), so joinengine lists its "
                    "files again and again; raise fs.inotify.max_user_watches",
                    *(folder, error),
                )
            self._has_told = True

    def read(self) -> list[str]:
        """The paths of Parquet files that were noticed since the last call.

        New folders are watched, and the files in them count as noticed.
        """
        flags, names = self._flags, dict[str, None]()
        for watch, mask, _, name in self._inotify.read(timeout=0):
            folder = self._folders.get(watch)
            if mask & (flags.Q_OVERFLOW | flags.UNMOUNT):
                self.are_short = True
            elif mask & flags.IGNORED:
                self._folders.pop(watch, None)
            elif mask & (flags.DELETE_SELF | flags.MOVE_SELF):
                self.are_short |= folder == self._root
            elif folder is None or not name or name[0] in "._":
                continue
            elif os.path.isdir(path := f"{folder}/{name}"):  # a notice does not show links
                for paths in paths_below(path, self.watch, self._root):
                    names |= dict.fromkeys(paths)
            elif name.endswith(".parquet"):
                names[path] = None
        return list(names)

    def close(self) -> None:
        """End all watches."""
        self._inotify.close()


def notices_of(root: str) -> Notices | None:
    """Notices of a folder; None: there are none.

    There are none on systems other than Linux, for a file, and if other machines may write there.
    """
    if not os.path.isdir(root) or _file_system(os.path.realpath(root)) not in _LOCAL:
        return None
    try:
        return Notices(root)
    except (ImportError, OSError):
        return None


def _file_system(path: str) -> str | None:
    """The type of the file system of a resolved path; None: unknown."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return None
    # Fields: proc(5). Of several file systems mounted at one place, the last one is visible.
    mounts = (line.split(" ") for line in lines)
    types = {fields[4]: fields[fields.index("-") + 1] for fields in mounts}
    while path not in types and path != "/":
        path = os.path.dirname(path)
    return types.get(path)
