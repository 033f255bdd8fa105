"""Folders and source logs of very many files: `make bench-files`.

The files are names of a few small ones (hard links), in one folder of the temporary file system;
the log is written by the engine, and folded but for its last segments, as it is after months.
"""

from __future__ import annotations

import os
from itertools import count, pairwise

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine.sources.feeds import FolderFeed
from joinengine.sources.positions import Logged, table_of
from joinengine.sources.sourcelog import FOLD_AT, SourceLog
from joinengine.world.world import MACHINE

#: How many names a file may have on all file systems that are served.
MOST_LINKS = 50_000
SIZES = [10_000, 1_000_000]
_new = count()


class Folder:
    """A folder of `size` files, all of which are in a log."""

    def __init__(self, home, size):
        self.place, self.size, self._log = home / "in", size, f"{home}/log"
        self.place.mkdir()
        for number in range(size):
            if number % MOST_LINKS == 0:
                first = self._path(number)
                pq.write_table(pa.table({"a": [1, 2, 3]}), first)
            else:
                os.link(first, self._path(number))
        self._write_log()

    def _path(self, number):
        return self.place / f"part-{number:08}-c000.parquet"

    def _write_log(self):
        """The newest files are in segments of their own: as many as are not folded yet."""
        log, logged = self.log(), Logged()
        alone = FOLD_AT - 1
        each = (self.size - alone) // (FOLD_AT + 1)
        cuts = [*range(0, each * (FOLD_AT + 1), each), *range(self.size - alone, self.size + 1)]
        for first, last in pairwise(cuts):
            entries = [self._entry(number) for number in range(first, last)]
            assert log.append(entries)
            logged.add(table_of(entries))
            log.fold(logged)

    def _entry(self, number):
        path = self._path(number)
        status = os.stat(path)
        entry = {"file": str(path), "size": status.st_size, "modified_ns": status.st_mtime_ns}
        return entry | {"rows": [3]}

    def log(self):
        """The log, of which nothing is read."""
        return SourceLog(MACHINE.storage(self._log), 1)

    def opened(self):
        """A feed over both, after its first look."""
        folder_feed = FolderFeed(str(self.place), 1_000_000, self.log())
        folder_feed.discover()
        return folder_feed

    def put(self):
        """A new file."""
        os.link(self._path(0), self.place / f"new-{next(_new)}.parquet")


@pytest.fixture(scope="module", params=SIZES, ids=str)
def folder(request, tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("folder"), request.param)


@pytest.fixture
def feed(folder):
    folder_feed = folder.opened()
    yield folder_feed
    folder_feed.close()


def test_start(benchmark, folder):
    """The log is read, and the folder is looked at whole."""
    before = psutil.Process().memory_info().rss
    folder_feed = benchmark.pedantic(folder.opened, rounds=3)
    benchmark.extra_info["memory_mb"] = (psutil.Process().memory_info().rss - before) >> 20
    assert folder_feed.end() >= folder.size


def test_look_without_news(benchmark, feed):
    benchmark(feed.discover)


def test_a_new_file(benchmark, folder, feed):
    """A new file is found, its footer is read, and it is logged."""
    ends = []

    def look():
        feed.discover()
        ends.append(feed.end())

    benchmark.pedantic(look, setup=folder.put, rounds=100)
    assert len(set(ends)) == 100


def test_whole_look(benchmark, feed):
    """A whole look, as where no notices name the new files."""

    def forget():
        feed._listing._finding.left_some = True

    benchmark.pedantic(feed.discover, setup=forget, rounds=3)
