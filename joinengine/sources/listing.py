"""Lists the new files of a folder, and decides which of them fit the stream and which are bad.

Why before a file is logged: an entry of the log stays for ever, so a file that cannot be read must
not be logged for reading. A footer shows whether a file is whole and which columns it has; it is
read once.

Law: a file is logged for reading at most once. A bad file is logged only if it is skipped, and only
once; it is checked again when it has changed. The first look of each start also checks skipped
files again, since a start may have other rules; the entry that skips such a file stays.
Cost: that of finding the files (`joinengine.sources.discovery`), and one footer for each new file;
at the first look, also one for each skipped file.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from joinengine.model.errors import InvalidRequest, UnreadableFile
from joinengine.model.texts import in_a_line
from joinengine.sources.discovery import Finding, by_modification, by_name
from joinengine.sources.footer_times import least_time
from joinengine.sources.positions import Entry, Logged
from joinengine.sources.schemas import (
    Footer,
    misfit,
    partition_value,
    partition_values,
    plain_columns,
    unknown,
)
from joinengine.sources.sourcefiles import SourceFile, find, look_at, opened
from joinengine.world.buckets import is_url
from joinengine.world.local import check_blame

_log = logging.getLogger("joinengine")
#: The number of threads that read footers, since reading a footer means waiting for the disk.
_THREADS = 8
#: The most files that a look returns: their footers take about a second.
MOST_FILES = 10_000


class OnBadFile(StrEnum):
    """What happens if a file does not fit the stream or cannot be read."""

    FAIL = "fail"
    SKIP = "skip"


class SchemaChanges(StrEnum):
    """What happens if a file has a column that the stream did not have when it started."""

    REFUSE = "refuse"
    ADD = "add"


class FileOrder(StrEnum):
    """The order in which the files that a look finds are read."""

    MODIFIED = "modified"
    NAME = "name"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Expected:
    """The demands of a stream on its files, and the order in which it reads them.

    `columns`: in plain types; None: files are not compared. `settle_s`: seconds since its last
    change for which a file may be half-written. `zone`: of instants in the names of folders.
    `time`: the column whose earliest times sort files, under TIME.
    """

    columns: pa.Schema | None = None
    on_bad_file: OnBadFile = OnBadFile.FAIL
    schema_changes: SchemaChanges = SchemaChanges.REFUSE
    settle_s: float = 0.0
    zone: str = "UTC"
    order: FileOrder = FileOrder.MODIFIED
    time: str | None = None


class Listing:
    """Lists the files of one folder that are not `logged` yet.

    `footers`: path -> footer, if known already. `most`: the most files that a look returns; None:
    all, for a stream whose log is the folder itself.
    """

    def __init__(
        self,
        folder: str,
        expected: Expected,
        logged: Logged,
        footers: Mapping[str, Footer] | None = None,
        most: int | None = MOST_FILES,
    ) -> None:
        self._folder = folder
        self._expected = expected
        self._logged = logged
        key = by_name if expected.order is FileOrder.NAME else by_modification
        self._finding = Finding(folder, logged, is_bounded=most is not None, key=key)
        self._footers = footers or {}
        self._most = most
        self._left_out = set[str]()
        #: whether the last look has left files to the next one
        self.has_more = False
        #: half-written files of the last look -> seconds until they are bad
        self.unsettled_s = dict[str, float]()

    def look(self, now_s: float) -> list[Entry]:
        """The entries of new files, in the expected order.

        Raises InvalidRequest, with the file, for a bad file that may not be skipped.
        """
        self.unsettled_s = {}
        files = self._finding.look(now_s)
        now = self._by_time(files) if self._expected.time is not None else files[: self._most]
        self.has_more = len(now) < len(files) or self._finding.left_some
        footers = read_footers(now, self._footers)
        entries = (
            self._entry(file, footer, now_s) for file, footer in zip(now, footers, strict=True)
        )
        return [entry for entry in entries if entry is not None]

    def _by_time(self, files: list[SourceFile]) -> list[SourceFile]:
        """The first files by their earliest times; bad files precede all others.

        Keeps the footers of files that do not change.
        """
        footers = read_footers(files, self._footers, self._expected.time)
        both = list(zip(files, footers, strict=True))
        self._footers = {file.path: f for file, f in both if isinstance(f, Footer)}
        both.sort(key=lambda pair: _least_us(pair[1]))
        return [file for file, _ in both[: self._most]]

    def close(self) -> None:
        """Stop watching the folder."""
        self._finding.close()

    def _entry(self, file: SourceFile, footer: Footer | str, now_s: float) -> Entry | None:
        """The entry of a file; None: it may still become whole, or was skipped before."""
        path = file.path
        entry: Entry = {"file": path, "size": file.size, "modified_ns": file.modified_ns}
        if isinstance(footer, Footer):
            if path not in self._footers and not is_url(path) and look_at(path) != file:
                self.unsettled_s[path] = self._expected.settle_s
                return None  # it has changed since its size was read
            fault = self._fault(path, footer)
            if fault is None and self._expected.time is not None and footer.least_us is None:
                fault = (
                    f"has no statistics of column {self._expected.time!r} in its footer, which "
                    "order='time' needs to sort files; set "
                    "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS in the Spark that "
                    "writes them, or use order='name'"
                )
            if fault is None:
                return entry | {"rows": footer.rows}
        else:
            # The clock of another machine may be ahead, hence the absolute value.
            left_s = self._expected.settle_s - abs(now_s - file.changed_s)
            if left_s > 0:
                self.unsettled_s[path] = left_s
                return None
            fault = footer
        if self._expected.on_bad_file is OnBadFile.SKIP:
            if self._logged.skipped.get(path) == (file.size, file.modified_ns):
                self._finding.drop(file)
                return None
            return entry | {"rows": [], "skipped": fault}
        raise InvalidRequest(
            f"source file {path} {fault}; nothing is lost: mend or remove the file, or start again "
            "with on_bad_file='skip' to skip it"
        )

    def _fault(self, path: str, footer: Footer) -> str | None:
        """Why a whole file does not fit the stream; None: it fits."""
        wanted = self._expected.columns
        if wanted is None:
            return None
        folders = partition_values(path, self._folder)
        inside = pa.schema([field for field in footer.columns if field.name not in folders])
        for name, value in folders.items():
            if name in wanted.names:
                kind = wanted.field(name).type
                try:
                    partition_value(value, kind, self._expected.zone)
                except ValueError:
                    return f"has {value!r} for the partition column {name!r}, which is {kind}"
        wrong = misfit(inside, wanted)
        if wrong is not None:
            return f"does not fit: column {wrong[0]!r} {wrong[1]}"
        added = unknown([*inside.names, *folders], wanted)
        if not added:
            return None
        if self._expected.schema_changes is SchemaChanges.REFUSE:
            return (
                f"does not fit: the stream has no column {added[0]!r} (schema_changes='add' adds "
                "new columns)"
            )
        for name in added:
            if name not in self._left_out:
                self._left_out.add(name)
                _log.warning(
                    "joinengine: the stream of %s has no column %r, which is new in %s; the "
                    "column is left out until the query starts again",
                    *(self._folder, name, path),
                )
        return None


def tell_awaited(left_s: Mapping[str, float]) -> None:
    """Log the half-written files that a look waits for, and for how long."""
    for file in sorted(left_s):
        _log.warning(
            "joinengine: source file %s is not complete yet; waiting up to %.0f s for it",
            *(file, left_s[file]),
        )


def tell_left(files: Iterable[str]) -> None:
    """Log the files that are still being written after the wait."""
    for file in sorted(files):
        _log.warning(
            "joinengine: source file %s is still being written; it is left to the next run", file
        )


def _least_us(footer: Footer | str) -> float:
    """The sort key of files under TIME; bad files come first."""
    if isinstance(footer, str) or footer.least_us is None:
        return -math.inf
    return footer.least_us


def read_footers(
    files: Iterable[SourceFile], known: Mapping[str, Footer], time: str | None = None
) -> list[Footer | str]:
    """The footer of each file, or why it has none; from `known` if the file is unchanged.

    `time`: the column whose earliest time goes into the footers.
    """

    def footer(file: SourceFile) -> Footer | str:
        kept = known.get(file.path)
        if kept is not None and kept[:2] == (file.size, file.modified_ns):
            if time is None or kept.least_us is not None:
                return kept
        try:
            metadata: Any = pq.read_metadata(opened(file.path))
        except (pa.ArrowException, OSError) as error:
            check_blame(f"source file {file.path}", error)
            return f"is not a whole Parquet file ({in_a_line(error)})"
        rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        least = None if time is None else least_time(metadata, time)
        return Footer(file.size, file.modified_ns, rows, plain_columns(metadata), least)

    listed = list(files)
    if len(listed) < _THREADS:
        return [footer(file) for file in listed]
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(footer, listed))


def survey(folder: Path | str) -> tuple[dict[str, Footer], dict[str, str]]:
    """The footers of all whole files of a folder or URL, by path, in the order of modification.

    The second value: path of a file that is not whole -> why.
    """
    files = sorted(find(str(folder)), key=by_modification)
    footers, faults = dict[str, Footer](), dict[str, str]()
    for file, footer in zip(files, read_footers(files, {}), strict=True):
        if isinstance(footer, Footer):
            footers[file.path] = footer
        else:
            faults[file.path] = footer
    return footers, faults


def check_unchanged(path: str, size: int, modified_ns: int) -> None:
    """Raise UnreadableFile if a logged file is gone or has changed."""
    file = look_at(path)
    if file is None:
        raise unreadable(path, "was logged and is missing")
    if (file.size, file.modified_ns) != (size, modified_ns):
        raise unreadable(path, "has changed since it was logged, so a replay would read other rows")


def unreadable(path: str, reason: str) -> UnreadableFile:
    """The error for a logged file that can no longer be read."""
    return UnreadableFile(
        f"source file {path} {reason}; put it back as it was, with its modification time, or "
        "start again with on_bad_file='skip' to skip it. The checkpoint is unharmed",
        reason,
    )
