"""Sinks that get DataFrames: what a user's function, or a format of Spark's, is handed."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from joinengine.driver.sinks import STAGING
from joinengine.exchange.results import Target, ToParquet
from joinengine.state.storage import StoredFile, collect_garbage

Transform = Callable[[DataFrame], DataFrame]


@dataclass
class TransformedParquetSink:
    """As `ParquetSink`, after a DataFrame function; Spark writes the files at delivery."""

    spark: SparkSession
    folder: Path
    query: str
    results: Path
    schema: pa.Schema
    transform: Transform

    def target(self) -> Target:
        """Results wait in the checkpoint for the transformation."""
        return ToParquet(str(self.results))

    def deliver(self, batch: int, files: Sequence[StoredFile]) -> None:
        """Write the batch aside, remove what an earlier delivery left, rename."""
        if not files:
            return
        aside = self.folder / STAGING / f"{self.query}-{batch}-{uuid.uuid4().hex[:8]}"
        frame = self.transform(_frame(self.spark, self.schema, self.results, files))
        frame.write.parquet(str(aside))
        for old in self.folder.glob(f"part-{batch:08d}-{self.query}-*.parquet"):
            old.unlink()
        for number, part in enumerate(sorted(aside.glob("part-*.parquet"))):
            os.replace(part, self.folder / f"part-{batch:08d}-{self.query}-{number:05d}.parquet")
        shutil.rmtree(aside)

    def clean(self, files: Sequence[StoredFile]) -> None:
        """Remove the results of batches that are delivered."""
        collect_garbage(self.results, [stored.name for stored in files])


@dataclass
class FrameSink:
    """Any other sink: `write` gets each batch's results as a DataFrame; at-least-once.

    It is called for every batch, also for an empty one, with the batch number.
    """

    spark: SparkSession
    results: Path
    schema: pa.Schema
    write: Callable[[DataFrame, int], None]
    transform: Transform | None = None

    def target(self) -> Target:
        """Results wait in the checkpoint."""
        return ToParquet(str(self.results))

    def deliver(self, batch: int, files: Sequence[StoredFile]) -> None:
        """Hand over."""
        frame = _frame(self.spark, self.schema, self.results, files)
        self.write(self.transform(frame) if self.transform else frame, batch)

    def clean(self, files: Sequence[StoredFile]) -> None:
        """Remove the results of batches that are delivered."""
        collect_garbage(self.results, [stored.name for stored in files])


def _frame(
    spark: SparkSession, schema: pa.Schema, folder: Path, files: Sequence[StoredFile]
) -> DataFrame:
    columns = from_arrow_schema(schema)
    if not files:
        return spark.createDataFrame([], columns)
    paths = [str(folder / stored.name) for stored in files]
    return spark.read.schema(columns).parquet(*paths)
