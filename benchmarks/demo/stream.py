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

#: How many files each side has, and how many seconds of event time are in a file.
FILES, FILE_S = 200, 25
#: Rows of a file; those of the first files are the same, however many follow.
FILE_ROWS = {"views": 27_500, "purchases": 5_500}
ROWS = sum(FILE_ROWS.values()) * FILES
#: The hot product, and its part of the tuples of both streams; the others are alike.
HOT, PART, PRODUCTS = 7, 0.3, 200_000
WINDOW_S = 300
NEAR = 0.001
#: Every engine gets this condition beside the equal products and the window.
PRICES = f"v_price - p_price < {NEAR} and p_price - v_price < {NEAR}"
_BEGIN_US = 1_700_000_000_000_000


def record(folder: Path) -> None:
    """Write both streams, unless they are there."""
    description = folder / "stream.json"
    wanted = {"rows": FILE_ROWS, "hot": PART, "products": PRODUCTS, "files": FILES}
    if description.exists() and json.loads(description.read_text()) == wanted:
        return
    for side, (name, rows) in enumerate(FILE_ROWS.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(FILES):
            path = folder / name / f"{number:03d}.parquet"
            rng = np.random.default_rng([5, side, number])
            pq.write_table(_table(name[0], rows, number, rng), path, row_group_size=rows // 4)
            os.utime(path, (1_700_000_000 + number,) * 2)  # streams read files in this order
    description.write_text(json.dumps(wanted))


def _table(letter: str, rows: int, number: int, rng: np.random.Generator) -> pa.Table:
    """The rows of one file."""
    begin = _BEGIN_US + number * FILE_S * 1_000_000
    times = pa.array(np.sort(rng.integers(0, FILE_S * 1_000_000, rows)) + begin)
    product = np.where(rng.random(rows) < PART, HOT, rng.integers(HOT + 1, PRODUCTS, rows))
    columns = {
        f"{letter}_product": pa.array(product, pa.int64()),
        f"{letter}_time": times.cast(pa.timestamp("us", tz="UTC")),
        f"{letter}_price": rng.random(rows),
    }
    return pa.table(columns)


def answer() -> str:
    """SQL of the results for DuckDB, over the tables `views` and `purchases`.

    Prices are joined by cells and times by stretches, so that few pairs are compared: in the form
    that the engines get, the condition would take DuckDB many minutes.
    """
    cell, stretch = 2 * NEAR, WINDOW_S * 1_000_000  # a cell is wider than NEAR, by more than ulps
    return f"""
        with seen as (
            select *, floor(v_price / {cell}) as cell, epoch_us(v_time) // {stretch} as stretch
            from views
        ), near as (
            select *, floor(p_price / {cell}) + unnest([-1, 0, 1]) as cell from purchases
        ), bought as (
            select *, epoch_us(p_time) // {stretch} + unnest([-1, 0]) as stretch from near
        )
        select v_product, v_time, v_price, p_product, p_time, p_price from seen join bought
        on v_product = p_product and seen.cell = bought.cell and seen.stretch = bought.stretch
        where p_time >= v_time and p_time <= v_time + interval {WINDOW_S} seconds and {PRICES}
    """
