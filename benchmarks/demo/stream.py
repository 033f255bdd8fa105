"""The demo's stream: views and purchases of products, of which one product has three in ten.

A pair matches if both are of one product, the purchase at most WINDOW_S after the view, and the
prices nearly equal. So the hot product makes a thousand million pairs that must be looked at, and
few results: the seconds of a run are the join's, not those of writing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

#: The stream lies in so many files on each side, of so many seconds of event time.
FILES, FILE_S = 40, 25
ROWS = {"views": 1_100_000, "purchases": 220_000}
#: The hot product, and its part of the tuples of both streams; the others are alike.
HOT, PART, PRODUCTS = 7, 0.3, 200_000
WINDOW_S = 300
NEAR = 0.001
#: Every engine gets this condition beside the equal products and the window.
PRICES = f"v_price - p_price < {NEAR} and p_price - v_price < {NEAR}"
_BEGIN_US = 1_700_000_000_000_000


def record(folder: Path) -> None:
    """Write both streams, unless they are there."""
    told = folder / "stream.json"
    wanted = {"rows": ROWS, "hot": PART, "products": PRODUCTS, "files": FILES}
    if told.exists() and json.loads(told.read_text()) == wanted:
        return
    rng = np.random.default_rng(5)
    for name, rows in ROWS.items():
        _write(folder / name, name[0], rows, rng)
    told.write_text(json.dumps(wanted))


def _write(folder: Path, letter: str, rows: int, rng: np.random.Generator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    seconds = np.sort(rng.random(rows)) * FILES * FILE_S
    product = np.where(rng.random(rows) < PART, HOT, rng.integers(HOT + 1, PRODUCTS, rows))
    price = rng.random(rows)
    for number in range(FILES):
        some = (seconds >= number * FILE_S) & (seconds < (number + 1) * FILE_S)
        times = pa.array((seconds[some] * 1e6).astype(np.int64) + _BEGIN_US)
        columns = {
            f"{letter}_product": pa.array(product[some], pa.int64()),
            f"{letter}_time": times.cast(pa.timestamp("us", tz="UTC")),
            f"{letter}_price": price[some],
        }
        path = folder / f"{number:03d}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=max(1, int(some.sum()) // 4))
        os.utime(path, (1_700_000_000 + number,) * 2)  # streams read files in this order
