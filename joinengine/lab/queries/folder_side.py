"""A folder of the user's Parquet files as a stream of a query, on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from typing_extensions import override

from joinengine import parquet_stream
from joinengine.model.errors import InvalidRequest
from joinengine.sources.feeds import FolderFeed
from joinengine.sources.listing import FileOrder, OnBadFile, survey
from joinengine.sources.places import by_file
from joinengine.sources.readings import Reading
from joinengine.sources.sourcefiles import exists, find, paths_below
from joinengine.spark.session import session
from joinengine.spark.sources import types
from joinengine.spark.sources.inputs import Stream
from joinengine.world.buckets import is_url

#: Suffixes of files that hold tuples, but that a run does not read.
_OTHER = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")


@dataclass(frozen=True)
class FolderSide:
    """A folder, a file or a URL.

    `ends`: no file will follow, so after the last interval the watermark is the end of time, and
    every unmatched tuple becomes a result. `order`: the order in which files are read.
    """

    place: str
    order: FileOrder = FileOrder.MODIFIED
    ends: bool = True

    @override
    def __str__(self) -> str:
        return self.place

    def check(self, option: str) -> None:
        """Raise InvalidRequest, which names `option`, unless there are Parquet files."""
        _check_folder(option, self.place)

    def rows(self, option: str) -> int:
        """How many rows there are, by the footers. Raises InvalidRequest for a bad file."""
        footers, faults = survey(self.place)
        for path, fault in faults.items():
            raise InvalidRequest(f"{option}: {path} {fault}; remove it from the folder")
        return sum(sum(footer.rows) for footer in footers.values())

    def stream(self, spark: Any, rows: int, *, asked: bool) -> Stream:
        """The stream, `rows` in a batch; `spark` None: the query will not run.

        Warns of large row groups only if the user has `asked` for intervals of `rows` rows.
        """
        if spark is None:
            columns = types.folder_columns(self.place, None, OnBadFile.FAIL)
            feed = {"kind": "folder", "path": self.place, "rows_per_interval": rows}
            return Stream(None, feed, Reading(columns.readable, root=self.place), columns.others)
        if not asked:
            groups = [n for footer in survey(self.place)[0].values() for n in footer.rows]
            rows = max([rows, *groups])
        stream = parquet_stream(spark, self.place, rows_per_interval=rows, order=self.order)
        return replace(stream, feed=stream.feed | {"ends": self.ends})

    def tuples(self, spark: Any, schema: pa.Schema, named: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The columns `schema` of all its rows, under the names of `named`."""
        feed = FolderFeed(self.place, 1, None)
        feed.discover()
        reading = Reading(schema, root=self.place, zone=session.zone())
        for groups in by_file(feed.row_groups(0, feed.end())):
            for batch in reading.batches(groups):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=named)


def _check_folder(option: str, place: Path | str) -> None:
    """Refuse a folder or URL that does not exist or holds no Parquet file."""
    if not exists(str(place)):
        if any(char in str(place) for char in "*?["):
            raise InvalidRequest(
                f"{option}: expected a folder, found the glob {place}. Give the folder; all files "
                f"below it are read"
            )
        raise InvalidRequest(
            f"{option}: {place} does not exist; give a folder of Parquet files, or one file"
        )
    others = list[str]()
    if is_url(str(place)):
        if find(str(place)):
            return
    else:
        folder = Path(place)
        if folder.is_file() and folder.suffix.lower() in _OTHER:
            others = [folder.name]
        elif any(paths_below(str(folder))):
            return
        else:
            names = sorted(path.name for path in folder.rglob("*") if path.suffix.lower() in _OTHER)
            others = names[:1]
    if others:
        raise InvalidRequest(
            f"{option}: expected Parquet files in {place}, found {others[0]}. Convert the file, "
            f"for example with DuckDB: copy (from '{others[0]}') to 'rows.parquet'"
        )
    raise InvalidRequest(f"{option}: {place} contains no Parquet file; give a folder that does")
