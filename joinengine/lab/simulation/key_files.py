"""Counts the keys of the user's own stream by interval: Parquet, CSV, JSON, or lines.

Files are read in the order in which `parquet_stream` reads them (as they appeared), a chunk at a
time, and only the columns that are needed. The counts of keys lie in DuckDB, which writes to a
temporary folder what does not fit into its share of memory; the files are read once for all
planners. Only the keys of one interval are in memory at once.

Cost: some 0.2 us a tuple for the count, however many planners follow.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyarrow.fs import LocalFileSystem
from typing_extensions import override

from joinengine.balancing.statistics import Floats, Ints
from joinengine.kernels.hashing import Words, any_null, hash_columns
from joinengine.lab.simulation.workload import KeyStream
from joinengine.model.errors import InvalidRequest, UnreadableFile
from joinengine.model.keys import U_BITS
from joinengine.model.spelling import printable
from joinengine.routing.base_functions import Base
from joinengine.sources.listing import read_footers
from joinengine.sources.positions import RowGroup
from joinengine.sources.readings import Reading
from joinengine.sources.schemas import Footer, folder_union
from joinengine.sources.sourcefiles import look_at

if TYPE_CHECKING:
    import pyarrow.dataset as ds

#: By default, a stream is cut into INTERVALS intervals. If they are cut by tuples and not by time,
#: each has LEAST_ROWS to MOST_ROWS of them.
INTERVALS, MOST_ROWS, LEAST_ROWS = 50, 1_000_000, 100
_CHUNK = 1 << 17
_MEMORY = "1GB"
_KINDS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_UNREADABLE = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OSError)


class HotKey(NamedTuple):
    """A key as text, and its tuples."""

    key: str
    rows: int


@dataclass(frozen=True)
class StreamFile(KeyStream):
    """The keys of a file or folder, in the order of its tuples. A tuple with a NULL key has none.

    `key`: the column, or several with commas between; None: the first. An interval is `rows`
    tuples (None: a fiftieth of them), or `every_us` of the event time in column `time`, if it is
    given (`every_us` None: a fiftieth of the time); tuples without a time are left out then.
    """

    path: Path
    key: str | None = None
    rows: int | None = None
    time: str | None = None
    every_us: int | None = None

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise InvalidRequest(f"stream: {self.path} does not exist; give a file or folder")
        if not self._names:
            raise InvalidRequest(f"stream: {self.path} has no columns; give one with a key")
        if self.rows is not None and self.rows < 1:
            raise InvalidRequest(f"rows: expected at least 1, found {self.rows}")
        if self.every_us is not None and self.every_us < 1:
            raise InvalidRequest(f"every: expected a duration above 0, found {self.every_us} us")
        for option, names in (("key", self.columns), ("time", [self.time])):
            for name in names:
                if name is not None and name not in self._names:
                    raise InvalidRequest(
                        f"{option}: column {name!r} is not in {self.path}; its columns are "
                        f"{', '.join(self._names)}"
                    )
        if self.time is not None:
            kind = self._data.schema.field(self.time).type
            if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
                raise InvalidRequest(
                    f"time: expected a timestamp column, found {self.time!r} of type {kind}. Give "
                    f"another column, or leave out --time to cut intervals by --rows"
                )

    @property
    def columns(self) -> list[str]:
        """The columns of the key."""
        if self.key is None:
            return self._names[:1]
        if self.key in self._names:  # a name may have a comma
            return [self.key]
        return [name.strip() for name in self.key.split(",")]

    @property
    def tuples(self) -> int:
        """How many tuples have a key."""
        return int(self._one("select coalesce(sum(n), 0) from counted"))

    @property
    def without_key(self) -> int:
        """How many tuples were left out: they have no key, or no time where intervals go by it."""
        return int(self._data.count_rows()) - self.tuples

    @property
    def distinct(self) -> int:
        """How many keys there are."""
        return int(self._one("select count(distinct hash) from counted"))

    @property
    def length(self) -> int:
        """How many intervals there are."""
        return int(self._one("select count(distinct interval) from counted"))

    def hottest(self, n: int) -> list[HotKey]:
        """The n keys with most tuples, heaviest first."""
        heavy = self._counted.execute(
            "select hash, sum(n)::bigint from counted group by hash order by 2 desc, 1 limit ?", [n]
        ).fetchall()
        waiting, names = {hash_ for hash_, _ in heavy}, dict[int, str]()
        for hashes, columns, _ in self._chunks():
            is_waited_for = np.isin(hashes, np.array(list(waiting), np.uint64))
            for row in np.flatnonzero(is_waited_for)[
                np.unique(hashes[is_waited_for], return_index=True)[1]
            ]:
                values = [column[int(row)].as_py() for column in columns]
                names[int(hashes[row])] = printable(", ".join(map(str, values)))
            waiting -= names.keys()
            if not waiting:
                break
        return [HotKey(names.get(hash_, "?"), rows) for hash_, rows in heavy]

    @override
    def intervals(self, base: Base) -> Iterator[tuple[Words, Floats]]:
        """The keys that each interval brings; the last interval may be short."""
        waiting, now = list[tuple[Words, Floats]](), None
        # A cursor of its own, since several planners may read the counts at the same time.
        reader = self._counted.cursor().sql("from counted").to_arrow_reader(_CHUNK)
        for batch in reader:
            numbers, hashes, counts = (column.to_numpy() for column in batch.columns)
            cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
            for first, last in pairwise(cuts):
                if waiting and numbers[first] != now:
                    yield _joined(waiting)
                    waiting = []
                now = numbers[first]
                waiting.append((hashes[first:last], counts[first:last]))
        if waiting:
            yield _joined(waiting)

    @override
    def total(self, intervals: int) -> float:
        return float(
            self._one(
                f"select coalesce(sum(n), 0) from counted where interval in "
                f"(select distinct interval from counted order by interval limit {intervals})"
            )
        )

    @cached_property
    def _counted(self) -> Any:
        """A connection with the table `counted`: tuples by interval and key hash, in this order."""
        # Signals end a statement while this thread runs it, not while it waits for another one.
        options = {"memory_limit": _MEMORY, "temp_directory": self._passing.name, "threads": 1}
        db = duckdb.connect(config=options)
        db.execute("create temp table arrived (interval bigint, hash ubigint, n bigint)")
        for part in self._parts():
            db.register("part", part)
            db.execute("insert into arrived select interval, hash, count(*) from part group by all")
            db.unregister("part")
        db.execute(
            "create table counted as select interval, hash, sum(n)::double as n from arrived "
            "group by all order by interval, hash"
        )
        db.execute("drop table arrived")
        return db

    @cached_property
    def _passing(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="joinengine-")

    def _one(self, sql: str) -> Any:
        return self._counted.execute(sql).fetchall()[0][0]

    def _parts(self) -> Iterator[pa.Table]:
        """The interval and the key hash of each tuple, chunk by chunk."""
        length, before = self._length(), 0
        for hashes, _, times in self._chunks():
            if times is None:
                numbers = (before + np.arange(len(hashes))) // length
                before += len(hashes)
            else:
                numbers = times // length
            yield pa.table({"interval": numbers, "hash": hashes})

    def _length(self) -> int:
        """The length of an interval: in tuples, or in microseconds."""
        if self.time is None:
            if self.rows is not None:
                return self.rows
            share = -(-int(self._data.count_rows()) // INTERVALS)
            return min(MOST_ROWS, max(LEAST_ROWS, share))
        if self.every_us is not None:
            return self.every_us
        ends = [(int(t.min()), int(t.max())) for _, _, t in self._chunks() if t is not None]
        if not ends:
            return 1
        span = max(last for _, last in ends) - min(first for first, _ in ends)
        return max(1, -(-(span + 1) // INTERVALS))

    def _chunks(self) -> Iterator[tuple[Words, list[pa.Array], Ints | None]]:
        """Key hashes (n,), the columns of the key, and times (n,) in microseconds, if any."""
        named = [*self.columns, *([self.time] if self.time is not None else [])]
        try:
            for whole in self._data.to_batches(
                columns=list(dict.fromkeys(named)), batch_size=_CHUNK
            ):
                columns = [whole.column(name) for name in named]
                lacking = any_null(columns)
                if lacking is not None:
                    columns = [column.filter(pa.array(~lacking)) for column in columns]
                if not len(columns[0]):
                    continue
                keys, times = columns, None
                if self.time is not None:
                    keys, moments = columns[:-1], columns[-1]
                    zone = getattr(moments.type, "tz", None)  # dates have none
                    moments = pc.cast(moments, pa.timestamp("us", zone), safe=False)
                    times = moments.cast(pa.int64()).to_numpy()
                yield hash_columns(keys) >> np.uint64(U_BITS), keys, times
        except _UNREADABLE as error:
            raise InvalidRequest(
                f"stream: {self.path} cannot be read as {self._kind}: {_line(error)}"
            ) from None
        except UnreadableFile as error:
            raise InvalidRequest(f"stream: {self.path} {error.reason}") from None

    @cached_property
    def _files(self) -> list[Path]:
        """The files, oldest first, hidden ones left out."""
        if self.path.is_file():
            return [self.path]
        paths = [
            path
            for path in self.path.rglob("*")
            if path.is_file()
            and _kind_of(path) != "lines"
            and not any(part[0] in "._" for part in path.relative_to(self.path).parts)
        ]
        if not paths:
            raise InvalidRequest(
                f"stream: {self.path} contains no Parquet, CSV or JSON file; give another folder"
            )
        return sorted(paths, key=lambda path: (path.stat().st_mtime_ns, str(path)))

    @cached_property
    def _kind(self) -> str:
        kinds = sorted({_kind_of(path) for path in self._files})
        if len(kinds) > 1:
            raise InvalidRequest(
                f"stream: expected files of one kind in {self.path}, found {', '.join(kinds)}. "
                f"Give one file, or a folder with one kind"
            )
        return kinds[0]

    @cached_property
    def _names(self) -> list[str]:
        names: list[str] = self._data.schema.names
        return names

    @cached_property
    def _data(self) -> ds.Dataset | _ParquetTuples:
        if self._kind == "parquet":
            return _ParquetTuples.of(self.path, self._files)
        import pyarrow.dataset as ds  # noqa: PLC0415  (loads pandas, which takes 0.2 s)

        paths = [str(path) for path in self._files]
        root = str(self.path if self.path.is_dir() else self.path.parent)
        try:
            return ds.dataset(
                paths, format=self._format(), partitioning="hive", partition_base_dir=root
            )
        except _UNREADABLE as error:
            raise InvalidRequest(
                f"stream: {self.path} cannot be read as {self._kind}: {_line(error)}"
            ) from None

    def _format(self) -> Any:
        if self._kind == "json":
            return self._kind
        from pyarrow.dataset import CsvFileFormat  # noqa: PLC0415

        if self._kind == "lines":
            return CsvFileFormat(
                parse_options=csv.ParseOptions(delimiter="\x01", quote_char=False),
                read_options=csv.ReadOptions(column_names=["line"]),
                convert_options=csv.ConvertOptions(column_types={"line": pa.string()}),
            )
        # Keys are text: a column of numbers in the first block may not be one in the last.
        delimiter = csv.ParseOptions(delimiter="\t" if self._kind == "tsv" else ",")
        if self.key is not None:
            names = [self.key, *self.key.split(",")]
        else:
            first = CsvFileFormat(parse_options=delimiter)
            names = first.inspect(str(self._files[0]), LocalFileSystem()).names[:1]
        return CsvFileFormat(
            parse_options=delimiter,
            convert_options=csv.ConvertOptions(
                column_types={name.strip(): pa.string() for name in names},
                null_values=[""],
                strings_can_be_null=True,
            ),
        )


@dataclass(frozen=True, slots=True)
class _ParquetTuples:
    """Parquet files read as `parquet_stream` reads them: the columns are those of all files."""

    footers: Mapping[str, Footer]
    reading: Reading

    @staticmethod
    def of(folder: Path, files: Sequence[Path]) -> _ParquetTuples:
        """The tuples of `files`, in their order.

        Raises InvalidRequest for one that is not whole, and for two that do not go together.
        """
        footers = dict[str, Footer]()
        read = read_footers(filter(None, (look_at(str(path)) for path in files)), {})
        for path, footer in zip(files, read, strict=True):
            if not isinstance(footer, Footer):
                raise InvalidRequest(
                    f"stream: {path} cannot be read as parquet: it {footer}; repair or remove it"
                )
            footers[str(path)] = footer

        def refuse(clash: str) -> None:
            raise InvalidRequest(
                f"stream: {folder}: {clash}, and no type holds both; remove one of the files"
            )

        return _ParquetTuples(
            footers, Reading(folder_union(footers, str(folder), refuse), root=str(folder))
        )

    @property
    def schema(self) -> pa.Schema:
        return self.reading.schema

    def count_rows(self) -> int:
        return sum(sum(footer.rows) for footer in self.footers.values())

    def to_batches(self, columns: Sequence[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        reading = replace(self.reading, schema=pa.schema([self.schema.field(c) for c in columns]))
        for path, footer in self.footers.items():
            groups = [RowGroup(path, number, rows) for number, rows in enumerate(footer.rows)]
            for batch in reading.batches(groups) if groups else ():
                for start in range(0, batch.num_rows, batch_size):
                    yield batch.slice(start, batch_size)


def _joined(parts: list[tuple[Words, Floats]]) -> tuple[Words, Floats]:
    hashes, counts = zip(*parts, strict=True)
    return np.concatenate(hashes), np.concatenate(counts)


def _kind_of(path: Path) -> str:
    plain = path.with_suffix("") if path.suffix.lower() in (".gz", ".bz2", ".zst") else path
    return _KINDS.get(plain.suffix.lower(), "lines")


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0].strip().rstrip(".")
