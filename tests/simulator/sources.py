"""Folders of source files: an actor writes them while drivers look, and each driver logs them.

The engine's own feeds and source logs run; only the user's files, and the look at their folder, are
ours. A file of the simulated disk is its tuples, in one or two row groups, or in none.
"""

from __future__ import annotations

import json
import random
import threading
from contextlib import ExitStack
from unittest.mock import patch

from joinengine.model.keys import PAIR
from joinengine.sources import feeds, sourcelog
from joinengine.sources.feeds import FolderFeed
from joinengine.sources.positions import Logged
from joinengine.sources.sourcelog import SourceLog
from tests.feeding import Inert
from tests.simulator.disk import FaultyStorage

FOLDER = "in"
#: Tuples of a side in a batch, and seconds of virtual time between two files.
ROWS_PER_INTERVAL, PAUSE_S = 12, 0.1
#: So many segments of a log, so that short runs fold some.
FOLD_AT = 2


def cut(tuples, rng):
    """Files of a stream: each the numbers of tuples in its row groups."""
    left, files = len(tuples), []
    while left > 0:
        file = [min(rng.randrange(1, 6), left)]
        left -= file[0]
        if left and rng.random() < 0.3:
            file.append(min(rng.randrange(1, 4), left))
            left -= file[1]
        files.append(file)
        if rng.random() < 0.1:
            files.append([])
    return files


class Writer:
    """Writes the files of both streams, one after the other.

    Where no tuple is late, files come in any order: what a log says is then not what a folder says.
    """

    def __init__(self, case, disk):
        self._disk = disk
        self._left = [
            (side, number, groups)
            for side in PAIR
            for number, groups in enumerate(case.files[side])
            if side not in case.handed
        ]
        self._left.sort(key=lambda one: (one[1], one[0]))
        if case.window is None:
            random.Random(f"arrivals {case.seed}").shuffle(self._left)
        self.done = False

    def write(self, actor):
        """As an actor; nobody harms it."""
        for side, number, groups in self._left:
            actor.sleep(PAUSE_S)
            path = f"{FOLDER}/{int(side)}/{number:04}"
            actor.step(f"writes {path}")
            self._disk.files[path] = json.dumps(groups).encode()
            self._disk.changed("put", path, actor.scheduler.now_s)
        self.done = True


class Listing:
    """As the engine's, of files on the simulated disk as the driver of this thread sees it."""

    here = threading.local()

    def __init__(self, folder, expected, logged, footers, most):
        self._world = self.here.world
        self._storage, self._logged = FaultyStorage(folder, self._world), logged
        self.unsettled_s, self.has_more = {}, False

    def look(self, now_s):
        found = [f"{self._storage.folder}/{name}" for name in self._storage.names()]
        return [
            {"file": path, "size": 1, "modified_ns": 1, "rows": self._rows(path)}
            for path in self._logged.unknown(found)
        ]

    def close(self):
        pass

    def _rows(self, path):
        return json.loads(self._world.disk.files[path])


def open_feeds(world, checkpoint, generation):
    """The feeds of a driver, by side."""
    Listing.here.world = world
    return [
        FolderFeed(
            f"{FOLDER}/{int(side)}",
            ROWS_PER_INTERVAL,
            SourceLog(checkpoint.sources.at(str(int(side))), generation),
        )
        for side in PAIR
    ]


class Once(Logged):
    """What a log says, in which no file is twice."""

    def add(self, files):
        paths = files["file"].to_pylist()
        assert self.unknown(paths) == paths, "a file is in the log twice"
        super().add(files)


class Tuples(Inert):
    """All tuples of a side, which are there from the begin; every look cuts them elsewhere."""

    def __init__(self, size, rng):
        self._size, self._rng = size, rng

    def discover(self, *, wait=None):
        pass

    def end(self):
        return self._size

    def advance(self, position):
        return min(position + self._rng.choice([1, 3, 8, 20]), self._size)

    def row_groups(self, start, end):
        raise AssertionError("tuples have no files")

    def progress(self, position):
        raise AssertionError("the trial says when they end")


def simulated():
    """Feeds list the simulated disk, inside, and fold their logs soon."""
    patches = ExitStack()
    patches.enter_context(patch.object(feeds, "Listing", Listing))
    patches.enter_context(patch.object(feeds, "Logged", Once))
    patches.enter_context(patch.object(sourcelog, "FOLD_AT", FOLD_AT))
    return patches


def numbers_of(case, side, groups):
    """The numbers of the tuples of some row groups, in order."""
    found = []
    for one in groups:
        sizes = case.files[side]
        number = int(one.file.rpartition("/")[2])
        before = sum(map(sum, sizes[:number])) + sum(sizes[number][: one.group])
        assert one.rows == sizes[number][one.group]
        found += range(before, before + one.rows)
    return found
