"""Feeds: the interface `Feed`, and Parquet files as replayable streams of row groups.

Why: a feed says only *which row groups to read*, and the route task opens these with Arrow. So the
JVM converts no tuple. A position in a feed of files is a count of row groups.

There are two kinds of feeds of files. A *folder* feed watches a folder of the user. It logs each
file that it finds, with its row groups, before it returns a position after the file. On restart,
the log, not the folder, says what a position means. Two drivers that look at the same time share
one log (`joinengine.sources.sourcelog`).

A *recorded* feed is a finite stream that was cut into intervals when it was written. It also knows
how far event time has come at the end of each interval.

A file that is skipped is in the log with the reason. It takes one position, so that it is read once
as a row group without rows.

Law: the same positions always give the same row groups, to every driver. A file is in the log for
reading at most once. If a logged file has changed, it is refused by name, or skipped.
"""

from __future__ import annotations

import json
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from typing_extensions import override

from joinengine.model.errors import DamagedState
from joinengine.model.named import one_of
from joinengine.sources.listing import (
    MOST_FILES,
    Expected,
    FileOrder,
    Listing,
    OnBadFile,
    SchemaChanges,
    tell_awaited,
    tell_left,
)
from joinengine.sources.places import Piece
from joinengine.sources.positions import Entry, Logged, RowGroup, table_of
from joinengine.sources.schemas import Footer, from_text
from joinengine.sources.sourcefiles import text_of
from joinengine.sources.sourcelog import SourceLog
from joinengine.world.world import MACHINE

_log = logging.getLogger("joinengine")
#: The progress of a stream that has ended.
ENDED = math.inf
#: Seconds between two looks for new files while nothing is to be done, unless the user sets them:
#: in folders, and in object stores, where a look costs money. They are here for the processes that
#: Spark asks for new files, which import little else.
LOCAL_REST_S, REMOTE_REST_S = 0.01, 1.0
#: Seconds that a look which waits for half-written files sleeps before it looks again.
_AGAIN_S = 0.5


#: Waits some seconds; returns a true value if the wait must end.
Rest = Callable[[float], object]


class Feed(ABC):
    """A stream of pieces that tasks read. Only the feed knows which of two places is later.

    By default, a feed writes nothing, and keeps nothing open.
    """

    @abstractmethod
    def discover(self, *, wait: Rest | None = None) -> None:
        """Look for new pieces. With `wait`, look until no file of the first look is half-written.

        `wait(seconds)` waits, and returns a true value if this must end.
        """

    def check(self) -> None:
        """Raise the errors of `discover`; write nothing."""

    def take_over(self, generation: int) -> None:
        """From now on, write for the driver of a generation."""

    def tidy(self) -> None:
        """Tidy up the feed's files; called between two batches, after a committed one."""

    def close(self) -> None:
        """Close what looks have opened; the feed still knows its pieces."""

    @abstractmethod
    def begin(self) -> Any:
        """The place at which a query begins to read."""

    @abstractmethod
    def end(self) -> Any:
        """The place after all known pieces."""

    @abstractmethod
    def awaited(self) -> Any:
        """The place up to which the feed is read before others, if it is read first."""

    @abstractmethod
    def advance(self, position: Any) -> Any:
        """The end of the interval that begins at `position`; `position` if nothing follows."""

    @abstractmethod
    def is_beyond(self, position: Any, other: Any) -> bool:
        """Whether `position` is later than `other`, with pieces between them."""

    @abstractmethod
    def later(self, position: Any, other: Any) -> Any:
        """The later of two places."""

    @abstractmethod
    def earlier(self, position: Any, other: Any) -> Any:
        """The earlier of two places."""

    @abstractmethod
    def check_reaches(self, position: Any) -> None:
        """Raise DamagedState if the feed does not know the pieces before a place."""

    @abstractmethod
    def pieces(self, start: Any, end: Any) -> Sequence[Piece]:
        """The pieces between two places."""

    def progress(self, position: Any) -> float | None:
        """The event time (us) below which no tuple follows `position`; None: unknown."""
        return None

    def behind(self, position: Any) -> tuple[dict[int, int], int] | None:
        """Partition -> how many messages wait after a place; None: the feed has no partitions.

        The second value: after how many microseconds without messages a partition is idle.
        """
        return None


class CountedFeed(Feed):
    """A stream of row groups, one after another; positions count from 0."""

    @abstractmethod
    def row_groups(self, start: int, end: int) -> list[RowGroup]:
        """The row groups between two positions."""

    @override
    def begin(self) -> int:
        return 0

    @override
    def awaited(self) -> int:
        return int(self.end())

    @override
    def is_beyond(self, position: int, other: int) -> bool:
        return position > other

    @override
    def later(self, position: int, other: int) -> int:
        return max(position, other)

    @override
    def earlier(self, position: int, other: int) -> int:
        return min(position, other)

    @override
    def check_reaches(self, position: int) -> None:
        if position > self.end():
            self.row_groups(position, position)  # reads what another driver may have logged

    @override
    def pieces(self, start: int, end: int) -> Sequence[Piece]:
        return self.row_groups(start, end)


class FolderFeed(CountedFeed):
    """The Parquet files of a folder, in the order in which they appeared, or of names or times.

    A position counts row groups. An interval consists of whole row groups, at least one, until
    `rows_per_interval` rows are reached. If the feed `ends`, no file follows those that it knows.
    """

    def __init__(
        self,
        folder: str,
        rows_per_interval: int,
        log: SourceLog | None,
        expected: Expected | None = None,
        footers: Mapping[str, Footer] | None = None,
        *,
        ends: bool = False,
    ) -> None:
        """`expected`: None: any file fits. `footers`: path -> footer, if known already."""
        self._folder = folder.rstrip("/") or "/"  # so that a file always has the same path
        self._ends = ends
        self._rows_per_interval = rows_per_interval
        self._log = log
        self._logged = Logged()
        most = None if log is None else MOST_FILES
        self._listing = Listing(self._folder, expected or Expected(), self._logged, footers, most)
        self._read_on()

    @override
    def discover(self, *, wait: Rest | None = None) -> None:
        """Log new files, at most MOST_FILES of them; hidden ones (`.`, `_`) never.

        With `wait`, log all of them; a file that still changes when its time is over is left to a
        later look. Raises InvalidRequest, with the file, for a bad file that may not be skipped.
        """
        self._look()
        if wait is None:
            return
        while self._listing.has_more:
            self._look()
        awaited = dict(self._listing.unsettled_s)
        tell_awaited(awaited)
        until_s = MACHINE.timer_s() + max(awaited.values(), default=0.0)
        while awaited and not wait(min(max(awaited.values()), _AGAIN_S)):
            is_last = MACHINE.timer_s() >= until_s
            self._look()
            awaited = {
                file: left_s
                for file, left_s in self._listing.unsettled_s.items()
                if file in awaited
            }
            if is_last:
                tell_left(awaited)
                return

    def _look(self) -> None:
        while entries := self._listing.look(MACHINE.now_s()):
            if self._log is None or self._log.append(entries):
                self._take(entries)
                return
            self._read_on()  # another driver was faster, and may have logged the same files

    @override
    def check(self) -> None:
        self._listing.look(MACHINE.now_s())

    @override
    def take_over(self, generation: int) -> None:
        if self._log is not None:
            self._log.generation = generation

    def _read_on(self) -> None:
        """Read the entries that other drivers have logged."""
        for files in () if self._log is None else self._log.read_on():
            self._logged.add(files)

    @override
    def tidy(self) -> None:
        """Fold the log, if it has many segments."""
        if self._log is not None:
            self._log.fold(self._logged)

    @override
    def close(self) -> None:
        """Stop watching the folder."""
        self._listing.close()

    @override
    def end(self) -> int:
        return self._logged.end

    @override
    def advance(self, position: int) -> int:
        return self._logged.advance(position, self._rows_per_interval)

    @override
    def row_groups(self, start: int, end: int) -> list[RowGroup]:
        """The row groups between two positions, including those that another process has logged.

        Raises DamagedState if the log is shorter.
        """
        if end > self.end():
            self._read_on()
        if end > self.end():
            log = self._log and self._log.storage.folder
            raise DamagedState(
                f"source log {log} lists {self.end()} row groups of {self._folder}, but the "
                f"checkpoint has read {end}; restore the log from a copy"
            )
        return list(self._logged.between(start, end))

    @override
    def progress(self, position: int) -> float | None:
        """ENDED at the end of a feed that ends; otherwise None, since later files are unknown."""
        has_ended = self._ends and position >= self.end() and not self._listing.has_more
        return ENDED if has_ended else None

    def _take(self, entries: Sequence[Entry]) -> None:
        if self._log is None:
            # Without a log, a restart would not know of skipped files, and count other positions.
            skipped = [entry for entry in entries if "skipped" in entry]
            entries = [entry for entry in entries if "skipped" not in entry]
            for entry in skipped:
                file, reason = entry["file"], entry["skipped"]
                _log.warning("joinengine: skipped source file %s: it %s", file, reason)
                self._logged.skipped[file] = entry["size"], entry["modified_ns"]
        self._logged.add(table_of(entries))


class RecordedFeed(CountedFeed):
    """A finite stream that was written interval by interval; a position counts intervals.

    `index` is a JSON file: `intervals` has, per interval, its row groups [file, group, rows];
    `progress` has, per interval, the event time below which no tuple follows it.
    """

    def __init__(self, index: str) -> None:
        self._folder = index.rpartition("/")[0]
        content = json.loads(text_of(index))
        self._intervals: list[list[list[Any]]] = content["intervals"]
        self._progress: list[int] = content["progress"]

    @override
    def discover(self, *, wait: Rest | None = None) -> None:
        """Do nothing: a recorded stream gets no new files."""

    @override
    def end(self) -> int:
        return len(self._intervals)

    @override
    def advance(self, position: int) -> int:
        return min(position + 1, len(self._intervals))

    @override
    def row_groups(self, start: int, end: int) -> list[RowGroup]:
        rows = [row for interval in self._intervals[start:end] for row in interval]
        return [RowGroup(f"{self._folder}/{file}", group, n) for file, group, n in rows]

    @override
    def progress(self, position: int) -> float | None:
        """The event time recorded for the end of the interval; ENDED after the last one."""
        if position >= len(self._intervals):
            return ENDED
        return None if position == 0 else self._progress[position - 1]


class FeedKind(StrEnum):
    """A folder that may get more files, a stream recorded with its intervals, or a topic."""

    FOLDER = "folder"
    RECORDED = "recorded"
    KAFKA = "kafka"


def open_feed(options: dict[str, Any], footers: Mapping[str, Footer] | None = None) -> Feed:
    """A feed from plain options; `footers`: as in `FolderFeed`.

    Raises InvalidRequest for an unknown kind.
    """
    match one_of(FeedKind, options["kind"], "feed"):
        case FeedKind.FOLDER:
            folder = options.get("log")
            generation = options.get("generation", 0)
            log = None if folder is None else SourceLog(MACHINE.storage(folder), generation)
            rows, ends = options["rows_per_interval"], options.get("ends", False)
            expected = expected_of(options)
            return FolderFeed(options["path"], rows, log, expected, footers, ends=ends)
        case FeedKind.RECORDED:
            return RecordedFeed(options["path"])
        case FeedKind.KAFKA:
            # Imported here, because that module imports this one.
            from joinengine.sources.kafka_feed import KafkaFeed  # noqa: PLC0415

            return KafkaFeed(options["topic"], options.get("log"))


def expected_of(options: dict[str, Any]) -> Expected:
    """The demands of a folder feed on its files, from its plain options."""
    text = options.get("columns")
    return Expected(
        columns=None if text is None else from_text(text),
        on_bad_file=OnBadFile(options.get("on_bad_file", OnBadFile.FAIL)),
        schema_changes=SchemaChanges(options.get("schema_changes", SchemaChanges.REFUSE)),
        settle_s=options.get("settle_s", 0.0),
        zone=options.get("zone", "UTC"),
        order=FileOrder(options.get("order", FileOrder.MODIFIED)),
        time=options.get("time"),
    )
