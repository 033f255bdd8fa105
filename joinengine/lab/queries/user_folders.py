"""A join of two folders or topics of the user's: files are read in the order of their appearance.

What generated queries get from their streams comes from the files here: the number of rows, and the
intervals, which are cut so that both sides are read at the same pace (a side with a tenth of the
rows brings a tenth of each interval). The SQL for DuckDB is in `queries.oracle`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from typing_extensions import override

from joinengine import StreamJoin, parquet_stream
from joinengine.lab.queries.named_query import Options, Oracle, Query
from joinengine.lab.queries.oracle import join_sql, numbered, table_of
from joinengine.lab.queries.topic_side import TopicSide
from joinengine.lab.tpch.generate import Say, silent
from joinengine.lab.tpch.stream import RecordedStream, default_interval_rows
from joinengine.model.conditions import Columns, Condition
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.model.windows import Window
from joinengine.operators import Join
from joinengine.sources.feeds import FolderFeed
from joinengine.sources.listing import FileOrder, OnBadFile, survey
from joinengine.sources.places import by_file
from joinengine.sources.readings import Reading
from joinengine.sources.sourcefiles import exists, find, parquet_files
from joinengine.spark.session import session
from joinengine.spark.sources import types
from joinengine.spark.sources.inputs import Stream
from joinengine.spark.sources.own_streams import OwnStream
from joinengine.world.buckets import is_url
from joinengine.world.world import MACHINE

#: Suffixes of files that hold tuples, but that a run does not read.
_OTHER = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
#: Rows of a side in a run that only warms Spark up.
_HEAD_ROWS = 1000


@dataclass(frozen=True)
class Folders(Query):
    """A join of two folders or topics; the fields after them are the arguments of `StreamJoin`.

    `ends`: no file will follow, so the last interval lets the watermark go to the end of time, and
    every unmatched tuple becomes a result. `order`: in which files are read.
    """

    left: Path | str | TopicSide
    right: Path | str | TopicSide
    on: Condition | Columns
    within: Window | None = None
    how: str = "inner"
    where: str | None = None
    left_where: str | None = None
    right_where: str | None = None
    suffixes: tuple[str, str] | None = None
    order: FileOrder = FileOrder.MODIFIED
    ends: bool = True

    summary = "two folders of Parquet files, or two topics"
    source = "your own"
    generated = False
    zipf = None

    @property
    @override
    def name(self) -> str:
        left, right = (PurePath(str(side)).name for side in (self.left, self.right))
        return f"{left} join {right}"

    @override
    def stream(self, options: Options) -> _Listed:
        """The files that are there; the whole join is checked.

        Raises InvalidRequest for a folder without Parquet files, and for whatever `StreamJoin` does
        not serve.
        """
        for option, side in self._sides:
            if isinstance(side, TopicSide):
                side.check()
            else:
                _check_folder(option, side)
        listed = _Listed(self)
        if self._has_topics:  # the columns are checked once there is a session to read them with
            if self.how not in ("inner", "left_semi"):
                raise InvalidRequest(
                    f"how: a run over topics ends without knowing which rows of {self.how!r} will "
                    "never match; take inner or left_semi, or start the join from a program"
                )
        else:
            self.build(None, listed.record(), options).query()
        return listed

    @property
    def _sides(self) -> tuple[tuple[str, Path | str | TopicSide], ...]:
        return ("left", self.left), ("right", self.right)

    @property
    def _has_topics(self) -> bool:
        return any(isinstance(side, TopicSide) for _, side in self._sides)

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        total = max(1, sum(recorded.rows.values()))
        intervals = -(-total // (options.interval_rows or default_interval_rows(total)))
        left, right = (
            self._stream(
                spark,
                folder,
                max(1, -(-recorded.rows[side] // intervals)),
                asked=options.interval_rows is not None,
            )
            for side, folder in self._sides
        )
        return StreamJoin(
            left,
            right,
            on=self.on,
            within=self.within,
            how=self.how,
            where=self.where,
            left_where=self.left_where,
            right_where=self.right_where,
            suffixes=self.suffixes,
            layout=options.layout,
            instances=options.instances,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> Oracle:
        """SQL over the tuples as the streams read them: types, folders' names, and zone."""
        spark = SparkSession.getActiveSession() if self._has_topics else None
        join = self.build(spark, recorded, options).query().operators[0]
        assert isinstance(join, Join)
        tables = {
            table_of(side): pa.RecordBatchReader.from_batches(
                numbered(join, side),
                _tuples(spark, folder, join.schemas[side], numbered(join, side)),
            )
            for side, (_, folder) in zip(Side, self._sides, strict=True)
        }
        # Messages may come at any time: what DuckDB has made of them is not kept.
        files = [] if self._has_topics else [f for _, one in self._sides for f in find(str(one))]
        return Oracle(join_sql(join), tables, tuple(files))

    def head(self, place: str) -> Folders:
        """The same join of the first rows of each side, with all its columns, below `place`."""
        copies, storage = dict[str, str](), MACHINE.storage(place)
        spark = SparkSession.getActiveSession() if self._has_topics else None
        for side, source in self._sides:
            if isinstance(source, TopicSide):
                columns = source.stream(spark, 1).reading.schema
            else:
                columns = types.folder_columns(source, None, OnBadFile.FAIL).readable
            first = next(_tuples(spark, source, columns, columns), None)
            kept = columns.empty_table() if first is None else pa.table(first[:_HEAD_ROWS])
            with storage.output(f"{side}/head.parquet") as sink:
                pq.write_table(kept, sink)
            copies[side] = f"{place}/{side}/head.parquet"
        return replace(self, left=copies["left"], right=copies["right"])

    def _stream(
        self, spark: Any, folder: Path | str | TopicSide, rows: int, *, asked: bool
    ) -> OwnStream:
        """One side; nobody who has not `asked` for intervals of `rows` is warned of row groups."""
        if isinstance(folder, TopicSide):
            return folder.stream(spark, rows)
        if spark is None:
            found = types.folder_columns(folder, None, OnBadFile.FAIL)
            feed = {"kind": "folder", "path": str(folder), "rows_per_interval": rows}
            return Stream(None, feed, Reading(found.readable, root=str(folder)), found.others)
        if not asked:
            groups = [n for footer in survey(folder)[0].values() for n in footer.rows]
            rows = max([rows, *groups])
        stream = parquet_stream(spark, folder, rows_per_interval=rows, order=self.order)
        return replace(stream, feed=stream.feed | {"ends": self.ends})


@dataclass(frozen=True)
class _Listed:
    """The files of both folders, as a stream that is there already."""

    query: Folders

    def record(self, say: Say = silent) -> RecordedStream:
        """The rows of both sides, by the footers of the files."""
        rows = dict[str, int]()
        for side, folder in self.query._sides:
            if isinstance(folder, TopicSide):
                rows[side] = folder.rows()
                continue
            footers, faults = survey(folder)
            for path, fault in faults.items():
                raise InvalidRequest(f"{side}: {path} {fault}; remove it from the folder")
            rows[side] = sum(sum(footer.rows) for footer in footers.values())
        return RecordedStream(Path(str(self.query.left)), rows, 0)


def _tuples(
    spark: Any, folder: Path | str | TopicSide, schema: pa.Schema, named: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The columns `schema` of all tuples of a side, under the names of `named`."""
    if isinstance(folder, TopicSide):
        yield from folder.tuples(spark, schema, named)
        return
    feed = FolderFeed(str(folder), 1, None)
    feed.discover()
    reading = Reading(schema, root=str(folder), zone=session.zone())
    for groups in by_file(feed.row_groups(0, feed.end())):
        for batch in reading.batches(groups):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=named)


def _check_folder(option: str, place: Path | str) -> None:
    """Refuse a folder or URL that is not there, and one that holds no Parquet file."""
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
        elif parquet_files(folder):
            return
        else:
            found = sorted(path.name for path in folder.rglob("*") if path.suffix.lower() in _OTHER)
            others = found[:1]
    if others:
        raise InvalidRequest(
            f"{option}: expected Parquet files in {place}, found {others[0]}. Convert the file, "
            f"for example with DuckDB: copy (from '{others[0]}') to 'rows.parquet'"
        )
    raise InvalidRequest(f"{option}: {place} contains no Parquet file; give a folder that does")
