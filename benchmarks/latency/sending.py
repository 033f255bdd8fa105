"""The process that sends: `python -m benchmarks.latency.sending FOLDER RATE SECONDS`.

Every EVERY_S it renames a file into a folder, of the left and the right side in turn. File k of
the right side has the keys of file k of the left side, and comes BEHIND files of a side later.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SIDES = ("left", "right")
EVERY_S, BEHIND = 0.05, 5


def prepare(root: Path) -> None:
    """Make the folders of both sides, each with a file without rows that defines the columns."""
    for side in SIDES:
        (root / side).mkdir()
        _put(root / side, "columns", np.zeros(0, np.int64))


def rows_of(rate: int) -> int:
    """Rows of a file, at `rate` rows a second of both sides."""
    return round(rate * EVERY_S)


def path_of(folder: Path, number: int) -> Path:
    """The file of a side with a number."""
    return folder / f"{number:08d}.parquet"


def send(root: Path, rate: int, seconds: int) -> None:
    """Write files at a steady rate."""
    each = rows_of(rate)
    # A process needs half a second or more for its first file, while others would be due.
    _draft(root / SIDES[0], "first", np.arange(each)).unlink()
    start = time.monotonic()
    for turn in range(round(seconds / EVERY_S)):
        time.sleep(max(0.0, start + turn * EVERY_S - time.monotonic()))
        number, is_right = divmod(turn, 2)
        number -= BEHIND if is_right else 0
        if number >= 0:
            folder = root / SIDES[is_right]
            _put(folder, path_of(folder, number).stem, np.arange(each) + number * each)


def _put(folder: Path, stem: str, keys: np.ndarray) -> None:
    """A file of tuples that are sent now; it is there whole or not at all."""
    _draft(folder, stem, keys).rename(folder / f"{stem}.parquet")


def _draft(folder: Path, stem: str, keys: np.ndarray) -> Path:
    """The same, under a name that no reader takes."""
    name, now = folder.name, time.time()
    times = pa.array(np.full(len(keys), round(now * 1e6))).cast(pa.timestamp("us", "UTC"))
    draft = folder / f".{stem}"
    pq.write_table(pa.table({f"{name}_key": pa.array(keys), f"{name}_at": times}), draft)
    return draft


if __name__ == "__main__":
    send(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
