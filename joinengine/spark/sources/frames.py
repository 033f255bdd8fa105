"""Reads staged files as DataFrames, and writes DataFrames to staged files, by the engine's storage.

Why: Spark reads and writes an object store only with a jar that its package lacks. So its tasks get
the names of files, and open them as all tasks of the engine do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from joinengine.results.staging import Cutting, rows_of, staged_files
from joinengine.sources.readings import conform
from joinengine.sources.sourcefiles import find, parquet
from joinengine.world.buckets import is_url
from joinengine.world.storage import Storage, StoredFile
from joinengine.world.world import MACHINE

#: A staged file as a row.
_STORED = "name string, size_bytes long, crc32 long"
_ROWS = 1 << 16
#: How Spark reads files of the engine's, whatever the session says of the user's own files: paths
#: are no patterns (several are, unless Spark looks recursively), every file counts, and old dates
#: are as written.
_EXACTLY = {
    "__globPaths__": "false",
    "recursiveFileLookup": "true",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
}


def frame_of(
    spark: SparkSession, schema: pa.Schema, storage: Storage, files: Sequence[StoredFile]
) -> DataFrame:
    """The rows of staged files; Spark itself reads files that lie in a folder."""
    columns = from_arrow_schema(schema)
    if not files:
        return spark.createDataFrame([], columns)
    if not is_url(storage.folder):
        return read_exactly(spark, columns, *(f"{storage.folder}/{file.name}" for file in files))
    rows = [(file.name, file.size_bytes, file.crc32) for file in files]
    named = spark.createDataFrame(rows, _STORED).repartition(len(rows))
    return named.mapInArrow(_Opened(storage.folder, schema), columns)


def read_exactly(spark: SparkSession, columns: StructType, *paths: str) -> DataFrame:
    """The rows of the Parquet files at `paths`, and below those paths that are folders.

    No path counts as a pattern, whatever its characters: a colon could not be escaped.
    """
    frame: DataFrame = spark.read.schema(columns).options(**_EXACTLY).parquet(*paths)
    return frame


def frame_in_store(spark: SparkSession, place: str, schema: pa.Schema) -> DataFrame:
    """The rows of a user's Parquet files below a URL, with the columns of `schema`."""
    named = spark.createDataFrame([(file.path,) for file in find(place)], "path string")
    return named.mapInArrow(_Read(schema), from_arrow_schema(schema))


def nameable(frame: DataFrame) -> DataFrame:
    """The frame for `mapInArrow`, perhaps with other names of its columns.

    PySpark asks there for each column by its name, and takes a dot for one before a field.
    """
    if not any(mark in name for name in frame.columns for mark in ".`"):
        return frame
    return frame.toDF(*(str(number) for number in range(len(frame.columns))))


def store(
    frame: DataFrame, storage: Storage, stem: str, cutting: Cutting, schema: pa.Schema
) -> list[StoredFile]:
    """Write a frame to staged files whose names begin with `stem`, one or more for each task."""
    written = nameable(frame).mapInArrow(_Stored(storage.folder, stem, cutting, schema), _STORED)
    return [StoredFile(*row) for row in written.collect()]


@dataclass(frozen=True)
class _Opened:
    """Staged files in, their rows out; for `mapInArrow`."""

    folder: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = MACHINE.storage(self.folder)
        for batch in batches:
            for row in batch.to_pylist():
                for rows in rows_of(storage, StoredFile(**row), _ROWS):
                    yield conform(rows, self.schema)


@dataclass(frozen=True)
class _Read:
    """Paths of Parquet files in, their rows out; for `mapInArrow`."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column(0).to_pylist():
                with parquet(path) as file:
                    for rows in file.iter_batches(_ROWS, columns=self.schema.names):
                        yield conform(rows, self.schema)


@dataclass(frozen=True)
class _Stored:
    """Rows in, the staged files that hold them out; for `mapInArrow`."""

    folder: str
    stem: str
    cutting: Cutting
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        name = f"{self.stem}-{MACHINE.nonce()}"
        files = staged_files(MACHINE.storage(self.folder), name, self.cutting)
        for batch in batches:
            if batch.num_rows:
                files.add(conform(batch.rename_columns(self.schema.names), self.schema))
        for file in files.close():
            columns = [[file.name], [file.size_bytes], [file.crc32]]
            yield pa.RecordBatch.from_arrays(
                [pa.array(column) for column in columns], ["name", "size_bytes", "crc32"]
            )
