"""Runs: immutable, sorted batches of one side at one instance.

Why: a stored tuple is written once, found by binary search in a memory map, and forgotten with its
run. Nothing is updated in place, so a kill can only leave a file that no manifest names.

What is on disk: an Arrow IPC file with one record batch per run (a task writes the runs of all its
instances into one file per batch and side). The first column, `__word`, is the sort order: key hash
above u (joinengine.model.keys); the others are the columns of the side.

Law: a run never changes. The manifest keeps beside it its exclusions: word ranges that moved to
another instance, or that a merge in progress has already copied.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Exclusions, Ints, exclude, rows_between
from joinengine.model.errors import DamagedState
from joinengine.model.keys import Side
from joinengine.world.storage import Storage, StoredFile, verify
from joinengine.world.world import World

WORD = "__word"
RUN_FORMAT = b"joinengine run 1"
_METADATA_KEY = b"joinengine.format"
#: An instance, and the side of its tuples.
Place = tuple[int, Side]


@dataclass(frozen=True, slots=True)
class Run:
    """One sorted batch: where it lies, and the facts that are known without opening it.

    `group`: the merge group; its pieces cover disjoint word ranges and together are one sorted run.
    `into`: the group that a merge in progress copies the run into. Times are event time in
    microseconds, None without a window. `settled_time`: the newest time of its oldest input;
    without merging, that input would leave the state `max_time - settled_time` earlier.
    `exclusions`: disjoint word ranges [lower, upper) in order (2^64 may end the last). `excluded`:
    how many rows they cover.
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


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A memory-mapped run: its words, its columns, and its excluded rows."""

    run: Run
    words: Words
    columns: pa.RecordBatch
    gone: Exclusions | None

    def live_rows(self) -> Ints:
        """The rows that are not excluded, in order."""
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
        self._parts = 0

    def add(self, words: Words, columns: pa.RecordBatch) -> tuple[int, int]:
        """Append one run, sorted by `words`; returns its part number and its size in bytes."""
        arrays = [pa.array(words), *columns.columns]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._parts += 1
        return self._parts - 1, words.nbytes + columns.get_total_buffer_size()

    def close(self) -> StoredFile:
        """Seal the file."""
        self._writer.close()
        self._sink.close()
        return self._storage.seal(self._name)


class _MappedFile(NamedTuple):
    """A memory-mapped run file, and the words and columns of the parts that were opened."""

    reader: Any
    parts: dict[int, tuple[Words, pa.RecordBatch]]


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

    def trust(self, name: str) -> None:
        """Skip the check of a file that this process has written itself."""
        self._verified.add(name)

    def retain(self, live: Container[str]) -> None:
        """Close the files that are not in `live`."""
        self._open = {name: mapped for name, mapped in self._open.items() if name in live}
        self._verified = {name for name in self._verified if name in live}

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
        if run.part not in mapped.parts:
            batch = mapped.reader.get_batch(run.part)
            schema = pa.schema(list(batch.schema)[1:])
            columns = pa.RecordBatch.from_arrays(batch.columns[1:], schema=schema)
            columns = columns if wanted is None else _as_wanted(columns, wanted)
            mapped.parts[run.part] = batch.column(0).to_numpy(zero_copy_only=True), columns
        words, columns = mapped.parts[run.part]
        return OpenRun(run, words, columns, excluded_rows(words, run.exclusions))

    def _mapped(self, stored: StoredFile) -> _MappedFile:
        if stored.name not in self._open:
            content = self._trusted(stored)
            if content is None:
                content = verify(self._storage, stored, "run file")
                self._verified.add(stored.name)
            reader = pa.ipc.open_file(content)
            found = (reader.schema.metadata or {}).get(_METADATA_KEY)
            if found != RUN_FORMAT:
                raise DamagedState(
                    f"run file {self._storage.folder}/{stored.name} has format {found!r}, not "
                    f"{RUN_FORMAT!r}; restore it from a copy"
                )
            self._open[stored.name] = _MappedFile(reader, {})
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
