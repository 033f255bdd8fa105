"""The cells of `make bench-auto`: streams, and the sample of cells that is run.

A cell is a stream, its skew, its window, a number of instances and the rows of a batch. Cells that
would make more than MOST_PAIRS pairs are left out: no layout ends these in minutes. The sample was
drawn before anything was run, and is the same for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine import band, equi, within
from joinengine.lab.inline.inline_runs import Frame
from joinengine.model.conditions import Condition
from joinengine.model.windows import Window

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: EQ5's largest join; B_NCI; orders join lineitem; a hot key on both sides; hot keys that change.
STREAMS = ("eq5", "bnci", "orders", "hot", "shift")
SKEWS = (0.0, 0.4, 0.8, 1.0, 1.2, 1.5)
#: Lengths of windows, in batches; None: the full history.
WINDOWS = (0.05, None)
INSTANCES = (4, 16, 64)
#: Rows of a batch, both sides together -> batches.
BATCHES = {10_000: 16, 1_000_000: 4}
MOST_PAIRS = 1.5e8
SAMPLE, SEED = 40, 20_261_124

KEYS = 100_000
#: For `shift`: after how many batches other keys become hot.
SHIFT_EVERY = 3
#: For `hot`: the part of both sides that one key has, by skew.
HOT = dict(zip(SKEWS, (0.0, 0.02, 0.05, 0.1, 0.3, 0.5), strict=True))
_BATCH_US, _BEGIN_US = 100_000_000, 1_700_000_000_000_000
#: Stream -> the left side's part of the rows.
_LEFT = {"eq5": 0.01, "bnci": 0.5, "orders": 0.2, "hot": 5 / 6, "shift": 0.5}


class Cell(NamedTuple):
    """One combination; `window` in batches, None: the full history."""

    stream: str
    zipf: float
    window: float | None
    instances: int
    rows: int

    def __str__(self) -> str:
        window = "full" if self.window is None else f"{self.window:g}"
        return f"{self.stream} z={self.zipf} window={window} n={self.instances} rows={self.rows}"


def sample() -> list[Cell]:
    """The cells that are run, in their order."""
    every = [Cell(*settings) for settings in product(STREAMS, SKEWS, WINDOWS, INSTANCES, BATCHES)]
    some = [cell for cell in every if pairs(cell) <= MOST_PAIRS]
    rows = np.random.default_rng(SEED).choice(len(some), SAMPLE, replace=False)
    return [some[row] for row in sorted(rows.tolist())]


def condition(cell: Cell) -> Condition:
    """Equal keys, or keys that differ by one at most."""
    return (
        band("l_key", "r_key", lower=-1, upper=1)
        if cell.stream == "bnci"
        else equi("l_key", "r_key")
    )


def window(cell: Cell) -> Window | None:
    """Both tuples within a part of a batch."""
    if cell.window is None:
        return None
    length = f"{int(cell.window * _BATCH_US)} us"
    return within("l_time", "r_time", lower=f"-{length}", upper=length)


def batches(cell: Cell) -> Iterator[Frame]:
    """The tuples of each batch, both sides."""
    rng = np.random.default_rng(7)
    sizes = _sizes(cell)
    for number in range(BATCHES[cell.rows]):
        parts = (_parts(cell.stream, cell.zipf, side) for side in (0, 1))
        turned = number // SHIFT_EVERY * (KEYS // 7) if cell.stream == "shift" else 0
        yield [
            _rows(letter, size, part, turned, number, rng)
            for letter, size, part in zip("lr", sizes, parts, strict=True)
        ]


def pairs(cell: Cell) -> float:
    """How many pairs match, roughly, in all batches."""
    sizes, count = _sizes(cell), BATCHES[cell.rows]
    reach = min(2 * cell.window, 1.0) * count if cell.window is not None else count**2
    return _met(cell.stream, cell.zipf) * sizes[0] * sizes[1] * reach


@cache
def _met(stream: str, zipf: float) -> float:
    """The part of all pairs that match."""
    left, right = (_parts(stream, zipf, side) for side in (0, 1))
    if stream == "bnci":
        right = np.convolve(right, np.ones(3), "same")
    return float(left @ right)


def _sizes(cell: Cell) -> tuple[int, int]:
    left = round(cell.rows * _LEFT[cell.stream])
    return left, cell.rows - left


def _parts(stream: str, zipf: float, side: int) -> Floats:
    """(KEYS,) the part of a side's tuples that each key has."""
    even = np.full(KEYS, 1 / KEYS)
    if stream == "hot":
        even *= 1 - HOT[zipf]
        even[0] += HOT[zipf]
        return even
    if side == 0 and stream in {"eq5", "orders"}:
        return even
    weights = np.arange(1, KEYS + 1, dtype=float) ** -zipf
    if stream == "bnci":  # neighbours of hot keys are no hotter than others
        weights = np.random.default_rng(3).permutation(weights)
    return np.asarray(weights / weights.sum())


def _rows(
    letter: str, size: int, parts: Floats, turned: int, number: int, rng: np.random.Generator
) -> pa.RecordBatch:
    drawn = np.searchsorted(np.cumsum(parts), rng.random(size) * parts.sum(), side="right")
    keys = (np.minimum(drawn, KEYS - 1) + turned) % KEYS
    times = np.sort(rng.integers(0, _BATCH_US, size)) + number * _BATCH_US + _BEGIN_US
    columns = {
        f"{letter}_key": pa.array(keys, pa.int64()),
        f"{letter}_time": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
        f"{letter}_value": pa.array(rng.random(size)),
    }
    return pa.RecordBatch.from_pydict(columns)
