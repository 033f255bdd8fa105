"""The content of a source log in columns: the row groups of positions, and the known files.

Why columns: a folder gets files for months, and a driver knows each of them. As objects, a million
files take half a gigabyte; here a file takes some 60 bytes and its path.

A position counts the row groups that hold tuples; a skipped file counts as one, without tuples.

Law: a path is known if and only if a file of that name is logged for reading, since paths with
equal hashes are compared.
Cost: a million files are added in a second; looking up a path takes 2 us, or 1 us among thousands.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: One file as it was found: `file`, `size`, `modified_ns`, and either `rows`, the rows of each row
#: group, or `skipped`, why it is not read.
Entry = dict[str, Any]

#: The columns of files of a log. `groups`: the row groups that take positions; `rows`: their rows.
FILES = pa.schema(
    [
        ("file", pa.large_string()),
        ("size", pa.int64()),
        ("modified_ns", pa.int64()),
        ("skipped", pa.string()),
        ("groups", pa.large_list(pa.int32())),
        ("rows", pa.large_list(pa.int64())),
    ]
)
#: How many files are added at a time, and how many new files are known only by their paths before
#: they join the sorted hashes; or a 64th of all files, if that is more.
_AT_ONCE, _SORTED_SHARE = 16_384, 6


class RowGroup(NamedTuple):
    """A row group of a file. `size`, `modified_ns`: of the file when it was logged; -1: unlogged.

    `skipped`: why the file is not read; then the group stands for the whole file. None: it is read.
    """

    file: str
    group: int
    rows: int
    size: int = -1
    modified_ns: int = -1
    skipped: str | None = None

    @property
    def told(self) -> str:
        """The file, as it is named if it is skipped."""
        return self.file

    @property
    def source(self) -> tuple[str, int, int, str | None]:
        """The unit that is read in one go: the file."""
        return self.file, self.size, self.modified_ns, self.skipped


def table_of(entries: Sequence[Entry]) -> pa.Table:
    """Entries as a table with the columns FILES."""
    taken = [
        [(0, 0)] if "skipped" in entry else [(g, n) for g, n in enumerate(entry["rows"]) if n]
        for entry in entries
    ]
    columns = {name: [entry[name] for entry in entries] for name in ("file", "size", "modified_ns")}
    columns["skipped"] = [entry.get("skipped") for entry in entries]
    columns["groups"] = [[group for group, _ in groups] for groups in taken]
    columns["rows"] = [[rows for _, rows in groups] for groups in taken]
    return pa.table(columns, schema=FILES)


class Logged:
    """The files of a log that have been read, in its order."""

    def __init__(self) -> None:
        # The path of file i ends at byte _path_ends[i] of _paths, its positions at _ends[i].
        self._paths, self._path_ends = bytearray(), array("q")
        self._sizes, self._times, self._ends = array("q"), array("q"), array("q")
        # Of position i: its row group, and the rows of all positions up to it.
        self._groups, self._row_ends = array("i"), array("q")
        #: file number -> why it is skipped
        self._reasons = dict[int, str]()
        #: path of a skipped file -> its size and time when it was last skipped
        self.skipped = dict[str, tuple[int, int]]()
        # The sorted hashes of known paths, and the numbers of their files; and newer files by path.
        self._hashes, self._numbers = np.empty(0, np.int64), np.empty(0, np.int64)
        self._newest = dict[str, int]()

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self._sizes)

    @property
    def end(self) -> int:
        """The position after all row groups."""
        return len(self._groups)

    def add(self, files: pa.Table) -> None:
        """Add the next files, as a table with the columns FILES."""
        for start in range(0, len(files), _AT_ONCE):
            self._add(files.slice(start, _AT_ONCE).combine_chunks())

    def _add(self, files: pa.Table) -> None:
        first = self.files
        paths: list[str] = files["file"].to_pylist()
        lengths = pc.binary_length(files["file"]).to_numpy()
        self._path_ends.frombytes((len(self._paths) + np.cumsum(lengths)).tobytes())
        self._paths += "".join(paths).encode()
        for column, name in ((self._sizes, "size"), (self._times, "modified_ns")):
            column.frombytes(files[name].to_numpy().tobytes())
        groups, rows = (files[name].combine_chunks() for name in ("groups", "rows"))
        ends = self.end + np.cumsum(groups.value_lengths().to_numpy())
        self._ends.frombytes(ends.astype(np.int64).tobytes())
        before = self._row_ends[-1] if self._row_ends else 0
        self._row_ends.frombytes((before + np.cumsum(rows.flatten().to_numpy())).tobytes())
        self._groups.frombytes(groups.flatten().to_numpy().tobytes())
        reasons = files["skipped"]
        if reasons.null_count == len(paths):
            self._newest.update(zip(paths, range(first, self.files), strict=True))
        else:
            for number, reason in enumerate(reasons.to_pylist(), first):
                self._note(paths[number - first], number, reason)
        if len(self._newest) >= max(_AT_ONCE, self.files >> _SORTED_SHARE):
            self._sort_in()

    def _note(self, path: str, number: int, reason: str | None) -> None:
        if reason is None:
            self._newest[path] = number
        else:
            self._reasons[number] = reason
            self.skipped[path] = self._sizes[number], self._times[number]

    def _sort_in(self) -> None:
        """Insert the newest files into the sorted hashes."""
        hashes = np.fromiter(map(hash, self._newest), np.int64, len(self._newest))
        numbers = np.fromiter(self._newest.values(), np.int64, len(self._newest))
        order = np.argsort(hashes)
        places = np.searchsorted(self._hashes, hashes[order])
        self._hashes = np.insert(self._hashes, places, hashes[order])
        self._numbers = np.insert(self._numbers, places, numbers[order])
        self._newest = {}

    def unknown(self, paths: Sequence[str]) -> list[str]:
        """The paths of which no file is logged for reading."""
        asked = [path for path in paths if path not in self._newest]
        if not len(self._hashes):
            return asked
        hashes = np.fromiter(map(hash, asked), np.int64, len(asked))
        order, places = np.argsort(hashes), np.empty(len(asked), np.int64)
        # Search in sorted order, so that neighbours share cache lines.
        places[order] = np.searchsorted(self._hashes, hashes[order])
        numbers = self._numbers[np.minimum(places, len(self._hashes) - 1)]
        ends = np.frombuffer(self._path_ends, np.int64)
        lasts = ends[numbers].tolist()
        firsts = np.where(numbers > 0, ends[numbers - 1], 0).tolist()
        return [
            path
            for path, first, last, place in zip(asked, firsts, lasts, places.tolist(), strict=True)
            if self._paths[first:last] != path.encode() and not self._is_behind(path, place)
        ]

    def _is_behind(self, path: str, place: int) -> bool:
        """Whether a path is known, if its hash begins after `place` among the sorted hashes."""
        while place < len(self._hashes) and self._hashes[place] == hash(path):
            if self._path(int(self._numbers[place])) == path:
                return True
            place += 1
        return False

    def advance(self, position: int, rows: int) -> int:
        """The least later position with at least `rows` rows between; else the end."""
        if position >= self.end:
            return self.end
        before = self._row_ends[position - 1] if position else 0
        return min(bisect_left(self._row_ends, before + rows, position) + 1, self.end)

    def between(self, start: int, end: int) -> Iterator[RowGroup]:
        """The row groups of the positions in [start, end)."""
        file = bisect_right(self._ends, start)
        while start < end:
            path, last = self._path(file), min(self._ends[file], end)
            known = self._sizes[file], self._times[file], self._reasons.get(file)
            for at in range(start, last):
                before = self._row_ends[at - 1] if at else 0
                yield RowGroup(path, self._groups[at], self._row_ends[at] - before, *known)
            start, file = max(start, last), file + 1

    def table(self, first: int, last: int) -> pa.Table:
        """The files with numbers in [first, last), as a table with the columns FILES."""
        base = self._ends[first - 1] if first else 0
        ends = np.asarray(self._ends[first:last])
        offsets = pa.array(np.concatenate([[0], ends - base]))
        groups = self._groups[base : ends[-1]]
        row_ends = np.asarray(self._row_ends[base : ends[-1]])
        rows = np.diff(row_ends, prepend=self._row_ends[base - 1] if base else 0)
        columns = {
            "file": [self._path(number) for number in range(first, last)],
            "size": np.asarray(self._sizes[first:last]),
            "modified_ns": np.asarray(self._times[first:last]),
            "skipped": [self._reasons.get(number) for number in range(first, last)],
            "groups": pa.LargeListArray.from_arrays(offsets, np.asarray(groups)),
            "rows": pa.LargeListArray.from_arrays(offsets, rows),
        }
        return pa.table(columns, schema=FILES)

    def _path(self, number: int) -> str:
        start = self._path_ends[number - 1] if number else 0
        return self._paths[start : self._path_ends[number]].decode()
