"""A join of two folders or topics of the user's: files are read in the order of their appearance.

The number of rows and the intervals come from the files. Intervals are cut so that both sides are
read at the same pace: a side with a tenth of the rows brings a tenth of each interval. The SQL for
DuckDB is in `queries.oracle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from typing_extensions import override

from joinengine import StreamJoin
from joinengine.lab.queries.asof_oracle import asof_sql, tied_sql
from joinengine.lab.queries.folder_side import FolderSide
from joinengine.lab.queries.named_query import Options, Oracle, Query
from joinengine.lab.queries.oracle import join_sql, numbered, table_of
from joinengine.lab.queries.topic_side import TopicSide
from joinengine.lab.tpch.generate import Say, silent
from joinengine.lab.tpch.stream import RecordedStream, default_interval_rows
from joinengine.model import keys
from joinengine.model.conditions import AsOf, Columns, Condition
from joinengine.model.errors import InvalidRequest
from joinengine.model.windows import Window
from joinengine.operators import AsOfJoin, Join
from joinengine.sources.listing import FileOrder, OnBadFile
from joinengine.sources.sourcefiles import find
from joinengine.spark.sources import types
from joinengine.spark.sources.own_streams import OwnStream
from joinengine.world.world import MACHINE

#: How many rows of each side a run reads that only warms Spark up.
_HEAD_ROWS = 1000
Side = FolderSide | TopicSide


@dataclass(frozen=True)
class Folders(Query):
    """A join of two folders or topics; the fields after them are the arguments of `StreamJoin`.

    `ends`: no file will follow, so after the last interval the watermark is the end of time, and
    every unmatched tuple becomes a result. `order`: the order in which files are read.
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
    def stream(self, options: Options) -> Listed:
        """The files that are there; the whole join is checked.

        Raises InvalidRequest for a folder without Parquet files, and for whatever `StreamJoin` does
        not serve.
        """
        for option, side in self._sides:
            side.check(option)
        listed = Listed(dict(self._sides))
        if self._has_topics:  # the columns are checked once there is a session to read them with
            if isinstance(self.on, AsOf):
                raise InvalidRequest(
                    "asof: a run over topics ends without knowing what is nearest to its last "
                    "rows; join folders, or start the join from a program"
                )
            if self.how not in ("inner", "left_semi"):
                raise InvalidRequest(
                    f"how: a run over topics ends without knowing which rows of {self.how!r} will "
                    "never match; take inner or left_semi, or start the join from a program"
                )
        else:
            self.build(None, listed.record(), options).query()
        return listed

    @property
    def _sides(self) -> tuple[tuple[str, Side], ...]:
        return ("left", self._side(self.left)), ("right", self._side(self.right))

    def _side(self, place: Path | str | TopicSide) -> Side:
        if isinstance(place, TopicSide):
            return place
        return FolderSide(str(place), self.order, self.ends)

    @property
    def _has_topics(self) -> bool:
        return any(isinstance(side, TopicSide) for _, side in self._sides)

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        left, right = streams_of(dict(self._sides), spark, recorded, options).values()
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
            **options.placing,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> Oracle:
        """SQL over the tuples as the streams read them: types, folders' names, and zone."""
        spark = SparkSession.getActiveSession() if self._has_topics else None
        (join,) = self.build(spark, recorded, options).query().operators
        assert isinstance(join, Join | AsOfJoin)
        tables = {
            table_of(side): pa.RecordBatchReader.from_batches(
                numbered(join, side),
                stream_side.tuples(spark, join.schemas[side], numbered(join, side)),
            )
            for side, (_, stream_side) in zip(keys.PAIR, self._sides, strict=True)
        }
        # Messages may arrive at any time, so DuckDB's results are not kept.
        files = (
            []
            if self._has_topics
            else [f for _, stream_side in self._sides for f in find(str(stream_side))]
        )
        if isinstance(join, AsOfJoin):
            return Oracle(asof_sql(join), tables, tuple(files), tied_sql(join))
        return Oracle(join_sql(join), tables, tuple(files))

    def head(self, place: str) -> Folders:
        """The same join of the first rows of each side, with all its columns, below `place`."""
        copies, storage = dict[str, str](), MACHINE.storage(place)
        spark = SparkSession.getActiveSession() if self._has_topics else None
        for side, source in self._sides:
            if isinstance(source, TopicSide):
                columns = source.stream(spark, 1).reading.schema
            else:
                columns = types.folder_columns(source.place, None, OnBadFile.FAIL).readable
            first = next(source.tuples(spark, columns, columns), None)
            kept = columns.empty_table() if first is None else pa.table(first[:_HEAD_ROWS])
            with storage.output(f"{side}/head.parquet") as sink:
                pq.write_table(kept, sink)
            copies[side] = f"{place}/{side}/head.parquet"
        return replace(self, left=copies["left"], right=copies["right"])


def streams_of(
    sides: Mapping[str, Side], spark: Any, recorded: RecordedStream, options: Options
) -> dict[str, OwnStream]:
    """The streams of sides, read at one pace: each side brings its part of each interval."""
    total = max(1, sum(recorded.rows.values()))
    intervals = -(-total // (options.interval_rows or default_interval_rows(total)))
    asked = options.interval_rows is not None
    return {
        name: side.stream(spark, max(1, -(-recorded.rows[name] // intervals)), asked=asked)
        for name, side in sides.items()
    }


@dataclass(frozen=True)
class Listed:
    """Folders and topics as a stream that exists already, by the names of their options."""

    sides: Mapping[str, Side]

    def record(self, say: Say = silent) -> RecordedStream:
        """The rows of each, by the footers of the files."""
        rows = {name: side.rows(name) for name, side in self.sides.items()}
        return RecordedStream(Path(str(next(iter(self.sides.values())))), rows, 0)
