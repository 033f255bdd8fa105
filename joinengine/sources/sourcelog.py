"""The source log: records for ever which files of a folder were found, and in which order.

Why: a position counts row groups of the log. So every driver must always find the same content in
the log, even if two drivers look for new files at once, or one has slept since its last look.

On disk the log is a folder of *segments*, one for each look that found files, with one entry for
each file. The name of a segment is the number of files in the log before it. A segment is created
whole and exclusively: two drivers that have read the same log compete for one name, and the loser
reads the segment of the winner. If names contained a generation, both would win. The number of row
groups cannot be the name: a file may have none, so two segments would need the same name.

A query that runs for months would have a segment for each of its looks, so segments are *folded*:
the entries of several segments are written again as one file, whose name is the stretch of the log
that it holds, `FIRST-LAST`. So all drivers that fold a stretch write the same content. A fold
includes earlier folds as long as they are no longer than what follows them. So there are few folds,
and an entry is rewritten only a few times.

- Files whose entries a fold holds are removed, but only at the next fold: a driver that has listed
  the folder a moment ago still finds them, or lists it again.
- The name of a removed segment is free again, and a driver that has slept may create it. So a
  driver that has created a segment checks whether a fold holds its number; if so, the segment is
  never read.
- The last segment is never folded. So a version that does not know folds notices that earlier
  segments are missing, and does not take the log for empty.

Law: an entry never changes its place; a segment that is missing, damaged or that of another place
is refused by name. (So each says its place. Those of earlier versions do not.)
Cost: a segment is 0.1 ms and a listing; a fold of a million files is 4 MB, and read in a second.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from joinengine.model.errors import DamagedState
from joinengine.sources.positions import FILES, Entry, Logged, table_of
from joinengine.world.storage import Storage

#: The beginnings of the headers of segments and folds.
_SEGMENT, _FOLD = b"joinengine source log 1", b"joinengine folded sources 1"
_NAME = re.compile(r"(\d+)(?:-(\d+))?")
#: In the metadata of a fold: its place.
_PLACE = b"joinengine.place"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
#: How many segments are folded into one file.
FOLD_AT = 256
#: How many entries of segments are converted to columns at a time.
_AT_ONCE = 4096


class _Piece(NamedTuple):
    """A file of the log: a segment from `first` on, or the fold of the entries [first, last)."""

    first: int
    last: int | None = None

    @property
    def name(self) -> str:
        segment = f"{self.first:012d}"
        return segment if self.last is None else f"{segment}-{self.last:012d}"

    def holds(self, number: int) -> bool:
        """Whether it is a fold that holds the entry `number`."""
        return self.last is not None and self.first <= number < self.last

    def replaces(self, other: _Piece) -> bool:
        """Whether it is a fold that holds all entries of another piece, and more."""
        if other.last is None:
            return self.holds(other.first)
        return self != other and self.holds(other.first) and self.holds(other.last - 1)


class _Folder:
    """The pieces in the folder of a log."""

    def __init__(self, names: Sequence[str]) -> None:
        matches = (match for name in names if (match := _NAME.fullmatch(name)))
        self.pieces = [_Piece(int(m[1]), int(m[2]) if m[2] else None) for m in matches]
        self.folds = [piece for piece in self.pieces if piece.last is not None]
        self._segments = {piece.first: piece for piece in self.pieces if piece.last is None}

    def at(self, number: int) -> _Piece | None:
        """The piece with entry `number`: the longest fold, else the segment that begins there."""
        holding = [fold for fold in self.folds if fold.holds(number)]
        if holding:
            return max(holding, key=lambda fold: fold.last or 0)
        return self._segments.get(number)

    def later(self, number: int) -> _Piece | None:
        """A piece whose existence proves that there is an entry `number`; None: there is none."""
        return next((piece for piece in self.pieces if piece.first >= number), None)


@dataclass
class SourceLog:
    """The log of one source. `files`: how many were read so far. `generation`: of the driver."""

    storage: Storage
    generation: int
    files: int = 0
    #: the pieces that hold these files, in order
    _known: list[_Piece] = field(default_factory=list)

    def read_on(self) -> list[pa.Table]:
        """The files not read so far, as FILES. Raises DamagedState if some are missing."""
        tables, before = list[pa.Table](), list[str]()
        while True:
            names = sorted(self.storage.names())
            folder = _Folder(names)
            with suppress(FileNotFoundError):
                self._read_on(folder, tables)
            later = folder.later(self.files)
            if later is None:
                return tables
            if names == before:  # otherwise, the missing piece was folded since the listing
                raise DamagedState(
                    f"source log {self._path(_Piece(self.files))} is missing, but "
                    f"{self._path(later)} exists; restore it from a copy"
                )
            before = names

    def _read_on(self, folder: _Folder, tables: list[pa.Table]) -> None:
        entries = list[Entry]()
        try:
            while (piece := folder.at(self.files)) is not None:
                if piece.last is not None or len(entries) >= _AT_ONCE:
                    _hand_over(entries, tables)
                if piece.last is None:
                    entries += (segment := self._segment(piece))
                    self.files += len(segment)
                else:
                    tables.append(self._folded(piece).slice(self.files - piece.first))
                    self.files = piece.last
                    self._known = [known for known in self._known if known.first < piece.first]
                self._known.append(piece)
        finally:
            _hand_over(entries, tables)

    def append(self, entries: Sequence[Entry]) -> bool:
        """Append `entries` to the log; False, without effect, if another driver was faster."""
        self.storage.make()
        piece = _Piece(self.files)
        place, files = self._place(piece), list(entries)
        content = {"generation": self.generation, "place": place, "files": files}
        body = json.dumps(content, separators=(",", ":")).encode()
        if not self.storage.create(piece.name, _framed(_SEGMENT, body)):
            return False
        if any(fold.holds(self.files) for fold in _Folder(self.storage.names()).folds):
            return False  # the name was free only because its segment was folded
        self._known.append(piece)
        self.files += len(entries)
        return True

    def fold(self, logged: Logged) -> None:
        """Fold the newest segments, if there are enough; `logged`: all files read so far."""
        known, start = self._known, len(self._known) - 1
        while start > 0 and known[start - 1].last is None:
            start -= 1
        if len(known) - 1 - start < FOLD_AT:
            return
        last = known[-1].first
        while start and known[start].first - known[start - 1].first <= last - known[start].first:
            start -= 1
        piece = _Piece(known[start].first, last)
        held = self._held_by_folds()
        body = pa.BufferOutputStream()
        schema = FILES.with_metadata({_PLACE: self._place(piece)})
        with pa.ipc.new_stream(body, schema, options=_COMPRESSED) as writer:
            writer.write_table(logged.table(piece.first, last))
        # If the fold exists, another driver has written the same content.
        if self.storage.create(piece.name, _framed(_FOLD, body.getvalue().to_pybytes())):
            self.storage.delete(*held)
        known[start:-1] = [piece]

    def _held_by_folds(self) -> list[str]:
        """The names of the files that are no longer read, since folds hold their entries."""
        folder = _Folder(self.storage.names())
        return [
            piece.name
            for piece in folder.pieces
            if any(fold.replaces(piece) for fold in folder.folds)
        ]

    def _segment(self, piece: _Piece) -> list[Entry]:
        content = json.loads(self._body(piece, _SEGMENT))
        self._check_place(piece, content.get("place"))
        files: list[Entry] = content["files"]
        return files

    def _folded(self, piece: _Piece) -> pa.Table:
        table = pa.ipc.open_stream(self._body(piece, _FOLD)).read_all()
        place = (table.schema.metadata or {}).get(_PLACE)
        self._check_place(piece, place and place.decode())
        return table.replace_schema_metadata(None)

    def _body(self, piece: _Piece, kind: bytes) -> bytes:
        content = self.storage.get(piece.name)
        header, _, body = content.partition(b"\n")
        if header + b"\n" + body != _framed(kind, body):
            raise DamagedState(
                f"source log {self._path(piece)} does not match its header, so it is truncated or "
                "was altered; restore it from a copy"
            )
        return body

    def _place(self, piece: _Piece) -> str:
        """Which source's log a piece is of, and where it is there."""
        return f"{self.storage.folder.rpartition('/')[2]}/{piece.name}"

    def _check_place(self, piece: _Piece, place: str | None) -> None:
        """Raise DamagedState if a piece has the content of another."""
        if place not in (None, self._place(piece)):
            raise DamagedState(
                f"source log {self._path(piece)} has the content of {place}, so files were mixed "
                "up; restore it from a copy"
            )

    def _path(self, piece: _Piece) -> str:
        return f"{self.storage.folder}/{piece.name}"


def _framed(kind: bytes, body: bytes) -> bytes:
    """The content of a file of the log."""
    return b"%b crc32=%08x bytes=%d\n" % (kind, zlib.crc32(body), len(body)) + body


def _hand_over(entries: list[Entry], tables: list[pa.Table]) -> None:
    """Move entries into a new table of `tables`."""
    if entries:
        tables.append(table_of(entries))
        entries.clear()
