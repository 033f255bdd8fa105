"""Runs: immutable, sorted batches of one side at one instance.

Why: a stored tuple is written once, found by binary search in a memory map, and forgotten with its
run. Nothing is updated in place, so a kill can only leave a file that no manifest names.

What is on disk: an Arrow IPC file of one task, side and batch. Each record batch is a *page*: one
run, or the runs of several instances that were sealed together, one after another; its metadata
says where each begins. The first column, `__word`, is the sort order of a run: key hash above u
(joinengine.model.keys); the others are the columns of the side. In files of format 1, which are
still read, each record batch is one run.

Law: a run never changes. The manifest keeps beside it its exclusions: word ranges that moved to
another instance, or that a merge in progress has already copied.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Exclusions, Ints, exclude, rows_between
from joinengine.model.errors import DamagedState
from joinengine.model.keys import Side
from joinengine.world.storage import Fetched, Storage, StoredFile, verify
from joinengine.world.world import World

WORD = "__word"
RUN_FORMAT = b"joinengine run 2"
#: In this format a record batch is one run, and the number of a part is that of its record batch.
ONE_RUN_A_PAGE = b"joinengine run 1"
_METADATA_KEY = b"joinengine.format"
#: In the metadata of a page: (runs + 1,) 64-bit integers, where each run begins, and the end.
_BOUNDS_KEY = b"joinengine.bounds"
#: The number of a part is that of its page, times this, plus its place in the page.
_PARTS = 1 << 20
#: A file is closed if no task of a process was told of it in so many batches.
IDLE = 8
#: An instance, and the side of its tuples.
Place = tuple[int, Side]


@dataclass(frozen=True, slots=True)
class Run:
    """One sorted batch: where it lies, and the facts that are known without opening it.

    `part`: which run of the file. `group`: the merge group; its pieces cover disjoint word ranges
    and together are one sorted run. `into`: the group that a merge in progress copies the run into.
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

    def without(self, ranges: Iterable[tuple[int, int]], words: Words) -> Run:
        """The run without the word ranges `ranges`; `words`: those of the run."""
        united = unite([*self.exclusions, *ranges])
        gone = excluded_rows(words, united)
        return replace(self, exclusions=united, excluded=gone.rows if gone else 0)


class Page(NamedTuple):
    """(m,) words and columns of runs that lie side by side, each sorted by word."""

    words: Words
    columns: pa.RecordBatch


#: Runs by `Run.ident`.
RunsByIdent = dict[tuple[str, int], Run]
#: The runs of some instances and sides; those of a place are its spine.
Spread = Mapping[Place, tuple[Run, ...]]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A memory-mapped run: its words, its columns, and its excluded rows.

    `page`: the page whose rows from `start` on are these; None: it has no other rows.
    """

    run: Run
    words: Words
    columns: pa.RecordBatch
    gone: Exclusions | None
    page: Page | None = None
    start: int = 0

    @classmethod
    def on(cls, page: Page, start: int, run: Run, gone: Exclusions | None) -> OpenRun:
        """The run whose rows in `page` begin at `start`."""
        if run.rows == len(page.words):
            return cls(run, page.words, page.columns, gone, page)
        stop = start + run.rows
        columns = page.columns.slice(start, run.rows)
        return cls(run, page.words[start:stop], columns, gone, page, start)

    def live_rows(self) -> Ints:
        """The rows that are not excluded, in order."""
        if self.gone is None:
            return np.arange(self.run.rows)
        everything = np.zeros(1, np.uint64)
        return rows_between(self.words, everything, everything, self.gone)


class RunWriter:
    """Writes the runs of one task, side and batch into one file."""

    def __init__(self, storage: Storage, name: str, schema: pa.Schema) -> None:
        fields = [pa.field(WORD, pa.uint64(), nullable=False), *schema]
        self._schema = pa.schema(fields, metadata={_METADATA_KEY: RUN_FORMAT})
        self._storage = storage
        self._name = name
        self._sink = storage.output(name)
        self._writer = pa.ipc.new_file(self._sink, self._schema)
        self._pages = 0

    def add(self, page: Page, bounds: Ints) -> list[tuple[int, int]]:
        """Append runs, each sorted by word; run i in the rows bounds[i]:bounds[i + 1] of `page`.

        Returns the part number of each, and its size in bytes, by its share of the rows.
        """
        arrays = [pa.array(page.words), *page.columns.columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        told = {_BOUNDS_KEY: bounds.astype(np.int64).tobytes()} if len(bounds) > 2 else None
        self._writer.write_batch(batch, custom_metadata=told)
        size = page.words.nbytes + page.columns.get_total_buffer_size()
        sizes = (np.diff(bounds) * size // len(page.words)).tolist()
        first = self._pages * _PARTS
        self._pages += 1
        return list(zip(range(first, first + len(sizes)), sizes, strict=True))

    def close(self) -> StoredFile:
        """Seal the file."""
        self._writer.close()
        self._sink.close()
        return self._storage.seal(self._name)


@dataclass(frozen=True, slots=True)
class _MappedFile:
    """A memory-mapped run file, and what was opened of it.

    `pages`: with where their runs begin. `gone`: per part the exclusions that were asked last.
    """

    reader: Any
    parts: int
    pages: dict[int, tuple[Page, list[int]]] = field(default_factory=dict)
    gone: dict[int, tuple[tuple[tuple[int, int], ...], Exclusions | None]] = field(
        default_factory=dict
    )

    def page(self, part: int, wanted: pa.Schema | None) -> tuple[Page, int]:
        """The page of a part, and its first row there; `wanted`: as in `RunStore.open`."""
        number, place = divmod(part, self.parts)
        if number not in self.pages:
            batch, told = self.reader.get_batch_with_custom_metadata(number)
            schema = pa.schema(list(batch.schema)[1:])
            columns = pa.RecordBatch.from_arrays(batch.columns[1:], schema=schema)
            columns = columns if wanted is None else _as_wanted(columns, wanted)
            page = Page(batch.column(0).to_numpy(zero_copy_only=True), columns)
            found = None if told is None else told.get(_BOUNDS_KEY)
            self.pages[number] = page, np.frombuffer(found or bytes(8), np.int64).tolist()
        page, starts = self.pages[number]
        return page, starts[place]

    def excluded(self, run: Run, words: Words) -> Exclusions | None:
        """The excluded rows of a run; most runs keep their exclusions from batch to batch."""
        if not run.exclusions:
            return None
        known = self.gone.get(run.part)
        if known is None or known[0] != run.exclusions:
            known = self.gone[run.part] = run.exclusions, excluded_rows(words, run.exclusions)
        return known[1]


class Reads(NamedTuple):
    """The run files of earlier batches that a task has opened, where files lie in an object store.

    `fetched`: of these, what its machine had no copy of; and the bytes of both.
    """

    files: int
    size_bytes: int
    fetched_files: int
    fetched_bytes: int


class RunStore:
    """Opens the runs of one operator and keeps their maps.

    A file is checked against its CRC once per store, at its first open, and a store belongs to one
    start of a driver (`RunStores`). A map costs the process no memory, since its pages belong to
    the file cache; but it keeps a removed file on disk, hence `retain`.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._open: dict[str, _MappedFile] = {}
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
        if not self._storage.exists(stored.name):
            self._open.pop(stored.name, None)
            self._verified.discard(stored.name)
        self._mapped(stored)

    def open(self, run: Run, stored: StoredFile, wanted: pa.Schema | None = None) -> OpenRun:
        """Map `run`; `wanted`: the columns to give, None: those that it has.

        A run may be older than a column, or than the type of one: it then has NULL there, or its
        values in that type. Raises DamagedState, with the path, if the file is not what was sealed.
        """
        mapped = self._mapped(stored)
        page, start = mapped.page(run.part, wanted)
        words = page.words[start : start + run.rows]
        return OpenRun.on(page, start, run, mapped.excluded(run, words))

    def _mapped(self, stored: StoredFile) -> _MappedFile:
        self._read[stored.name] = stored.size_bytes
        if stored.name not in self._open:
            content = self._trusted(stored)
            if content is None:
                content = verify(self._storage, stored, "run file")
                self._verified.add(stored.name)
            reader = pa.ipc.open_file(content)
            found = (reader.schema.metadata or {}).get(_METADATA_KEY)
            if found not in (RUN_FORMAT, ONE_RUN_A_PAGE):
                raise DamagedState(
                    f"run file {self._storage.folder}/{stored.name} has format {found!r}, not "
                    f"{RUN_FORMAT!r}; restore it from a copy"
                )
            self._open[stored.name] = _MappedFile(reader, _PARTS if found == RUN_FORMAT else 1)
        return self._open[stored.name]

    def _trusted(self, stored: StoredFile) -> pa.Buffer | None:
        """The content of a file that needs no check; None: it needs one, or is gone or torn."""
        if stored.name not in self._verified or not self._storage.exists(stored.name):
            return None
        content = self._storage.map(stored.name)
        return content if content.size == stored.size_bytes else None


def _as_wanted(columns: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The columns of an older run as the query has them now; right ones are not copied."""
    if columns.schema.equals(wanted):
        return columns
    found = [
        columns.column(field.name).cast(field.type)
        if field.name in columns.schema.names
        else pa.nulls(columns.num_rows, field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(found, schema=wanted)


class RunStores:
    """The run stores of a worker process: per operator of a checkpoint that of the newest driver.

    Law: a driver verifies files anew that tasks of the driver before have verified, because they
    may have been damaged since, while the worker process stayed.
    """

    def __init__(self, world: World, most: int = 64) -> None:
        self._world = world
        self._most = most
        self._stores: dict[tuple[str, int], tuple[str, RunStore]] = {}

    def store_of(self, folder: str, join: int, driver: str, cache_bytes: int = 0) -> RunStore:
        """The store of operator `join` for the start `driver` of a driver; the oldest ones go.

        `cache_bytes`: as in `World.storage`.
        """
        owner, store = self._stores.pop((folder, join), (None, None))
        if store is None or owner != driver:
            store = RunStore(self._world.storage(folder, cache_bytes=cache_bytes))
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
