"""The memory sink: shows all results so far as a temporary view; the rows stay in files."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from itertools import pairwise

from pyspark.sql import DataFrame, SparkSession

from joinengine.results.file_lists import content_of, listed
from joinengine.results.staging import PLAIN
from joinengine.spark.sources.frames import frame_of, read_exactly, store
from joinengine.spark.sources.types import arrow_schema
from joinengine.world.buckets import is_url
from joinengine.world.storage import Storage

_log = logging.getLogger("joinengine")


def view_writer(spark: SparkSession, files: Storage, name: str) -> Callable[[DataFrame, int], None]:
    """A writer of results as the view `name`; the rows lie below `files`, in the checkpoint."""
    warned = set[str]()

    def warn_of_gaps(names: Iterable[str]) -> None:
        gap = _gap(names)
        if gap is not None and gap not in warned:
            warned.add(gap)
            _log.warning(
                "joinengine: view %s lacks the rows of %s: they went to another sink, or were "
                "deleted from %s",
                *(name, gap, files.folder),
            )

    def in_folder(frame: DataFrame, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{files.folder}/batch={batch:08d}")
        warn_of_gaps(files.names())
        read_exactly(spark, frame.schema, files.folder).createOrReplaceTempView(name)

    def in_store(frame: DataFrame, batch: int) -> None:
        """Write a batch. A list of its files makes it visible, so a repeated batch counts once."""
        schema = arrow_schema(frame.schema)
        stored = store(frame, files, f"batch={batch:08d}", PLAIN, schema)
        files.put(f"{batch:08d}.json", content_of(f"{batch:08d}.json", stored))
        lists = sorted(name for name in files.names() if name.endswith(".json"))
        warn_of_gaps(lists)
        shown = [file for name in lists for file in listed(files, name)]
        frame_of(spark, schema, files, shown).createOrReplaceTempView(name)

    return in_store if is_url(files.folder) else in_folder


def _gap(names: Iterable[str]) -> str | None:
    """The batches that lack a folder, or a list, between others; None: there are none.

    >>> _gap(["batch=00000003", "batch=00000007", "_x"]), _gap(["00000003.json", "00000004.json"])
    ('batches 4 to 6', None)
    """
    matches = (re.fullmatch(r"(?:batch=)?(\d+)(?:\.json)?", name) for name in names)
    there = sorted(int(match[1]) for match in matches if match)
    for before, after in pairwise(there):
        if after > before + 2:
            return f"batches {before + 1} to {after - 1}"
        if after == before + 2:
            return f"batch {before + 1}"
    return None
