"""Files and messages of sources that are left out."""

from __future__ import annotations

from typing import NamedTuple


class Skipped(NamedTuple):
    """A file or offsets of a topic that were not read, or not to the end, and why."""

    file: str
    reason: str
