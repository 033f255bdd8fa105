"""Runs: immutable, sorted batches of tuples of one side at one instance; opens them.

Why: a stored tuple is written once, found by binary search in a memory map, and forgotten with its
run. Nothing is updated in place, so a kill can only leave a file that no manifest names.

Law: a run never changes. Its exclusions are in the manifest: word ranges that have moved to another
instance, or that a merge in progress has already copied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Exclusions, Ints, exclude, rows_between
from joinengine.model.errors import DamagedState
from joinengine.model.keys import Side
from joinengine.state.run_file import RUN_FORMAT, Page, RunFile
from joinengine.world.storage import Fetched, Storage, StoredFile, verify
from joinengine.world.world import World

#: A file is closed if it was in no task's instructions, in this process, for so many batches.
IDLE = 8
#: Reading pages by ranges takes one more request than reading the file, so it must save as many
#: bytes as a store delivers in the time of a request (100 MB/s, 40 ms).
SAVED_BYTES = 4 << 20
#: An instance, and the side of its tuples.
Place = tuple[int, Side]


class Run(NamedTuple):
    """One run: where it lies, and the facts that are known without opening it.

    `part`: which run of the file. `group`: the merge group, whose pieces in order form one sorted
    run. `into`: the group into which a merge in progress copies the run; None: no merge.
    Times are event time in microseconds, None without a window. `settled_time`: the newest time of
    the oldest input of its merges; without merging, that input would expire `max_time -
    settled_time` earlier. `exclusions`: disjoint word ranges [lower, upper) in order (the last may
    end at 2^64). `excluded`: how many rows they cover.
    """

    file: str
    part: int
    side: Side
    instance: int
    version: int
    rows: int
    size_bytes: int
    group: int
    into: int | None = None
    min_time: int | None = None
    max_time: int | None = None
    settled_time: int | None = None
    exclusions: tuple[tuple[int, int], ...] = ()
    excluded: int = 0

    @property
    def ident(self) -> tuple[str, int]:
        """The name of the run: it stays the same while exclusions grow."""
        return self.file, self.part

    @property
    def live(self) -> int:
        """How many rows are not excluded."""
        return self.rows - self.excluded

    @property
    def live_bytes(self) -> int:
        """Bytes on disk, in proportion to the rows that are not excluded."""
        return self.size_bytes * self.live // max(self.rows, 1)

    def rows_within(self, size_bytes: int) -> int:
        """How many of its rows fit into `size_bytes`; at least one."""
        return max(self.rows * size_bytes // max(self.size_bytes, 1), 1)

    def without(self, ranges: Iterable[tuple[int, int]], words: Words) -> Run:
        """The run with the word ranges `ranges` also excluded; `words`: those of the run."""
        united = unite([*self.exclusions, *ranges])
        gone = excluded_rows(words, united)
        return self._replace(exclusions=united, excluded=gone.rows if gone else 0)


#: `Run.ident` -> run.
RunsByIdent = dict[tuple[str, int], Run]
#: Place -> its runs, which are its spine.
Spread = Mapping[Place, tuple[Run, ...]]


class OpenRun(NamedTuple):
    """A memory-mapped run: its rows begin at row `start` of `page`; `gone`: the excluded rows.

    Words and columns are cut out of the page only on demand: if there are many instances, pages are
    searched as a whole.
    """

    run: Run
    page: Page
    start: int = 0
    gone: Exclusions | None = None

    @property
    def words(self) -> Words:
        """(rows,) words of the run, ascending, those of excluded rows included."""
        return self.page.words[self.start : self.start + self.run.rows]

    @property
    def columns(self) -> pa.RecordBatch:
        """The columns of the run, with its excluded rows."""
        if self.run.rows == len(self.page.words):
            return self.page.columns
        return self.page.columns.slice(self.start, self.run.rows)

    def live_rows(self) -> Ints:
        """The numbers of the rows that are not excluded, in order."""
        if self.gone is None:
            return np.arange(self.run.rows)
        everything = np.zeros(1, np.uint64)
        return rows_between(self.words, everything, everything, self.gone)


@dataclass(frozen=True, slots=True)
class _MappedFile:
    """A memory-mapped run file; `opened`: part -> the run as it was last opened.

    Most runs are the same from batch to batch, and a batch may open thousands.
    """

    file: RunFile
    opened: dict[int, OpenRun] = field(default_factory=dict)

    def open(self, run: Run, wanted: pa.Schema | None) -> OpenRun:
        """Open one of its runs; `wanted`: as in `RunStore.open`, the same each time."""
        opened_before = self.opened.get(run.part)
        if opened_before is not None and opened_before.run == run:
            return opened_before
        opened = OpenRun(run, *self.file.page(run.part, wanted))
        if run.exclusions:
            opened = opened._replace(gone=excluded_rows(opened.words, run.exclusions))
        self.opened[run.part] = opened
        return opened


class Reads(NamedTuple):
    """How many run files of earlier batches a task has opened in an object store, and their bytes.

    `fetched_files`, `fetched_bytes`: those of which its machine had no copy. For a file that was
    read by ranges, only the bytes read count.
    """

    files: int = 0
    size_bytes: int = 0
    fetched_files: int = 0
    fetched_bytes: int = 0


class RunStore:
    """Opens the runs of one operator, and keeps their files mapped.

    A file is checked against its CRC once per store, at its first open. A store belongs to one
    start of a driver (`RunStores`). A map costs the process no memory, since its pages belong to
    the system's file cache. But it keeps a removed file on disk, hence `retain`.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._open: dict[str, _MappedFile] = {}
        #: the files of which the present task has fetched only some pages
        self._partly: dict[str, _MappedFile] = {}
        self._verified: set[str] = set()
        #: file -> the last batch whose instructions named it
        self._told: dict[str, int] = {}
        self._batch = 0
        #: name -> bytes of the files that the present task has opened
        self._read: dict[str, int] = {}
        self._fetched_before = Fetched()

    def trust(self, name: str) -> None:
        """Skip the check of a file that this process has written itself."""
        self._verified.add(name)
        self._told[name] = self._batch

    def retain(self, live: Container[str]) -> None:
        """Close the files that are not in `live`."""
        self._open = {name: mapped for name, mapped in self._open.items() if name in live}
        self._verified = {name for name in self._verified if name in live}

    def see(self, named: Iterable[str], batch: int) -> None:
        """Begin a task of `batch` whose instructions name files; close files not named lately.

        Instructions name only the task's own files, and this process may run other tasks in turn.
        """
        self._batch = batch
        self._read = {}
        self._partly = {}
        self._fetched_before = replace(self._storage.fetched or Fetched())
        self._told.update(dict.fromkeys(named, batch))
        self._told = {name: last for name, last in self._told.items() if last > batch - IDLE}
        self.retain(self._told)

    def reads(self, named: Container[str]) -> Reads | None:
        """The reads of the present task from the files `named`; None: files lie in a folder."""
        fetched, before = self._storage.fetched, self._fetched_before
        if fetched is None:
            return None
        sizes = [size for name, size in self._read.items() if name in named]
        return Reads(
            len(sizes),
            sum(sizes),
            fetched.files - before.files,
            fetched.size_bytes - before.size_bytes,
        )

    def check(self, stored: StoredFile) -> None:
        """Raise DamagedState if a file is not what was sealed, or is gone while it is mapped."""
        if stored.content is None and not self._storage.exists(stored.name):
            self._open.pop(stored.name, None)
            self._verified.discard(stored.name)
        self._mapped(stored)

    def fetch(self, runs: Iterable[Run], files: Mapping[str, StoredFile]) -> None:
        """Fetch runs; the present task needs nothing else of their files.

        From an object store, it reads only the pages of these runs if that saves enough.
        """
        parts = defaultdict[str, set[int]](set)
        for run in runs:
            parts[run.file].add(run.part)
        fetched = self._storage.fetched
        for name, wanted in parts.items():
            stored = files[name]
            is_here = stored.content is not None or name in self._open
            if is_here or fetched is None or self._storage.is_near(name):
                continue
            before = fetched.size_bytes
            try:
                file = RunFile.fetch(self._storage, stored, wanted, SAVED_BYTES)
            except FileNotFoundError:
                continue  # `open` will report it
            if file is not None:
                self._partly[name] = _MappedFile(file)
                fetched.files += 1
                self._read[name] = fetched.size_bytes - before

    def open(self, run: Run, stored: StoredFile, wanted: pa.Schema | None = None) -> OpenRun:
        """Map `run`. `wanted`: the columns to return; None: those in the file.

        If a run is older than a wanted column, it gets NULL there; if it is older than the type of
        one, its values are cast. Raises DamagedState, with the path, if the file is not what was
        sealed.
        """
        mapped = self._partly.get(stored.name)
        if mapped is None or not mapped.file.has(run.part):
            mapped = self._mapped(stored)
        try:
            return mapped.open(run, wanted)
        except (pa.ArrowException, OSError, ValueError, LookupError):
            # It may have been altered since it was mapped.
            verify(self._storage, stored, "run file")
            raise

    def _mapped(self, stored: StoredFile) -> _MappedFile:
        if stored.content is None:
            self._read[stored.name] = stored.size_bytes
        if stored.name not in self._open:
            content = self._trusted(stored)
            if content is None:
                content = verify(self._storage, stored, "run file")
                self._verified.add(stored.name)
            try:
                file = RunFile.of(content)
            except (pa.ArrowException, ValueError, LookupError):
                # It may have been altered since its seal.
                verify(self._storage, stored, "run file")
                raise
            if not file.is_known:
                raise DamagedState(
                    f"run file {self._storage.folder}/{stored.name} has format {file.format!r}, "
                    f"not {RUN_FORMAT!r}; restore it from a copy"
                )
            self._open[stored.name] = _MappedFile(file)
        return self._open[stored.name]

    def _trusted(self, stored: StoredFile) -> pa.Buffer | None:
        """The content of a file that needs no check; None: it needs one, is gone, or is torn."""
        is_trusted = stored.content is None and stored.name in self._verified
        if not is_trusted or not self._storage.exists(stored.name):
            return None
        content = self._storage.map(stored.name)
        return content if content.size == stored.size_bytes else None


class RunStores:
    """The run stores of a worker process: for each operator, that of the newest start of a driver.

    Law: after a new start of the driver, files are verified again, because they may have been
    damaged in the meantime, while the worker process lived on.
    """

    def __init__(self, world: World, most: int = 64) -> None:
        self._world = world
        self._most = most
        self._stores: dict[tuple[str, int], tuple[str, RunStore]] = {}

    def store_of(
        self,
        folder: str,
        join: int,
        driver: str,
        storage: Callable[[World], Storage],
    ) -> RunStore:
        """The store of operator `join` for the start `driver` of a driver; drops the oldest stores.

        `storage`: gives the folder as a world's storage.
        """
        owner, store = self._stores.pop((folder, join), (None, None))
        if store is None or owner != driver:
            store = RunStore(storage(self._world))
        self._stores[folder, join] = driver, store
        while len(self._stores) > self._most:
            del self._stores[next(iter(self._stores))]
        return store


def unite(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges in any order -> the same numbers as disjoint ranges in order.

    >>> unite([(5, 9), (0, 3), (3, 4), (6, 7)])
    ((0, 4), (5, 9))
    """
    united = list[tuple[int, int]]()
    for lower, upper in sorted(ranges):
        if united and lower <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], upper))
        else:
            united.append((lower, upper))
    return tuple(united)


def excluded_rows(words: Words, ranges: tuple[tuple[int, int], ...]) -> Exclusions | None:
    """The rows of a run that lie in disjoint, ordered word ranges; None: no ranges."""
    if not ranges:
        return None
    lower = np.array([low for low, _ in ranges], np.uint64)
    upper = np.array([high % (1 << 64) for _, high in ranges], np.uint64)
    return exclude(words, lower, upper)
