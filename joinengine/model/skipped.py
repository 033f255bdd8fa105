"""Files and messages of sources that are left out."""

from __future__ import annotations

from typing import NamedTuple


class Skipped(NamedTuple):
    """What of a source is not read, or not to its end, and why: a file, or offsets of a topic."""

    file: str
    reason: str
