"""The tables of Nexmark as a recorded stream, in the form of `lab.tpch.stream`.

Events have an even pace, and their numbers are the arrival sequence. Only the tables that a query
reads are written, and only their rows count for an interval; the events are the same whichever
tables are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from joinengine.lab.nexmark.auction_rows import ROWS, House
from joinengine.lab.nexmark.event_keys import FIRST_ID, KINDS, REFERENCES, ROUND, Numbers
from joinengine.lab.tpch.generate import Say, silent
from joinengine.lab.tpch.skew import ZipfKeys, check_zipf
from joinengine.lab.tpch.stream import (
    RecordedStream,
    check_pace,
    default_interval_rows,
    digest_of,
    recorded_once,
    write_about,
    write_table,
)
from joinengine.model.errors import InvalidRequest

#: How many rows are made at a time.
_PIECE = 1 << 17


@dataclass(frozen=True)
class AuctionSpec:
    """The settings of a stream of Nexmark; durations in microseconds.

    `events`: those of all tables, at `rate` per second. `zipf`: None follows the published rules.
    Otherwise, sellers, auctions and bidders are drawn from all persons and auctions of the stream
    by Zipf(zipf), so hot keys last; every `shift_us`, others become hot.
    """

    tables: tuple[str, ...]
    events: int
    rate: float
    zipf: float | None = None
    seed: int = 0
    interval_rows: int | None = None
    disorder_us: int = 0
    shift_us: int | None = None

    def __post_init__(self) -> None:
        if self.events < ROUND:
            raise InvalidRequest(
                f"scale: expected at least the {ROUND} events of a person, found {self.events}; "
                f"give a larger --scale"
            )
        check_pace(self.interval_rows, self.rate, self.span_us, self.disorder_us, self.shift_us)
        if self.zipf is not None:
            check_zipf(self.zipf)

    @property
    def span_us(self) -> int:
        """How much event time the stream covers."""
        return max(1, int(self.events / self.rate * 1e6)) if self.rate > 0 else 1

    @property
    def name(self) -> str:
        """A folder name: readable words, and a digest of all settings."""
        skew = "" if self.zipf is None else f"-z{self.zipf:g}"
        return f"nexmark-{'-'.join(self.tables)}-{self.events}{skew}-{digest_of(asdict(self))}"

    def record(self, say: Say = silent) -> RecordedStream:
        """The stream, written now unless it is in the cache."""
        return recorded_once(self.name, lambda draft: self._write(draft, say))

    def house(self) -> House:
        """What its rows depend on."""
        lasting = dict[str, ZipfKeys]()
        if self.zipf is not None:
            for column, named in REFERENCES.items():
                ids = FIRST_ID + np.arange(self.rows(named.parent))
                lasting[column] = ZipfKeys.over(ids, self.zipf, column, self.seed)
        return House(self.seed, self.rate, self.disorder_us, lasting, self.shift_us)

    def rows(self, table: str) -> int:
        """How many rows a table has."""
        return int(KINDS[table].before(np.array([self.events]))[0])

    def cuts(self) -> Numbers:
        """The number of the first event of each interval, and, as the last, of all events."""
        read = np.concatenate(
            [KINDS[name].first + np.arange(KINDS[name].each) for name in self.tables]
        )
        read.sort()
        total = sum(map(self.rows, self.tables))
        starts = np.arange(0, total, self.interval_rows or default_interval_rows(total))
        events = starts // len(read) * ROUND + read[starts % len(read)]
        return np.append(events, self.events)

    def _write(self, folder: Path, say: Say) -> None:
        folder.mkdir()
        house, cuts = self.house(), self.cuts()
        # No row after a cut is older than this: the arrival time at the cut, less the disorder.
        progress = (house.arrivals_us(cuts[1:]) - self.disorder_us).tolist()
        for table in self.tables:
            say(f"writing {table} as a stream: {self.rows(table):,} rows")
            bounds = KINDS[table].before(cuts)
            write_table(folder, table, _stretches(house, table, bounds), progress)
        rows = {table: self.rows(table) for table in self.tables}
        write_about(folder, rows, self.span_us, asdict(self))


def _stretches(house: House, table: str, bounds: Numbers) -> Iterator[pa.Table]:
    """The rows of each interval, made piece by piece: texts take eight times their size."""
    for first, last in pairwise(bounds.tolist()):
        starts = range(first, max(last, first + 1), _PIECE)
        pieces = [np.arange(start, min(start + _PIECE, last)) for start in starts]
        yield pa.concat_tables([ROWS[table](house, rows) for rows in pieces])
