"""Sinks that write DataFrames: for functions of the user, and for formats of Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from joinengine.model.errors import CheckpointMismatch, DamagedState
from joinengine.results import showings
from joinengine.results.showings import Showing
from joinengine.results.sinks import STAGING, AtLeastOnce, Sink, check_marker, check_staged, show
from joinengine.results.staging import CODEC, Cutting
from joinengine.results.targets import SinkTarget, ToParquet
from joinengine.spark.session import session
from joinengine.spark.sources.frames import frame_of, store
from joinengine.spark.sources.types import arrow_schema, parquet_row
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.buckets import is_url
from joinengine.world.storage import Storage, StoredFile, remove_unnamed, tagged

#: Spark's name of a codec -> Arrow's name, if they differ.
_ARROW = {"uncompressed": "none", "lz4_raw": "lz4"}
Transform = Callable[[DataFrame], DataFrame]


@dataclass
class TransformedParquetSink(Sink):
    """As `ParquetSink`, after a DataFrame function; Spark writes the files at delivery.

    Each attempt to deliver a batch writes new files. A showing says which attempt counts, so two
    drivers that deliver the same batch rename the same files.
    """

    spark: SparkSession
    storage: Storage
    query: str
    checkpoint: Checkpoint
    schema: pa.Schema
    transform: Transform
    codec: str = CODEC
    partition_by: tuple[str, ...] = ()
    fsync: bool = False

    @override
    def check_place(self) -> None:
        check_marker(self.storage, self.query)

    @property
    @override
    def staging(self) -> Storage:
        """The folder into which attempts write."""
        return self.storage.at(f"{STAGING}/{self.query}")

    @override
    def target(self, generation: int) -> SinkTarget:
        """Results wait in the checkpoint for the transformation."""
        return ToParquet(self.checkpoint.results.folder, generation)

    @override
    def check_last(self, batch: int, files: Sequence[StoredFile]) -> None:
        try:
            check_staged(self.checkpoint.results, files)
        except CheckpointMismatch:
            if self._chosen(batch) is None:
                raise

    @override
    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        """Make an attempt unless one already counts; rename the files of the one that counts."""
        if not files:
            return
        chosen = self._chosen(batch)
        if chosen is None:
            attempt = self._attempt(batch, files, generation)
            chosen = showings.create(self.checkpoint, batch, batch, attempt)
        for number, staged in enumerate(chosen.files):
            name, *folders, _ = staged.split("/")
            folder = "".join(f"{folder_name}/" for folder_name in folders if "=" in folder_name)
            visible = f"{folder}part-{batch:08d}-{self.query}-{name}-{number:05d}.parquet"
            show(self.storage, f"{STAGING}/{self.query}/{staged}", visible, batch)
        for name in {staged.partition("/")[0] for staged in chosen.files}:
            self.staging.delete_folder(name)

    def _chosen(self, batch: int) -> Showing | None:
        """The attempt that counts; None: there is none yet."""
        return showings.find(self.checkpoint, batch) or self._chosen_before(batch)

    def _chosen_before(self, batch: int) -> Showing | None:
        """The attempt that counts according to an earlier version's marker; None: there is none."""
        storage, marker = self.checkpoint.storage, f"deliveries/{batch:08d}.json"
        try:
            name, parts = json.loads(storage.get(marker))
            return Showing(batch, tuple(f"{name}/{part}" for part in parts))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, RecursionError):
            raise DamagedState(
                f"{storage.folder}/{marker} is truncated or was altered; restore it from a copy"
            ) from None

    def _attempt(self, batch: int, files: Sequence[StoredFile], generation: int) -> list[str]:
        """Write the transformed results into a new folder of the staging folder; their files."""
        check_staged(self.checkpoint.results, files)
        name = tagged(generation, f"{batch:08d}-{self.checkpoint.world.nonce()}")
        frame = self.transform(frame_of(self.spark, self.schema, self.checkpoint.results, files))
        attempt = self.staging.at(name)
        if is_url(attempt.folder):
            return [f"{name}/{part}" for part in self._stored(frame, attempt)]
        writer = frame.write.option("compression", self.codec).partitionBy(*self.partition_by)
        writer.parquet(attempt.folder)
        parts = sorted(_parts(attempt, len(self.partition_by)))
        if self.fsync:
            for part in parts:
                attempt.seal(part)
        return [f"{name}/{part}" for part in parts]

    def _stored(self, frame: DataFrame, attempt: Storage) -> list[str]:
        """Write an attempt through the engine's own storage, as Spark would write it."""
        schema = arrow_schema(frame.schema)
        cutting = Cutting(
            _ARROW.get(self.codec, self.codec),
            self.partition_by,
            session.zone(self.spark),
            spark_row=parquet_row(schema, self.partition_by),
        )
        files = store(frame, attempt, "part", cutting, schema)
        return sorted(stored.name for stored in files)

    @override
    def clean(self, files: Sequence[StoredFile], makers: range) -> None:
        """Remove the results of delivered batches, and the files of attempts that do not count."""
        remove_unnamed(self.checkpoint.results, [stored.name for stored in files], makers)
        remove_unnamed(self.staging, (), makers)
        showings.thin(self.checkpoint)


@dataclass
class FrameSink(AtLeastOnce):
    """Any other sink: `write` gets each batch's results as a DataFrame; at-least-once.

    `write(frame, batch)` is called for every batch, even an empty one.
    """

    spark: SparkSession
    results: Storage
    schema: pa.Schema
    write: Callable[[DataFrame, int], None]
    transform: Transform | None = None

    @override
    def target(self, generation: int) -> SinkTarget:
        """Results wait in the checkpoint."""
        return ToParquet(self.results.folder, generation)

    @override
    def hand_over(self, batch: int, files: Sequence[StoredFile]) -> None:
        check_staged(self.results, files)
        frame = frame_of(self.spark, self.schema, self.results, files)
        self.write(self.transform(frame) if self.transform else frame, batch)


def _parts(folder: Storage, depth: int) -> Iterator[str]:
    """The files that Spark has written, in `depth` levels of Hive folders."""
    for name in folder.names():
        if depth and "=" in name:
            yield from (f"{name}/{part}" for part in _parts(folder.at(name), depth - 1))
        elif name.startswith("part-") and name.endswith(".parquet"):
            yield name
