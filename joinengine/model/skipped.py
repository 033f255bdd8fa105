"""Files of sources that are left out."""

from __future__ import annotations

from typing import NamedTuple


class Skipped(NamedTuple):
    """A file of a source that is not read, or not to its end, and why."""

    file: str
    reason: str
