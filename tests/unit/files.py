"""Parquet files in the folder of a stream, and what a feed makes of them."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq

from joinengine.model.skipped import Skipped
from joinengine.sources.feeds import FolderFeed
from joinengine.sources.listing import Expected, OnBadFile
from joinengine.sources.places import by_file
from joinengine.sources.readings import Reading
from joinengine.sources.sourcelog import SourceLog
from joinengine.world.world import MACHINE

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def put(folder, file, /, when=None, **columns):
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    if when is not None:
        os.utime(path, ns=(when, when))
    return path


def feed(folder, **expected):
    log = SourceLog(MACHINE.storage(f"{folder.parent}/log"), 1)
    return FolderFeed(str(folder), 100, log, Expected(**({"columns": COLUMNS} | expected)))


def rows_of(found, reading=None):
    """All rows of a feed, and the files that are skipped."""
    reading = reading or Reading(COLUMNS, on_bad_file=OnBadFile.SKIP)
    rows, skipped = [], []
    for part in by_file(found.row_groups(0, found.end())):
        if part[0].skipped is not None:
            skipped.append(Skipped(part[0].file, part[0].skipped))
            continue
        for batch in reading.batches(part, skipped):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    return rows, skipped
