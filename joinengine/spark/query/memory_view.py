"""The memory sink: shows all results so far as a temporary view; the rows stay in files."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from joinengine.results.file_lists import content_of, listed
from joinengine.results.staging import PLAIN
from joinengine.spark.sources.frames import frame_of, read_exactly, store
from joinengine.spark.sources.types import arrow_schema
from joinengine.world.buckets import is_url
from joinengine.world.storage import Storage


def view_writer(spark: SparkSession, files: Storage, name: str) -> Callable[[DataFrame, int], None]:
    """A writer of results as the view `name`; the rows lie below `files`, in the checkpoint."""

    def in_folder(frame: DataFrame, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{files.folder}/batch={batch:08d}")
        read_exactly(spark, frame.schema, files.folder).createOrReplaceTempView(name)

    def in_store(frame: DataFrame, batch: int) -> None:
        """Write a batch. A list of its files makes it visible, so a repeated batch counts once."""
        schema = arrow_schema(frame.schema)
        stored = store(frame, files, f"batch={batch:08d}", PLAIN, schema)
        files.put(f"{batch:08d}.json", content_of(f"{batch:08d}.json", stored))
        lists = sorted(name for name in files.names() if name.endswith(".json"))
        shown = [file for name in lists for file in listed(files, name)]
        frame_of(spark, schema, files, shown).createOrReplaceTempView(name)

    return in_store if is_url(files.folder) else in_folder
