"""Sinks that take DataFrames: for functions of the user, and for formats of Spark."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from joinengine.driver.sinks import STAGING, show
from joinengine.exchange.results import Target, ToParquet
from joinengine.state import fence
from joinengine.state.storage import (
    Checkpoint,
    StoredFile,
    create,
    delete,
    names_in,
    remove_unnamed,
    tagged,
)

Transform = Callable[[DataFrame], DataFrame]


@dataclass
class TransformedParquetSink:
    """As `ParquetSink`, after a DataFrame function; Spark writes the files at delivery.

    Each attempt to deliver a batch writes files of its own. A marker, created only once, says which
    attempt counts, so two drivers that deliver the same batch rename the same files.
    """

    spark: SparkSession
    folder: Path
    query: str
    checkpoint: Checkpoint
    schema: pa.Schema
    transform: Transform

    @property
    def staging(self) -> Path:
        """The folder where attempts write."""
        return self.folder / STAGING / self.query

    def target(self, generation: int) -> Target:
        """Results wait in the checkpoint for the transformation."""
        return ToParquet(str(self.checkpoint.results), generation)

    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        """Write the batch aside unless an attempt counts; rename the files of the one that does."""
        if not files:
            return
        choice = self.checkpoint.deliveries / f"{batch:08d}.json"
        if not choice.exists():
            create(choice, json.dumps(self._attempt(batch, files, generation)).encode())
            fence.check_boundary(self.checkpoint, batch)
        name, parts = json.loads(choice.read_bytes())
        aside = self.staging / name
        for number, part in enumerate(parts):
            visible = self.folder / f"part-{batch:08d}-{self.query}-{name}-{number:05d}.parquet"
            show(aside / part, visible, batch)
        shutil.rmtree(aside, ignore_errors=True)

    def _attempt(
        self, batch: int, files: Sequence[StoredFile], generation: int
    ) -> tuple[str, list[str]]:
        """Write the transformed results into a new folder; the folder, and the files in it."""
        name = tagged(generation, f"{batch:08d}-{uuid.uuid4().hex[:12]}")
        frame = self.transform(_frame(self.spark, self.schema, self.checkpoint.results, files))
        frame.write.parquet(str(self.staging / name))
        parts = [part for part in names_in(self.staging / name) if part.startswith("part-")]
        return name, sorted(part for part in parts if part.endswith(".parquet"))

    def clean(self, files: Sequence[StoredFile], generation: int) -> None:
        """Remove the results of delivered batches, and the files of attempts that do not count."""
        remove_unnamed(self.checkpoint.results, [stored.name for stored in files], generation)
        remove_unnamed(self.staging, (), generation)
        closed = fence.greatest(self.checkpoint.boundary, -1)
        for name in names_in(self.checkpoint.deliveries):
            if int(name.removesuffix(".json")) <= closed:
                delete(self.checkpoint.deliveries / name)


@dataclass
class FrameSink:
    """Any other sink: `write` gets each batch's results as a DataFrame; at-least-once.

    `write` is called with the batch number for every batch, also for an empty one.
    """

    spark: SparkSession
    results: Path
    schema: pa.Schema
    write: Callable[[DataFrame, int], None]
    transform: Transform | None = None

    def target(self, generation: int) -> Target:
        """Results wait in the checkpoint."""
        return ToParquet(str(self.results), generation)

    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        """Hand the results to `write`."""
        frame = _frame(self.spark, self.schema, self.results, files)
        self.write(self.transform(frame) if self.transform else frame, batch)

    def clean(self, files: Sequence[StoredFile], generation: int) -> None:
        """Remove the results of batches that are delivered."""
        remove_unnamed(self.results, [stored.name for stored in files], generation)


def _frame(
    spark: SparkSession, schema: pa.Schema, folder: Path, files: Sequence[StoredFile]
) -> DataFrame:
    columns = from_arrow_schema(schema)
    if not files:
        return spark.createDataFrame([], columns)
    paths = [str(folder / stored.name) for stored in files]
    return spark.read.schema(columns).parquet(*paths)
