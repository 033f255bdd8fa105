"""The memory sink: shows all results so far as a temporary view; the rows stay in files."""

from __future__ import annotations

import json
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from joinengine.results.staging import PLAIN
from joinengine.spark.sources.frames import frame_of, read_exactly, store
from joinengine.spark.sources.types import arrow_schema
from joinengine.world.buckets import is_url
from joinengine.world.storage import Storage, StoredFile


def view_writer(spark: SparkSession, files: Storage, name: str) -> Callable[[DataFrame, int], None]:
    """A writer of results as the view `name`; the rows lie below `files`, in the checkpoint."""

    def in_folder(frame: DataFrame, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{files.folder}/batch={batch:08d}")
        read_exactly(spark, frame.schema, files.folder).createOrReplaceTempView(name)

    def in_store(frame: DataFrame, batch: int) -> None:
        """Write a batch. A list of its files makes it visible, so a repeated batch counts once."""
        schema = arrow_schema(frame.schema)
        stored = store(frame, files, f"batch={batch:08d}", PLAIN, schema)
        rows = [(file.name, file.size_bytes, file.crc32) for file in stored]
        files.put(f"{batch:08d}.json", json.dumps(rows).encode())
        lists = sorted(listed for listed in files.names() if listed.endswith(".json"))
        shown = [StoredFile(*row) for listed in lists for row in json.loads(files.get(listed))]
        frame_of(spark, schema, files, shown).createOrReplaceTempView(name)

    return in_store if is_url(files.folder) else in_folder
