"""TPC-H tables as one arrival sequence, written interval by interval.

Every tuple of every table gets an arrival number; event time is the arrival number over the rate,
less a bounded, random disorder. The tables keep their own row order; the seed decides how they are
interleaved. Each table becomes a folder of plain Parquet files, one per interval, and an index that
says what each interval holds and how far event time has come
(joinengine.sources.feeds.RecordedFeed).
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from joinengine.lab.tpch.arrival import TableOrder
from joinengine.lab.tpch.generate import Say, build_once, check_scale, home, silent, tables
from joinengine.lab.tpch.skew import FOREIGN_KEYS, ZipfKeys, check_zipf, shuffled, uniform
from joinengine.model.durations import describe
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import one_of
from joinengine.world.kafka_clients import Cluster

#: Event time of arrival 0: 2024-01-01 00:00 UTC, microseconds.
EPOCH_US = 1_704_067_200_000_000
#: How much event time a stream covers by default (the papers: 1,280 s).
SPAN_US = 1_280_000_000
_ROW_GROUPS = 8
_LEAST_ROWS = 8192


@dataclass(frozen=True)
class StreamSpec:
    """The settings of a recorded stream.

    `facts` are the large tables; the others are dimensions, whose rows arrive in `order`. After
    every `shift_us` of event time, other keys become hot.
    """

    tables: tuple[str, ...]
    facts: tuple[str, ...]
    scale: float
    zipf: float = 0.0
    seed: int = 0
    order: TableOrder = TableOrder.UNIFORM
    interval_rows: int | None = None
    rate: float | None = None
    span_us: int = SPAN_US
    disorder_us: int = 0
    shift_us: int | None = None

    def __post_init__(self) -> None:
        check_scale(self.scale)
        check_zipf(self.zipf)
        object.__setattr__(self, "order", one_of(TableOrder, self.order, "order"))
        check_pace(self.interval_rows, self.rate, self.span_us, self.disorder_us, self.shift_us)

    @property
    def name(self) -> str:
        """A folder name: readable words, and a digest of all settings."""
        digest = digest_of(asdict(self))
        return f"{'-'.join(self.tables)}-sf{self.scale:g}-z{self.zipf:g}-{self.order}-{digest}"

    def record(self, say: Say = silent) -> RecordedStream:
        """The stream, written now unless it is in the cache."""
        parents = (FOREIGN_KEYS[column][0] for column in _foreign(self.tables))
        files = tables(self.scale, dict.fromkeys([*self.tables, *parents]), say)
        return recorded_once(self.name, lambda draft: _write(draft, self, files, say))


@dataclass(frozen=True)
class InTopics:
    """The topics that also hold a stream's tables; table -> messages that a batch reads."""

    cluster: Cluster
    batch_rows: Mapping[str, int]


@dataclass(frozen=True)
class RecordedStream:
    """A stream on disk; `reach`: the URL of a copy for tasks; None: tasks read the disk.

    `topics`: where tasks read the tables instead; None: from the files.
    """

    folder: Path
    rows: Mapping[str, int]
    span_us: int
    reach: str | None = None
    topics: InTopics | None = None

    def index(self, table: str) -> str:
        """The file that says what the intervals of a table hold; tasks find the others by it."""
        return f"{self.folder if self.reach is None else self.reach}/{table}.json"

    def files(self, table: str) -> str:
        """A glob of all Parquet files of a table, as it stands between quotes in SQL."""
        return f"{in_quotes(self.folder / table)}/*.parquet"

    def schema(self, table: str) -> pa.Schema:
        """The columns of a table, with its event time."""
        return pq.read_schema(str(self.folder / f"{table}.schema.parquet"))


def in_quotes(path: Path) -> str:
    """A path as it stands between quotes in SQL, where DuckDB takes it for a pattern.

    >>> in_quotes(Path("o'b[1]"))
    "o''b[[]1]"
    """
    return glob.escape(str(path)).replace("'", "''")


def time_column(table: str) -> str:
    """The event-time column of a table.

    >>> time_column("lineitem")
    'l_ts'
    """
    return f"{'ps' if table == 'partsupp' else table[0]}_ts"


def time_array(times: NDArray[np.int64]) -> pa.Array:
    """(n,) microseconds as a timestamp column."""
    return pa.array(times, pa.timestamp("us", "UTC"))


def digest_of(settings: Mapping[str, object]) -> str:
    """Ten characters that differ if any of the settings does."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]


def check_pace(
    interval_rows: int | None,
    rate: float | None,
    span_us: int,
    disorder_us: int,
    shift_us: int | None,
) -> None:
    """Raise InvalidRequest for settings, those of `StreamSpec`, with which no stream is made."""
    if interval_rows is not None and interval_rows < 1:
        raise InvalidRequest(f"interval-rows: expected at least 1, found {interval_rows}")
    if rate is not None and not rate > 0:
        raise InvalidRequest(f"rate: expected a number of rows per second above 0, found {rate}")
    if span_us <= 0:
        raise InvalidRequest(f"span: expected a duration above 0, found {describe(span_us)}")
    if shift_us is not None and shift_us <= 0:
        raise InvalidRequest(
            f"shift-every: expected a duration above 0, found {describe(shift_us)}"
        )
    if disorder_us < 0:
        raise InvalidRequest(
            f"disorder: expected a duration of 0 or more, found {describe(disorder_us)}"
        )


def recorded_once(name: str, write: Callable[[Path], None]) -> RecordedStream:
    """The stream of a name; `write` makes its folder unless it is in the cache."""
    folder = home() / "streams" / name
    build_once(folder, write)
    about = json.loads((folder / "stream.json").read_text())
    return RecordedStream(folder, about["rows"], about["span_us"])


def arrivals(spec: StreamSpec, rows: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
    """Per table, the arrival numbers of its rows, ascending; together they are 0..n-1."""
    facts = [table for table in spec.tables if table in spec.facts]
    dimensions = [table for table in spec.tables if table not in spec.facts]
    match spec.order:
        case TableOrder.UNIFORM:
            blocks = [list(spec.tables)]
        case TableOrder.FIRST:
            blocks = [dimensions, facts]
        case TableOrder.LAST:
            blocks = [facts, dimensions]
    numbers, start = dict[str, NDArray[np.int64]](), 0
    for block in blocks:
        total = sum(rows[table] for table in block)
        order = shuffled(spec.seed, f"arrival of {' '.join(block)}", total) + start
        taken = 0
        for table in block:
            numbers[table] = np.sort(order[taken : taken + rows[table]])
            taken += rows[table]
        start += total
    return numbers


def _write(folder: Path, spec: StreamSpec, files: Mapping[str, Path], say: Say) -> None:
    rows = {table: pq.read_metadata(str(files[table])).num_rows for table in spec.tables}
    total = sum(rows.values())
    rate = spec.rate if spec.rate is not None else total / (spec.span_us / 1e6)
    interval = spec.interval_rows or default_interval_rows(total)
    cuts = np.append(np.arange(0, total, interval), total)
    # No row after a cut is older than this: the arrival time at the cut, less the disorder.
    progress = (_time_us(cuts[1:], rate) - spec.disorder_us).tolist()
    numbers = arrivals(spec, rows)
    folder.mkdir()
    for table in spec.tables:
        say(f"writing {table} as a stream: {rows[table]:,} rows")
        stretches = _stretches(table, files, numbers[table], cuts, spec, rate)
        write_table(folder, table, stretches, progress)
    write_about(folder, rows, int(total / rate * 1e6), asdict(spec))


def write_table(
    folder: Path, table: str, stretches: Iterable[pa.Table], progress: Sequence[int]
) -> None:
    """Write a table of a stream: its rows interval by interval, its schema, and its index."""
    (folder / table).mkdir()
    intervals = list[list[list[object]]]()
    for number, rows in enumerate(stretches):
        if number == 0:
            empty = rows.schema.empty_table()
            pq.write_table(empty, str(folder / f"{table}.schema.parquet"))
        if not rows.num_rows:
            intervals.append([])
            continue
        name = f"{table}/{number:05d}.parquet"
        size = max(_LEAST_ROWS, -(-rows.num_rows // _ROW_GROUPS))
        pq.write_table(rows, str(folder / name), row_group_size=size, store_decimal_as_integer=True)
        groups = range(0, rows.num_rows, size)
        intervals.append([[name, n, min(size, rows.num_rows - at)] for n, at in enumerate(groups)])
    index = {"intervals": intervals, "progress": list(progress)}
    (folder / f"{table}.json").write_text(json.dumps(index))


def write_about(
    folder: Path, rows: Mapping[str, int], span_us: int, settings: Mapping[str, object]
) -> None:
    """Write what a stream is: the last of its files."""
    about = {"rows": rows, "span_us": span_us, "spec": settings}
    (folder / "stream.json").write_text(json.dumps(about, indent=1))


def default_interval_rows(total: int) -> int:
    """The rows of an interval: about 32 intervals, of at least 1,000 rows each."""
    return max(1000, -(-total // 32))


def _stretches(
    table: str,
    files: Mapping[str, Path],
    numbers: NDArray[np.int64],
    cuts: NDArray[np.int64],
    spec: StreamSpec,
    rate: float,
) -> Iterator[pa.Table]:
    """The rows of each interval, whose arrivals are `numbers` (n,), between two of `cuts`."""
    keys = _redrawn(table, spec, files)
    bounds = np.searchsorted(numbers, cuts)
    for interval, batch in enumerate(_cut(files[table], bounds)):
        first, last = int(bounds[interval]), int(bounds[interval + 1])
        rows = np.arange(first, last)
        times = _time_us(numbers[first:last], rate)
        if spec.disorder_us:
            late = uniform(spec.seed, f"{table}: disorder", rows) * spec.disorder_us
            times -= late.astype(np.int64)
        arrived = _time_us(numbers[first:last], rate) - EPOCH_US
        phases = None if spec.shift_us is None else arrived // spec.shift_us
        yield _fill(batch, keys, rows, phases, times, time_column(table))


def _cut(source: Path, bounds: NDArray[np.int64]) -> Iterator[pa.Table]:
    """The rows of a file in stretches bounds[i]:bounds[i + 1], holding one stretch in memory."""
    with pq.ParquetFile(str(source)) as file:
        batches = file.iter_batches(batch_size=1 << 16)
        waiting = pa.Table.from_batches([], file.schema_arrow)
        for size in np.diff(bounds).tolist():
            while waiting.num_rows < size:
                waiting = pa.concat_tables([waiting, pa.Table.from_batches([next(batches)])])
            yield waiting.slice(0, size)
            waiting = waiting.slice(size)


def _fill(
    rows: pa.Table,
    keys: Mapping[str, ZipfKeys],
    numbers: NDArray[np.int64],
    phases: NDArray[np.int64] | None,
    times: NDArray[np.int64],
    time_name: str,
) -> pa.Table:
    """The table's columns in plain types, with foreign keys redrawn, and event time as the last."""
    columns = dict[str, object]()
    for field in rows.schema:
        if field.name in keys:
            columns[field.name] = pa.array(keys[field.name].draw(numbers, phases))
        elif field.type == pa.string_view():
            columns[field.name] = pc.cast(rows.column(field.name), pa.string())
        else:
            columns[field.name] = rows.column(field.name)
    columns[time_name] = time_array(times)
    return pa.table(columns)


def _redrawn(table: str, spec: StreamSpec, files: Mapping[str, Path]) -> dict[str, ZipfKeys]:
    drawn = dict[str, ZipfKeys]()
    for column in _foreign([table]):
        parent, parent_column = FOREIGN_KEYS[column]
        keys = pq.read_table(str(files[parent]), columns=[parent_column]).column(0)
        drawn[column] = ZipfKeys.over(keys.to_numpy(), spec.zipf, column, spec.seed)
    return drawn


def _foreign(names: Sequence[str]) -> list[str]:
    prefixes = {time_column(name).removesuffix("_ts") for name in names}
    return [column for column in FOREIGN_KEYS if column.split("_")[0] in prefixes]


def _time_us(numbers: NDArray[np.int64], rate: float) -> NDArray[np.int64]:
    return EPOCH_US + (numbers / rate * 1e6).astype(np.int64)
