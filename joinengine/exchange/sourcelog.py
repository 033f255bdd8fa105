"""The source log: which files of a folder were found, in which order, for ever.

Why: an offset counts row groups of the log, so the log must say the same to every driver that ever
reads it, also where two look for new files at once and one has slept since its last look.

What is on disk: segments, one for each look that found something, with one entry a file. The name
of a segment is the number of files in the log before it. It is created whole and exclusively: two
drivers that have read the same log want the same name, and who loses reads what the other one
wrote. A generation in the name would let both win. Row groups would not do as a count: a file may
have none, and two segments would want one name.

Law: what was logged stays where it is; a segment that is missing or damaged is refused by name.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joinengine.model.errors import DamagedState
from joinengine.state.storage import create, names_in

#: Of one file: `file`, `size`, `modified_ns`, and `rows` of each row group.
Entry = dict[str, Any]

_HEADER = re.compile(rb"joinengine source log 1 crc32=([0-9a-f]{8}) bytes=(\d+)\n")


@dataclass
class SourceLog:
    """The log of one source, read up to some file; `generation` is the driver's that appends."""

    folder: Path
    generation: int
    files: int = 0

    def read_on(self) -> list[Entry]:
        """The entries that follow what was read. Raises DamagedState where one is missing."""
        numbers = sorted(int(name) for name in names_in(self.folder) if name.isdigit())
        entries = list[Entry]()
        for number in numbers:
            if number < self.files:
                continue
            path = self._segment(number)
            if number != self.files:
                raise DamagedState(
                    f"source log {self._segment(self.files)} is missing, {path} is there; restore "
                    f"it from a copy"
                )
            entries += (found := _read(path))
            self.files += len(found)
        return entries

    def append(self, entries: Sequence[Entry]) -> bool:
        """Log `entries` next; False, and nothing was done, where others were logged since."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {"generation": self.generation, "files": list(entries)}
        body = json.dumps(content, separators=(",", ":")).encode()
        header = b"joinengine source log 1 crc32=%08x bytes=%d\n" % (zlib.crc32(body), len(body))
        if not create(self._segment(self.files), header + body):
            return False
        self.files += len(entries)
        return True

    def _segment(self, number: int) -> Path:
        return self.folder / f"{number:012d}"


def _read(path: Path) -> list[Entry]:
    content = path.read_bytes()
    match = _HEADER.match(content)
    body = content[match.end() :] if match else b""
    if match is None or len(body) != int(match[2]) or zlib.crc32(body) != int(match[1], 16):
        raise DamagedState(
            f"source log {path} does not match its header: it is truncated or was altered; "
            f"restore it from a copy"
        )
    files: list[Entry] = json.loads(body)["files"]
    return files
