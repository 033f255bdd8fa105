"""Runs: immutable, sorted batches of one side at one instance.

Why: a stored tuple is written once, found by binary search in a memory map, and forgotten with its
run. Nothing is updated in place, so a kill can only leave a file that no manifest names.

Law: a run never changes. The manifest keeps beside it its exclusions: word ranges that moved to
another instance, or that a merge in progress has already copied.
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

#: A file is closed if no task of a process was told of it in so many batches.
IDLE = 8
#: To read some pages of a file by ranges takes one request more; it must save so many bytes, which
#: is what a store gives in the time of a request (100 MB/s, 40 ms).
SAVED_BYTES = 4 << 20
#: An instance, and the side of its tuples.
Place = tuple[int, Side]


class Run(NamedTuple):
    """One sorted batch: where it lies, and the facts that are known without opening it.

    `part`: which run of the file. `group`: the merge group; one after the other its pieces are one
    sorted run. `into`: the group that a merge in progress copies the run into.
    Times are event time in microseconds, None without a window. `settled_time`: the newest time of
    its oldest input; without merging, that input would leave the state `max_time - settled_time`
    earlier. `exclusions`: disjoint word ranges [lower, upper) in order (2^64 may end the last).
    `excluded`: how many rows they cover.
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
        """How many of its rows take that many bytes; at least one."""
        return max(self.rows * size_bytes // max(self.size_bytes, 1), 1)

    def without(self, ranges: Iterable[tuple[int, int]], words: Words) -> Run:
        """The run without the word ranges `ranges`; `words`: those of the run."""
        united = unite([*self.exclusions, *ranges])
        gone = excluded_rows(words, united)
        return self._replace(exclusions=united, excluded=gone.rows if gone else 0)


#: Runs by `Run.ident`.
RunsByIdent = dict[tuple[str, int], Run]
#: The runs of some instances and sides; those of a place are its spine.
Spread = Mapping[Place, tuple[Run, ...]]


class OpenRun(NamedTuple):
    """A memory-mapped run: the page whose rows from `start` on are its, and which are excluded.

    Its words and columns are cut out of the page when they are asked for: where instances are many,
    pages are searched as a whole.
    """

    run: Run
    page: Page
    start: int = 0
    gone: Exclusions | None = None

    @property
    def words(self) -> Words:
        """(rows,) those of the run, ascending."""
        return self.page.words[self.start : self.start + self.run.rows]

    @property
    def columns(self) -> pa.RecordBatch:
        """Those of the run; excluded rows are there."""
        if self.run.rows == len(self.page.words):
            return self.page.columns
        return self.page.columns.slice(self.start, self.run.rows)

    def live_rows(self) -> Ints:
        """The rows that are not excluded, in order."""
        if self.gone is None:
            return np.arange(self.run.rows)
        everything = np.zeros(1, np.uint64)
        return rows_between(self.words, everything, everything, self.gone)


@dataclass(frozen=True, slots=True)
class _MappedFile:
    """A memory-mapped run file; `opened`: per part the run as it was opened last.

    Most runs are the same from batch to batch, and a batch may open thousands.
    """

    file: RunFile
    opened: dict[int, OpenRun] = field(default_factory=dict)

    def open(self, run: Run, wanted: pa.Schema | None) -> OpenRun:
        """One of its runs; `wanted`: as in `RunStore.open`, the same each time."""
        opened_before = self.opened.get(run.part)
        if opened_before is not None and opened_before.run == run:
            return opened_before
        opened = OpenRun(run, *self.file.page(run.part, wanted))
        if run.exclusions:
            opened = opened._replace(gone=excluded_rows(opened.words, run.exclusions))
        self.opened[run.part] = opened
        return opened


class Reads(NamedTuple):
    """The run files of earlier batches that a task has opened, where files lie in an object store.

    `fetched`: of these, what its machine had no copy of; and the bytes of both. Of a file that was
    read by ranges these are the bytes that were read.
    """

    files: int = 0
    size_bytes: int = 0
    fetched_files: int = 0
    fetched_bytes: int = 0


class RunStore:
    """Opens the runs of one operator and keeps their maps.

    A file is checked against its CRC once per store, at its first open, and a store belongs to one
    start of a driver (`RunStores`). A map costs the process no memory, since its pages belong to
    the file cache; but it keeps a removed file on disk, hence `retain`.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._open: dict[str, _MappedFile] = {}
        #: the files of which the present task has fetched some pages alone
        self._partly: dict[str, _MappedFile] = {}
        self._verified: set[str] = set()
        #: the batch in which a task was told of a file last
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
        """A task of `batch` is told of the files `named`; close those that none was told of lately.

        A task is told of its own files alone, and this process may run other tasks in turn.
        """
        self._batch = batch
        self._read = {}
        self._partly = {}
        self._fetched_before = replace(self._storage.fetched or Fetched())
        self._told.update(dict.fromkeys(named, batch))
        self._told = {name: last for name, last in self._told.items() if last > batch - IDLE}
        self.retain(self._told)

    def reads(self, named: Container[str]) -> Reads | None:
        """What the present task has read of the files `named`; None: all files are near."""
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
        """Get runs; of their files the present task needs no others.

        So of files that are far it reads no more than their pages, where that saves something.
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
                continue  # whoever opens it will tell
            if file is not None:
                self._partly[name] = _MappedFile(file)
                fetched.files += 1
                self._read[name] = fetched.size_bytes - before

    def open(self, run: Run, stored: StoredFile, wanted: pa.Schema | None = None) -> OpenRun:
        """Map `run`; `wanted`: the columns to give, None: those that it has.

        A run may be older than a column, or than the type of one: it then has NULL there, or its
        values in that type. Raises DamagedState, with the path, if the file is not what was sealed.
        """
        mapped = self._partly.get(stored.name)
        if mapped is None or not mapped.file.has(run.part):
            mapped = self._mapped(stored)
        return mapped.open(run, wanted)

    def _mapped(self, stored: StoredFile) -> _MappedFile:
        if stored.content is None:
            self._read[stored.name] = stored.size_bytes
        if stored.name not in self._open:
            content = self._trusted(stored)
            if content is None:
                content = verify(self._storage, stored, "run file")
                self._verified.add(stored.name)
            file = RunFile.of(content)
            if not file.is_known:
                raise DamagedState(
                    f"run file {self._storage.folder}/{stored.name} has format {file.format!r}, "
                    f"not {RUN_FORMAT!r}; restore it from a copy"
                )
            self._open[stored.name] = _MappedFile(file)
        return self._open[stored.name]

    def _trusted(self, stored: StoredFile) -> pa.Buffer | None:
        """The content of a file that needs no check; None: it needs one, or is gone or torn."""
        is_trusted = stored.content is None and stored.name in self._verified
        if not is_trusted or not self._storage.exists(stored.name):
            return None
        content = self._storage.map(stored.name)
        return content if content.size == stored.size_bytes else None


class RunStores:
    """The run stores of a worker process: per operator of a checkpoint that of the newest driver.

    Law: a driver verifies files anew that tasks of the driver before have verified, because they
    may have been damaged since, while the worker process stayed.
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
        """The store of operator `join` for the start `driver` of a driver; the oldest ones go.

        `storage`: the folder, as a world has it.
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
