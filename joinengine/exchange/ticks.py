"""Ticks: batches that are due although there is no data.

The driver writes when the next tick is due; the source reads that whenever Spark asks for new data.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from joinengine.state.storage import put


def request_tick(path: Path, tick: int, due_s: float) -> None:
    """Ask for a batch at `due_s` (seconds since the epoch), whether or not there is data."""
    put(path, json.dumps({"tick": tick, "due_s": due_s}).encode())


def due_tick(path: str | None) -> int:
    """The number of the last tick that is due; 0 if none is."""
    if path is None:
        return 0
    try:
        asked = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        return 0
    return int(asked["tick"]) if time.time() >= asked["due_s"] else 0
