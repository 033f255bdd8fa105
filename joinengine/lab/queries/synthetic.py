"""Generated streams that are not of TPC-H: millions of rows, a function of the seed.

A stream is one table, written interval by interval in the form of `tpch.stream`; every value is a
function of (seed, column, row number), so it is the same on any machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from joinengine.lab.tpch.generate import Say, build_once, home, silent
from joinengine.lab.tpch.skew import check_zipf, uniform
from joinengine.lab.tpch.stream import (
    EPOCH_US,
    RecordedStream,
    check_pace,
    default_interval_rows,
    digest_of,
)
from joinengine.model.errors import InvalidRequest

_ROW_GROUP = 1 << 16

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class SyntheticSpec:
    """The settings of a generated stream; durations in microseconds.

    `rows` tuples arrive over `span_us`; event time is arrival less a random disorder. `settings`
    are those of the table alone. `columns(spec, rows, times)` makes the columns of (n,) row
    numbers, event time last.
    """

    table: str
    rows: int
    zipf: float
    seed: int
    interval_rows: int | None
    span_us: int
    disorder_us: int
    settings: tuple[tuple[str, str], ...]
    columns: Callable[[SyntheticSpec, Rows, Rows], pa.Table]

    def __post_init__(self) -> None:
        check_zipf(self.zipf)
        if self.rows < 1:
            raise InvalidRequest(
                f"scale: table {self.table} would have no rows; give a larger --scale"
            )
        check_pace(self.interval_rows, None, self.span_us, self.disorder_us, None)

    @property
    def name(self) -> str:
        """A folder name: readable words, and a digest of all settings."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "columns"}
        return f"{self.table}-{self.rows}-z{self.zipf:g}-{digest_of(plain)}"

    def record(self, say: Say = silent) -> RecordedStream:
        """The stream, written now unless it is in the cache."""
        folder = home() / "streams" / self.name
        build_once(folder, lambda draft: self._write(draft, say))
        return RecordedStream(folder, {self.table: self.rows}, self.span_us)

    def uniform(self, what: str, rows: Rows) -> NDArray[np.float64]:
        """(n,) numbers in [0, 1) for (n,) row numbers and the purpose `what`."""
        return uniform(self.seed, f"{self.table}: {what}", rows)

    def _write(self, folder: Path, say: Say) -> None:
        say(f"writing {self.table} as a stream: {self.rows:,} rows")
        (folder / self.table).mkdir(parents=True)
        interval = self.interval_rows or default_interval_rows(self.rows)
        cuts = np.append(np.arange(0, self.rows, interval), self.rows)
        index = {"intervals": [], "progress": []}  # type: ignore[var-annotated]
        for number, (first, last) in enumerate(pairwise(cuts.tolist())):
            table = self._stretch(np.arange(first, last))
            name = f"{self.table}/{number:05d}.parquet"
            pq.write_table(table, str(folder / name), row_group_size=_ROW_GROUP)
            starts = range(0, table.num_rows, _ROW_GROUP)
            groups = [
                [name, n, min(_ROW_GROUP, table.num_rows - at)] for n, at in enumerate(starts)
            ]
            index["intervals"].append(groups)
            # No row after a cut is older than this: the arrival time at the cut, less the disorder.
            index["progress"].append(int(self._arrival_us(np.array([last]))[0]) - self.disorder_us)
        pq.write_table(
            self._stretch(np.arange(1)).slice(0, 0), str(folder / f"{self.table}.schema.parquet")
        )
        (folder / f"{self.table}.json").write_text(json.dumps(index))

    def _stretch(self, rows: Rows) -> pa.Table:
        late = (self.uniform("disorder", rows) * self.disorder_us).astype(np.int64)
        return self.columns(self, rows, self._arrival_us(rows) - late)

    def _arrival_us(self, rows: Rows) -> Rows:
        return EPOCH_US + (rows / self.rows * self.span_us).astype(np.int64)


def time_array(times: Rows) -> pa.Array:
    """(n,) microseconds as a timestamp column."""
    return pa.array(times, pa.timestamp("us", "UTC"))
