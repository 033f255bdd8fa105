"""Writes and reads staged files, in which results and refused tuples wait for the commit."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from joinengine.model.errors import JoinEngineError
from joinengine.results.folders import partitioned
from joinengine.world.local import writing
from joinengine.world.storage import Storage, StoredFile, verify

#: The entry of a footer from which Spark reads the types of the columns.
SPARK_ROW = "org.apache.spark.sql.parquet.row.metadata"
#: The default codec: results of joins are wide and repeat values, so a light codec halves them.
CODEC = "snappy"
#: Bytes of results that wait before they are divided among folders, for few files in each.
SPREAD_BYTES = 64 << 20
#: Bytes of staged rows that a reader holds at a time, and again as a copy.
PIECE_BYTES = 64 << 20
#: Rows that are decoded at a time: a file does not show the length of a text that many rows share.
_READ_ROWS = 1 << 13
#: The most files in folders that a task has open at a time.
MOST_OPEN = 64


@dataclass(frozen=True, slots=True)
class Cutting:
    """How results are cut into files.

    `partition_by`: columns whose values name Hive folders, instants in the time zone `zone`.
    `units`: for each of these columns, the unit that names the folder; then they stay in the files.
    `target_bytes`: the size at which another file begins; None: never.
    `spark_row`: the columns as Spark's JSON, for types that Parquet itself lacks; None: it has all.
    """

    codec: str = CODEC
    partition_by: tuple[str, ...] = ()
    zone: str = "UTC"
    target_bytes: int | None = None
    units: tuple[str, ...] = ()
    spark_row: str | None = None


#: One file for each task, without Hive folders.
PLAIN = Cutting()


class ParquetFile:
    """A staged Parquet file, created with its first rows."""

    def __init__(
        self, storage: Storage, name: str, codec: str = CODEC, spark_row: str | None = None
    ) -> None:
        self._storage = storage
        self._name = name
        self._codec = codec
        self._spark_row = spark_row
        self._writer: Any = None

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return 0 if self._writer is None else int(self._sink.tell())

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        with writing(f"{self._storage.folder}/{self._name}"):
            if self._writer is None:
                self._sink = self._storage.output(self._name)
                schema = batch.schema
                if self._spark_row is not None:
                    schema = schema.with_metadata({SPARK_ROW: self._spark_row})
                # Decimals as integers, as Spark writes them, take a third of the time to read.
                self._writer = pq.ParquetWriter(
                    self._sink, schema, compression=self._codec, store_decimal_as_integer=True
                )
            self._writer.write_batch(batch)

    def close(self) -> StoredFile | None:
        """Seal the file; None: it got no rows."""
        if self._writer is None:
            return None
        with writing(f"{self._storage.folder}/{self._name}"):
            self._writer.close()
            self._sink.close()
        return replace(self._storage.seal(self._name), name=self._name)


class ParquetFiles:
    """Staged files one after another, each of about the target size."""

    def __init__(self, storage: Storage, stem: str, cutting: Cutting) -> None:
        self._storage = storage
        self._stem = stem
        self._cutting = cutting
        self._sealed = list[StoredFile]()
        self._file = self._next()

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        target = self._cutting.target_bytes
        for piece in _pieces(batch, target):
            self._file.add(piece)
            if target is not None and self._file.size_bytes >= target:
                self._seal()
                self._file = self._next()

    def close(self) -> list[StoredFile]:
        """Seal the last file; all files."""
        self._seal()
        return self._sealed

    def _next(self) -> ParquetFile:
        number = len(self._sealed)
        name = f"{self._stem}-{number}.parquet" if number else f"{self._stem}.parquet"
        cutting = self._cutting
        return ParquetFile(self._storage, name, cutting.codec, cutting.spark_row)

    def _seal(self) -> None:
        stored = self._file.close()
        if stored is not None:
            self._sealed.append(stored)


class FolderFiles:
    """Staged files in Hive folders below the folder `stem`: one or a few in each.

    Results wait until there are many, and are then divided among the folders together. A folder
    gets a second file if its first one is large enough, or was closed because too many were open.
    """

    def __init__(self, storage: Storage, stem: str, cutting: Cutting) -> None:
        self._storage = storage
        self._stem = stem
        self._cutting = cutting
        self._waiting = list[pa.RecordBatch]()
        self._open = dict[str, ParquetFiles]()
        self._made = 0
        self._sealed = list[StoredFile]()

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._waiting.append(batch)
        if sum(waiting.nbytes for waiting in self._waiting) >= SPREAD_BYTES:
            self._spread(last=False)

    def close(self) -> list[StoredFile]:
        """Seal the last files; all files."""
        self._spread(last=True)
        for files in self._open.values():
            self._sealed += files.close()
        return self._sealed

    def _spread(self, *, last: bool) -> None:
        if not self._waiting:
            return
        batch, self._waiting = pa.concat_batches(self._waiting), []
        cutting = self._cutting
        dealt = partitioned(batch, cutting.partition_by, cutting.zone, cutting.units)
        for folder, rows in dealt:
            files = self._open.pop(folder, None) or self._new(folder)
            self._add(files, folder, rows)
            self._open[folder] = files
            if last or len(self._open) > MOST_OPEN:
                # Close the file that got rows longest ago; if these are the last rows, this file.
                oldest = folder if last else next(iter(self._open))
                self._sealed += self._open.pop(oldest).close()

    def _add(self, files: ParquetFiles, folder: str, rows: pa.RecordBatch) -> None:
        try:
            files.add(rows)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            parts = zip(self._cutting.partition_by, folder.split("/"), strict=True)
            column, name = max(parts, key=lambda part: len(part[1].encode()))
            raise JoinEngineError(
                f"partitionBy: column {column!r} has the value {name.partition('=')[2][:40]!r}.., "
                f"so its folder would need a name of {len(name.encode())} bytes, more than the "
                "file system allows; partition by a shorter column, or exclude these rows with "
                "where="
            ) from None

    def _new(self, folder: str) -> ParquetFiles:
        self._made += 1
        return ParquetFiles(self._storage, f"{self._stem}/{folder}/{self._made}", self._cutting)


def staged_files(storage: Storage, stem: str, cutting: Cutting) -> ParquetFiles | FolderFiles:
    """New staged files whose names begin with `stem`."""
    kind = FolderFiles if cutting.partition_by else ParquetFiles
    return kind(storage, stem, cutting)


def rows_of(
    storage: Storage, stored: StoredFile, rows: int, what: str = "result file"
) -> Iterator[pa.RecordBatch]:
    """The content of a staged file, at most `rows` rows or PIECE_BYTES at a time.

    Raises DamagedState if the file is not what was sealed.
    """
    file = pq.ParquetFile(pa.BufferReader(verify(storage, stored, what)))
    groups = (file.metadata.row_group(group) for group in range(file.num_row_groups))
    mean = sum(group.total_byte_size for group in groups) / max(file.metadata.num_rows, 1)
    fitting = max(int(PIECE_BYTES // max(mean, 1.0)), 1)
    yield from gathered(file.iter_batches(min(rows, fitting, _READ_ROWS)), rows)


def gathered(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: each ends at `rows` rows, or at PIECE_BYTES."""
    waiting, size = list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= PIECE_BYTES or sum(part.num_rows for part in waiting) >= rows:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def visible_name(batch: int, query: str, staged: str) -> str:
    """The name under which a staged file becomes visible, in the same Hive folder.

    >>> visible_name(7, "q", "g1-x.parquet"), visible_name(7, "q", "g1-x/day=1/2.parquet")
    ('part-00000007-q-g1-x.parquet', 'day=1/part-00000007-q-g1-x-2.parquet')
    """
    stem, *folders = staged.split("/")
    name = "-".join([stem, *folders[-1:]])
    return "/".join([*folders[:-1], f"part-{batch:08d}-{query}-{name}"])


def _pieces(batch: pa.RecordBatch, target: int | None) -> Iterator[pa.RecordBatch]:
    """Rows in pieces not much larger than a file of the `target` size."""
    if target is None or batch.nbytes <= target:
        yield batch
        return
    rows = max(1, batch.num_rows * target // batch.nbytes)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
