"""The streams of a run, written while it goes on; and a tally of what has come of them."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tests.chaos.case import REACH_S, ROWS

SIDES = ("l", "r")
#: A file of each side every so many seconds, which are also seconds of event time.
EVERY_S, ROWS_A_FILE = 0.5, 200
KEYS, HOT, HOT_FOR_S = 200, 0.1, 15
#: Tuples at the end that move the watermark over all others, in more than two batches, match
#: nothing, and are left out of the tally.
FLUSH_ID, FLUSH_FILES, LATER_S = 1 << 40, 3, 3600
_EPOCH_US = 1_700_000_000_000_000
_TYPES = {"k": pa.int64(), "t": pa.timestamp("us", "UTC"), "i": pa.int64(), "w": pa.string()}


class Feed:
    """Writes both streams below a folder, from `start` to `finish`."""

    def __init__(self, folder, seed):
        self.folder, self.rows = Path(folder), 0
        self._rng = random.Random(f"feed {seed}")
        self._files, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._write_on, daemon=True)
        for side in SIDES:
            (self.folder / side).mkdir(parents=True)

    def start(self):
        self._thread.start()

    def finish(self):
        """Write what moves the watermark to the end."""
        self._ended.set()
        self._thread.join()
        for number in range(FLUSH_FILES):
            for place, side in enumerate(SIDES):
                first = FLUSH_ID + number * ROWS
                keys = [-1 - place] * ROWS
                self._write(side, keys, list(range(first, first + ROWS)), LATER_S * (number + 1))
            self._files += 1

    def _write_on(self):
        while not self._ended.wait(EVERY_S):
            hot = int(self._files * EVERY_S / HOT_FOR_S)
            for side in SIDES:
                keys = [
                    hot if self._rng.random() < HOT else self._rng.randrange(KEYS)
                    for _ in range(ROWS_A_FILE)
                ]
                first = self._files * ROWS_A_FILE
                self._write(side, keys, list(range(first, first + ROWS_A_FILE)))
            self._files += 1
            self.rows += ROWS_A_FILE

    def _write(self, side, keys, ids, later_s=0.0):
        start = _EPOCH_US + int((self._files * EVERY_S + later_s) * 1e6)
        spread = int(EVERY_S * 1e6) // len(ids)
        columns = {
            "k": keys,
            "t": [start + spread * number for number in range(len(ids))],
            "i": ids,
            "w": [f"{side}{one * 7919:x}" for one in ids],
        }
        table = pa.table({side + name: pa.array(columns[name], _TYPES[name]) for name in _TYPES})
        folder = self.folder / side
        draft = folder / f".{self._files}"
        pq.write_table(table, draft)
        draft.rename(folder / f"{self._files:06}.parquet")


_TALLY = """
WITH wanted AS (
    SELECT li, lw, ri, rw, count(*) AS n
    FROM '{l}/*.parquet' l {how} JOIN '{r}/*.parquet' r
    ON lk = rk AND rt BETWEEN lt - INTERVAL {reach} SECOND AND lt + INTERVAL {reach} SECOND
    WHERE coalesce(li, ri) < {flush}
    GROUP BY ALL
), found AS (
    SELECT li, lw, ri, rw, count(*) AS n
    FROM read_parquet([{out}])
    WHERE coalesce(li, ri) < {flush}
    GROUP BY ALL
)
SELECT
    coalesce(sum(wanted.n), 0)::BIGINT AS wanted,
    coalesce(sum(greatest(wanted.n - coalesce(found.n, 0), 0)), 0)::BIGINT AS lost,
    coalesce(sum(greatest(found.n - wanted.n, 0)), 0)::BIGINT AS twice,
    coalesce(sum(found.n) FILTER (wanted.n IS NULL), 0)::BIGINT AS alien
FROM wanted FULL JOIN found
ON wanted.li IS NOT DISTINCT FROM found.li AND wanted.lw IS NOT DISTINCT FROM found.lw
AND wanted.ri IS NOT DISTINCT FROM found.ri AND wanted.rw IS NOT DISTINCT FROM found.rw
"""
_NAMES = {"inner": "INNER", "left_outer": "LEFT", "full_outer": "FULL"}


def tally(streams, out, how):
    """Rows that DuckDB finds (`wanted`), and of the results those lost, there twice, and alien."""
    files = sorted(str(path) for path in Path(out).glob("*.parquet"))
    given = {side: f"{streams}/{side}" for side in SIDES}
    text = _TALLY.format(
        **given,
        how=_NAMES[how],
        reach=REACH_S,
        flush=FLUSH_ID,
        out=", ".join(f"'{file}'" for file in files),
    )
    with duckdb.connect() as database:
        found = database.execute(text)
        names = [column[0] for column in found.description]
        return dict(zip(names, found.fetchone(), strict=True))
