"""Finds the files of a place that are not in the source log yet, a bounded number at a time.

Why: a folder that gets files for months holds a million of them, and an idle loop looks for the
next one a hundred times a second. So a look reads notices (`joinengine.sources.notices`), and costs
only as much as there is new. The first look is *whole*: it reads all names of the place. So is a
look when notices may be missing. If there are no notices, all looks are whole: in object stores, on
file systems that other machines write, and for a single file.

Even with notices, all names are read once in SWEEP_S, some with each look, so that a look stays
short. This finds files without a notice, such as those of another file system that is mounted
below.

Law: a file that stays is found by the next whole look, or sooner.
Cost: 20 us if nothing is new; a whole look takes 1 us for each known file, and 3 us for each new
one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Any

from joinengine.sources.notices import Notices, notices_of
from joinengine.sources.positions import Logged
from joinengine.sources.sourcefiles import SourceFile, check_name, found_below, look_at, paths_below

#: The most files that wait to be logged; of more, the oldest wait, and others are found later.
MOST_WAITING = 100_000
#: Seconds in which all names are read once, although changes are noticed.
SWEEP_S = 60.0


def by_modification(file: SourceFile) -> tuple[int, str]:
    """The sort key of the order in which files appeared."""
    return file.modified_ns, file.path


def by_name(file: SourceFile) -> str:
    """The sort key of the order of paths."""
    return file.path


class Finding:
    """Finds the files below `place` that are not in `logged`, in the order of `key`.

    `is_bounded`: it finds at most MOST_WAITING of them at a time.
    """

    def __init__(
        self,
        place: str,
        logged: Logged,
        *,
        is_bounded: bool,
        key: Callable[[SourceFile], Any] = by_modification,
    ) -> None:
        self._place = place
        self._key = key
        self._logged = logged
        self._most = MOST_WAITING if is_bounded else None
        self._notices: Notices | None = None
        self._asked_s = -math.inf
        #: paths that were found, and are neither logged nor dropped
        self._waiting = dict[str, None]()
        #: path -> size and time of a file that was dropped
        self._dropped = dict[str, tuple[int, int]]()
        #: whether there may be more files than those that wait
        self.left_some = True
        self._sweep: Iterator[list[str]] = iter(())
        self._swept_s = 0.0

    def look(self, now_s: float) -> list[SourceFile]:
        """The files that are found and not logged, in order."""
        noticed = [] if self._notices is None else self._notices.read()
        is_short = self._notices is None or self._notices.are_short
        waiting = self._logged.unknown(list(self._waiting))
        if is_short or (self.left_some and len(waiting) < MOST_WAITING // 2):
            files = self._look_at_all(now_s)
        else:
            self._waiting = dict.fromkeys(waiting)
            for path in noticed:
                check_name(path)
            self._wait_for(noticed)
            self._wait_for(self._swept(now_s))
            there = (file for path in self._waiting if (file := look_at(path)) is not None)
            files = sorted(filter(self._is_new, there), key=self._key)
        self._waiting = dict.fromkeys(file.path for file in files)
        return files

    def drop(self, file: SourceFile) -> None:
        """Leave a file out as long as it does not change."""
        self._dropped[file.path] = file.size, file.modified_ns

    def close(self) -> None:
        """Stop watching."""
        if self._notices is not None:
            self._notices.close()
        self._notices = None

    def _look_at_all(self, now_s: float) -> list[SourceFile]:
        if self._notices is None and abs(now_s - self._asked_s) >= SWEEP_S:
            self._notices, self._asked_s = notices_of(self._place), now_s
        if self._notices is not None:
            self._notices.are_short = False  # from here on, new files are noticed or seen
        files = found_below(self._place, self._logged.unknown, self._watch)
        files = filter(self._is_new, files)
        self._swept_s, self._sweep, self.left_some = now_s, iter(()), False
        if self._most is None:
            return sorted(files, key=self._key)
        first = heapq.nsmallest(self._most, files, key=self._key)
        self.left_some = len(first) == self._most
        return first

    def _is_new(self, file: SourceFile) -> bool:
        return self._dropped.get(file.path) != (file.size, file.modified_ns)

    def _swept(self, now_s: float) -> list[str]:
        """The next few of all names."""
        if abs(now_s - self._swept_s) >= SWEEP_S:  # the clock may have been set back
            self._swept_s, self._sweep = now_s, paths_below(self._place, self._watch)
        return next(self._sweep, [])

    def _watch(self, folder: str) -> None:
        if self._notices is not None:
            self._notices.watch(folder)

    def _wait_for(self, paths: list[str]) -> None:
        room = None if self._most is None else max(self._most - len(self._waiting), 0)
        new = self._logged.unknown(paths)
        self._waiting |= dict.fromkeys(new[:room])
        self.left_some |= room is not None and len(new) > room
