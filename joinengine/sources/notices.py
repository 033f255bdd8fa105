"""Notices: what the system says of changes in a folder and those below it, so that nobody walks.

How: inotify, which Linux has, by the library inotify-simple. A notice names one file, so a look at
a folder of a million files costs what is new in it. The system says nothing of what another machine
writes to a shared file system, so there are notices on file systems of this machine alone; it may
refuse to watch (a user has so many watches, 8,192 on some systems), and drop notices that nobody
has read. Whoever reads is told when notices do not say everything.

Law: a name that has come into a watched folder since it was watched is noticed, or the reader is
told that some may be missing.
Cost: 10 us if there is nothing; a watch for each folder, 1 KB of the system's memory.
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
    """Notices of what comes into a folder, `root`, and those below it that are watched."""

    def __init__(self, root: str) -> None:
        """Raises OSError or ImportError where there are no notices."""
        # Of the driver alone: executors look at no folder.
        from inotify_simple import INotify, flags  # noqa: PLC0415

        self._root = root
        self._flags: Any = flags
        self._folders = dict[int, str]()
        self._inotify: Any = INotify()
        self._has_told = False
        #: whether something may have come that is not noticed
        self.are_short = True

    def watch(self, folder: str) -> None:
        """Notice what comes into a folder from now on, if the system lets us."""
        names, itself = self._flags, self._flags.DELETE_SELF | self._flags.MOVE_SELF
        wanted = names.CREATE | names.CLOSE_WRITE | names.MOVED_TO | names.ATTRIB | itself
        try:
            self._folders[self._inotify.add_watch(folder, wanted | names.ONLYDIR)] = folder
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            self.are_short |= folder == self._root  # no walk gets there either
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
        """The paths of Parquet files of which something was noticed since the last time.

        Folders that have come are watched, and the files in them are noticed.
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
            elif os.path.isdir(path := f"{folder}/{name}"):  # also a link, which a notice hides
                for paths in paths_below(path, self.watch, self._root):
                    names |= dict.fromkeys(paths)
            elif name.endswith(".parquet"):
                names[path] = None
        return list(names)

    def close(self) -> None:
        """Let the system forget them."""
        self._inotify.close()


def notices_of(root: str) -> Notices | None:
    """Notices of a folder that is not watched yet; None: there are none.

    So it is on other systems than Linux, for a file, and where other machines may write.
    """
    if not os.path.isdir(root) or _file_system(os.path.realpath(root)) not in _LOCAL:
        return None
    try:
        return Notices(root)
    except (ImportError, OSError):
        return None


def _file_system(path: str) -> str | None:
    """The type of the file system of a path without links; None: the system does not say."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return None
    # Fields: proc(5). The last of those that are mounted at one place is the one that is seen.
    mounts = (line.split(" ") for line in lines)
    types = {fields[4]: fields[fields.index("-") + 1] for fields in mounts}
    while path not in types and path != "/":
        path = os.path.dirname(path)
    return types.get(path)
