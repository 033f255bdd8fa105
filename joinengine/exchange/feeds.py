"""Feeds: Parquet files as streams of row groups, in a recorded order that can be replayed.

Why: a source that hands out *which row groups to read* lets the route task open them with Arrow
itself; no tuple is converted in the JVM. A position in a feed is a count, so an offset is a number.

There are two kinds. A *folder* feed watches a folder of the user and logs each file that it finds,
with its row groups, before it hands out a position after the file; on restart the log, not the
folder, says what a position means. The log is a sequence of segments, each created once, under the
number of files that the log had before it: if two drivers look at the same time, only one can write
the next segment; the other reads it and looks again (joinengine.exchange.sourcelog).

A *recorded* feed is a finite stream that was cut into intervals when it was written; it also knows
how far event time has come at the end of each interval.

Law: the same positions give the same row groups, for ever, to every driver; a file is in the log at
most once. If a logged file has changed since, it is refused by name.
"""

from __future__ import annotations

import json
import math
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import override

from joinengine.exchange.sourcelog import Entry, SourceLog
from joinengine.model.conditions import Predicate
from joinengine.model.errors import DamagedState, InvalidRequest
from joinengine.model.named import one_of
from joinengine.predicates.theta import passes
from joinengine.world.world import MACHINE

#: The progress of a stream that has ended.
ENDED = math.inf
_READ_ROWS = 1 << 17


class RowGroup(NamedTuple):
    """A row group of a file; `size`, `modified_ns`: the file when it was logged, -1: unlogged."""

    file: str
    group: int
    rows: int
    size: int = -1
    modified_ns: int = -1


class Feed(Protocol):
    """A stream of row groups; positions count from 0."""

    @abstractmethod
    def discover(self) -> None:
        """Look for new row groups."""

    @abstractmethod
    def end(self) -> int:
        """The position after all known row groups."""

    @abstractmethod
    def advance(self, position: int) -> int:
        """The end of the interval that begins at `position`; `position` if nothing follows it."""

    @abstractmethod
    def row_groups(self, start: int, end: int) -> list[RowGroup]:
        """The row groups between two positions."""

    @abstractmethod
    def progress(self, position: int) -> float | None:
        """Event time (microseconds) below which nothing follows `position`; None: unknown."""


class FolderFeed(Feed):
    """The Parquet files of a folder, in the order in which they appeared.

    A position counts row groups. An interval is whole row groups, one at least, until
    `rows_per_interval` rows are reached.
    """

    def __init__(self, folder: str, rows_per_interval: int, log: SourceLog | None) -> None:
        self._folder = Path(folder)
        self._rows_per_interval = rows_per_interval
        self._log = log
        self._groups = list[RowGroup]()
        self._known = set[str]()
        self._read_on()

    @override
    def discover(self) -> None:
        """Log the files that have appeared since; hidden ones (`.`, `_`) are left out."""
        while entries := self._new_entries():
            if self._log is None or self._log.append(entries):
                for entry in entries:
                    self._take(entry)
                return
            self._read_on()  # another driver was faster; it may have logged the same files

    def _read_on(self) -> None:
        """Take up the entries that other drivers have logged."""
        for entry in () if self._log is None else self._log.read_on():
            self._take(entry)

    def _new_entries(self) -> list[Entry]:
        found = list[tuple[int, str, int]]()
        for path in parquet_files(self._folder):
            if str(path) not in self._known:
                stat = path.stat()
                found.append((stat.st_mtime_ns, str(path), stat.st_size))
        entries = list[Entry]()
        for modified_ns, name, size in sorted(found):
            metadata = read_footer(Path(name))
            rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            entries.append({"file": name, "size": size, "modified_ns": modified_ns, "rows": rows})
        return entries

    @override
    def end(self) -> int:
        return len(self._groups)

    @override
    def advance(self, position: int) -> int:
        rows = 0
        for number in range(position, len(self._groups)):
            rows += self._groups[number].rows
            if rows >= self._rows_per_interval:
                return number + 1
        return len(self._groups)

    @override
    def row_groups(self, start: int, end: int) -> list[RowGroup]:
        """The row groups between two positions; DamagedState if the log is shorter."""
        if end > len(self._groups):
            log = self._log and self._log.storage.folder
            raise DamagedState(
                f"source log {log} knows {len(self._groups)} row groups of {self._folder}, but the "
                f"checkpoint has read {end}: restore the log from a copy"
            )
        return self._groups[start:end]

    @override
    def progress(self, position: int) -> float | None:
        """Unknown: files do not say which event times follow."""
        return None

    def _take(self, entry: Entry) -> None:
        self._known.add(entry["file"])
        self._groups += [
            RowGroup(entry["file"], group, rows, entry["size"], entry["modified_ns"])
            for group, rows in enumerate(entry["rows"])
            if rows
        ]


class RecordedFeed(Feed):
    """A finite stream that was written interval by interval; a position counts intervals.

    `index` is a JSON file: `intervals`, per interval its row groups [file, group, rows], and
    `progress`, per interval the event time below which nothing follows it.
    """

    def __init__(self, index: str) -> None:
        self._folder = Path(index).parent
        content = json.loads(Path(index).read_text())
        self._intervals: list[list[list[Any]]] = content["intervals"]
        self._progress: list[int] = content["progress"]

    @override
    def discover(self) -> None:
        """Nothing is ever new."""

    @override
    def end(self) -> int:
        return len(self._intervals)

    @override
    def advance(self, position: int) -> int:
        return min(position + 1, len(self._intervals))

    @override
    def row_groups(self, start: int, end: int) -> list[RowGroup]:
        rows = [row for interval in self._intervals[start:end] for row in interval]
        return [RowGroup(str(self._folder / file), group, n) for file, group, n in rows]

    @override
    def progress(self, position: int) -> float | None:
        """The event time recorded at the cut; at the end, that the stream has ended."""
        if position >= len(self._intervals):
            return ENDED
        return None if position == 0 else self._progress[position - 1]


class FeedKind(StrEnum):
    """A folder that may get more files, or a stream that was recorded with its intervals."""

    FOLDER = "folder"
    RECORDED = "recorded"


def open_feed(options: dict[str, Any]) -> Feed:
    """A feed from the plain values that travel to the source.

    Raises InvalidRequest for a kind that is unknown.
    """
    match one_of(FeedKind, options["kind"], "feed"):
        case FeedKind.FOLDER:
            folder = options.get("log")
            generation = options.get("generation", 0)
            log = None if folder is None else SourceLog(MACHINE.storage(folder), generation)
            return FolderFeed(options["path"], options["rows_per_interval"], log)
        case FeedKind.RECORDED:
            return RecordedFeed(options["path"])


def fold(groups: Sequence[tuple[int, RowGroup]], parts: int) -> list[list[tuple[int, RowGroup]]]:
    """(source, row group) pairs in order -> at most `parts` stretches of about equal rows.

    >>> [len(part) for part in fold([(0, RowGroup("f", i, 10)) for i in range(5)], 2)]
    [2, 3]
    """
    ends = list(accumulate(group.rows for _, group in groups))
    folded: list[list[tuple[int, RowGroup]]] = [[] for _ in range(parts)]
    for (source, group), end in zip(groups, ends, strict=True):
        middle = end - group.rows / 2
        folded[min(int(middle * parts / ends[-1]), parts - 1)].append((source, group))
    return [part for part in folded if part]


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files below `folder` (or the file that it is), hidden ones left out."""
    if folder.is_file():
        return [folder]
    files = list[Path]()
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        files += [
            Path(root, n) for n in sorted(names) if n[0] not in "._" and n.endswith(".parquet")
        ]
    return files


def read_footer(path: Path) -> Any:
    """The Parquet metadata of a file. Raises InvalidRequest, with its path, if it has none."""
    try:
        return pq.read_metadata(str(path))
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidRequest(
            f"{path} is not a whole Parquet file ({error}); write files elsewhere and rename them "
            f"into the folder when they are done"
        ) from None


@dataclass(frozen=True, slots=True)
class Reading:
    """How the tuples of a feed are read: the columns to deliver, and the filters.

    `whole`: the columns of the files, which `filters` may name; None: those of `schema`.
    """

    schema: pa.Schema
    filters: tuple[Predicate, ...] = ()
    whole: pa.Schema | None = None

    @property
    def columns(self) -> pa.Schema:
        """The columns that filters may name."""
        return self.schema if self.whole is None else self.whole

    @property
    def where(self) -> str | None:
        """The filters as one text; None: there are none."""
        texts = [predicate.text for predicate in self.filters]
        return reduce(lambda one, other: f"({one}) and ({other})", texts) if texts else None

    def batches(self, groups: Sequence[RowGroup]) -> Iterator[pa.RecordBatch]:
        """The tuples of row groups that lie in one file."""
        path = groups[0].file
        if groups[0].size >= 0:
            _check_unchanged(path, groups[0])
        asked = {name for predicate in self.filters for _, name in predicate.columns}
        needed = [name for name in self.columns.names if name in {*self.schema.names, *asked}]
        with pq.ParquetFile(path, memory_map=True) as file:
            numbers = [group.group for group in groups]
            for batch in file.iter_batches(_READ_ROWS, numbers, needed, use_threads=False):
                kept = self._wanted(batch)
                if kept.num_rows:
                    yield conform(kept, self.schema)

    def _wanted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The tuples of which all filters are true."""
        for predicate in self.filters:
            fields = [self.columns.field(name) for _, name in predicate.columns]
            asked = conform(batch, pa.schema(fields)) if fields else batch
            batch = batch.filter(pa.array(passes(predicate, asked)))
        return batch


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema` in its order and types; a column of that type is not copied."""
    columns = []
    for field in schema:
        column = batch.column(field.name)
        columns.append(column if column.type == field.type else pc.cast(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def by_file(groups: Sequence[RowGroup]) -> Iterator[list[RowGroup]]:
    """Stretches of row groups that lie in one file."""
    part = list[RowGroup]()
    for group in groups:
        if part and part[-1].file != group.file:
            yield part
            part = []
        part.append(group)
    if part:
        yield part


def _check_unchanged(path: str, logged: RowGroup) -> None:
    try:
        stat = Path(path).stat()
    except FileNotFoundError:
        raise DamagedState(f"source file {path} was logged and is gone; put it back") from None
    if (stat.st_size, stat.st_mtime_ns) != (logged.size, logged.modified_ns):
        raise DamagedState(
            f"source file {path} has changed since it was logged; a replay would read other "
            f"tuples: put the logged file back"
        )
