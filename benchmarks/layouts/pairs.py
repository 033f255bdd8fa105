"""Streams whose pairs dominate: skew on both sides, windows of several lengths, nothing emulated.

Each stream has so many tuples that about PAIRS pairs share a key within the window, whatever the
skew and the window; a condition on values keeps the results few. A batch then waits for pairs that
are compared, and what counts are the measured seconds of its busiest instance.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.layouts.cells import QUICK, Cell, Say, served
from joinengine import equi, within
from joinengine.lab.queries import Options
from joinengine.lab.queries.user_folders import Folders

#: Pairs within the window that share a key, in the whole stream.
PAIRS = 6e7
BATCHES, BATCH_S, KEYS = 10, 100, 100_000
#: Zipf exponents of both sides; the window in batches; instances.
SKEWS, WINDOWS, INSTANCES = (1.0, 1.5), (0.1, 1.0, 10.0), (4, 64)
#: A pair is a result if its values differ by less than this; they are spread evenly over 0 .. 1.
NEAR = 0.001
_BEGIN_US = 1_700_000_000_000_000


class Stream(NamedTuple):
    """Two sides with the same skew; `window`: in batches, to either side."""

    zipf: float
    window: float

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"pairs-z{self.zipf:g}-w{self.window:g}"

    def weights(self) -> NDArray[np.float64]:
        """(KEYS,) the part of a side's tuples that each key has."""
        weights = np.arange(1, KEYS + 1) ** -self.zipf
        return np.asarray(weights / weights.sum())

    @property
    def rows(self) -> int:
        """The number of rows of each side."""
        alike = float((self.weights() ** 2).sum())
        near = 1 - max(0.0, 1 - self.window / BATCHES) ** 2
        return round((PAIRS / alike / near) ** 0.5)


def cells(folder: Path, *, quick: bool, say: Say) -> list[Cell]:
    """All cells, for the layouts of QUICK; `quick`: the greatest skew on the fewest instances.

    The streams are written below `folder`, unless they are there.
    """
    found = list[Cell]()
    for zipf in SKEWS[-1:] if quick else SKEWS:
        for window in WINDOWS:
            stream = Stream(zipf, window)
            query, rows = _query(stream, folder), -(-2 * stream.rows // BATCHES)
            for instances in INSTANCES[:1] if quick else INSTANCES:
                case = f"z={zipf:g} window={window:g} batches n={instances}"
                base = Options(instances=instances, interval_rows=rows)
                found += served("pairs", case, query, base, QUICK, say)
    return found


def _query(stream: Stream, folder: Path) -> Folders:
    home = folder / stream.name
    _record(stream, home)
    length = f"{int(stream.window * BATCH_S)} s"
    return Folders(
        home / "left",
        home / "right",
        on=equi("l_key", "r_key"),
        within=within("l_time", "r_time", lower=f"-{length}", upper=length, delay="1 s"),
        where=f"l_value - r_value < {NEAR} and r_value - l_value < {NEAR}",
    )


def _record(stream: Stream, home: Path) -> None:
    """Write the stream, unless it is there."""
    done = home / f"{stream.rows}.done"
    if done.exists():
        return
    for side, parts in zip(("left", "right"), zip(*batches(stream), strict=True), strict=True):
        (home / side).mkdir(parents=True, exist_ok=True)
        for number, part in enumerate(parts):
            path = home / side / f"{number:03d}.parquet"
            pq.write_table(pa.Table.from_batches([part]), path)
            os.utime(path, (1_700_000_000 + number,) * 2)  # streams read files in this order
    done.touch()


def batches(stream: Stream) -> list[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """The left and right tuples of each batch."""
    rng, ends = np.random.default_rng(5), np.cumsum(stream.weights())
    sides, size = list[pa.RecordBatch](), -(-stream.rows // BATCHES)
    for letter in "lr":
        keys = np.searchsorted(ends, rng.random(stream.rows) * ends[-1])
        times = np.sort(rng.integers(0, BATCHES * BATCH_S * 1_000_000, stream.rows)) + _BEGIN_US
        columns = {
            f"{letter}_key": pa.array(keys, pa.int64()),
            f"{letter}_time": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
            f"{letter}_value": rng.random(stream.rows),
        }
        sides.append(pa.RecordBatch.from_pydict(columns))
    left, right = sides
    starts = range(0, BATCHES * size, size)
    return [(left.slice(start, size), right.slice(start, size)) for start in starts]
