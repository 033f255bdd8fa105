"""Generated streams other than TPC-H: millions of rows, as a function of the seed.

A stream is one table, written interval by interval in the form of `tpch.stream`; every value is a
function of (seed, column, row number), so it is the same on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.lab.tpch.generate import Say, silent
from joinengine.lab.tpch.skew import check_zipf, cumulative_zipf, ranks_of, uniform
from joinengine.lab.tpch.stream import (
    EPOCH_US,
    RecordedStream,
    check_pace,
    default_interval_rows,
    digest_of,
    recorded_once,
    write_about,
    write_table,
)
from joinengine.model.errors import InvalidRequest

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
        written = {**self._settings(), "form": 2}  # earlier versions wrote no stream.json
        return f"{self.table}-{self.rows}-z{self.zipf:g}-{digest_of(written)}"

    def record(self, say: Say = silent) -> RecordedStream:
        """The stream, written now unless it is in the cache."""
        return recorded_once(self.name, lambda draft: self._write(draft, say))

    def uniform(self, what: str, rows: Rows) -> NDArray[np.float64]:
        """(n,) numbers in [0, 1) for (n,) row numbers and the purpose `what`."""
        return uniform(self.seed, f"{self.table}: {what}", rows)

    def ranks(self, what: str, rows: Rows, n: int) -> Rows:
        """(n,) ranks, from 0 to `n` - 1 and with Zipf frequencies, for row numbers and `what`."""
        return ranks_of(cumulative_zipf(n, self.zipf), self.uniform(what, rows))

    def _write(self, folder: Path, say: Say) -> None:
        say(f"writing {self.table} as a stream: {self.rows:,} rows")
        folder.mkdir()
        interval = self.interval_rows or default_interval_rows(self.rows)
        cuts = np.append(np.arange(0, self.rows, interval), self.rows)
        # No row after a cut is older than this: the arrival time at the cut, less the disorder.
        progress = (self._arrival_us(cuts[1:]) - self.disorder_us).tolist()
        stretches = (self._stretch(np.arange(*some)) for some in pairwise(cuts.tolist()))
        write_table(folder, self.table, stretches, progress)
        write_about(folder, {self.table: self.rows}, self.span_us, self._settings())

    def _settings(self) -> dict[str, object]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "columns"}

    def _stretch(self, rows: Rows) -> pa.Table:
        late = (self.uniform("disorder", rows) * self.disorder_us).astype(np.int64)
        return self.columns(self, rows, self._arrival_us(rows) - late)

    def _arrival_us(self, rows: Rows) -> Rows:
        return EPOCH_US + (rows / self.rows * self.span_us).astype(np.int64)
