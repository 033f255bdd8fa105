"""The source log: which files of a folder were found, in which order, for ever.

Why: an offset counts row groups of the log, so every driver that ever reads the log must find the
same in it, even if two drivers look for new files at once, or one has slept since its last look.

On disk the log is a folder of segments, one for each look that found files, with one entry for each
file. The name of a segment is the number of files in the log before it. A segment is created whole
and exclusively: two drivers that have read the same log want the same name, and the one that loses
reads the segment of the other. If the name held a generation, both would win. The number of row
groups cannot be the name: a file may have none, and two segments would want one name.

Law: an entry never changes its place; a segment that is missing or damaged is refused by name.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joinengine.model.errors import DamagedState
from joinengine.world.storage import Storage

#: One file: `file`, `size`, `modified_ns`, and `rows`, the rows of each row group.
Entry = dict[str, Any]

_HEADER = re.compile(rb"joinengine source log 1 crc32=([0-9a-f]{8}) bytes=(\d+)\n")


@dataclass
class SourceLog:
    """The log of one source; `files`: read so far; `generation`: of the driver that appends."""

    storage: Storage
    generation: int
    files: int = 0

    def read_on(self) -> list[Entry]:
        """The entries that were not read yet. Raises DamagedState if a segment is missing."""
        numbers = sorted(int(name) for name in self.storage.names() if name.isdigit())
        entries = list[Entry]()
        for number in numbers:
            if number < self.files:
                continue
            if number != self.files:
                raise DamagedState(
                    f"source log {self._path(self.files)} is missing, {self._path(number)} is "
                    f"there; restore it from a copy"
                )
            entries += (found := self._read(number))
            self.files += len(found)
        return entries

    def append(self, entries: Sequence[Entry]) -> bool:
        """Log `entries` next; False, and nothing is logged, if another driver was faster."""
        self.storage.make()
        content = {"generation": self.generation, "files": list(entries)}
        body = json.dumps(content, separators=(",", ":")).encode()
        header = b"joinengine source log 1 crc32=%08x bytes=%d\n" % (zlib.crc32(body), len(body))
        if not self.storage.create(_segment(self.files), header + body):
            return False
        self.files += len(entries)
        return True

    def _path(self, number: int) -> str:
        return f"{self.storage.folder}/{_segment(number)}"

    def _read(self, number: int) -> list[Entry]:
        content = self.storage.get(_segment(number))
        match = _HEADER.match(content)
        body = content[match.end() :] if match else b""
        if match is None or len(body) != int(match[2]) or zlib.crc32(body) != int(match[1], 16):
            raise DamagedState(
                f"source log {self._path(number)} does not match its header: it is truncated or "
                f"was altered; restore it from a copy"
            )
        files: list[Entry] = json.loads(body)["files"]
        return files


def _segment(number: int) -> str:
    return f"{number:012d}"
