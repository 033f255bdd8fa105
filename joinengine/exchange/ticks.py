"""Ticks: batches that are due although there is no data.

The driver writes when the next tick is due; the source reads that whenever Spark asks for new data.
"""

from __future__ import annotations

import json

from joinengine.world.storage import Storage


def request_tick(ticks: Storage, name: str, tick: int, due_s: float) -> None:
    """Ask for a batch at `due_s` (seconds since the epoch), whether or not there is data."""
    ticks.put(name, json.dumps({"tick": tick, "due_s": due_s}).encode())


def due_tick(ticks: Storage, name: str, now_s: float) -> int:
    """The number of the last tick that is due; 0 if none is."""
    try:
        asked = json.loads(ticks.get(name))
    except FileNotFoundError:
        return 0
    return int(asked["tick"]) if now_s >= asked["due_s"] else 0
