"""A SELECT over the user's folders, tables and topics: the query of `joinengine sql`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from joinengine import sql
from joinengine.api.queries import StreamQuery
from joinengine.lab.queries.named_query import Options, Oracle, Query
from joinengine.lab.queries.table_streams import recorded_table
from joinengine.lab.queries.topic_side import TopicSide
from joinengine.lab.queries.user_folders import Listed, Side, streams_of
from joinengine.lab.tpch.stream import RecordedStream


@dataclass(frozen=True, slots=True)
class Statement(Query):
    """`text` over `sides`, by their names in FROM, and `tables`: name -> folder or file."""

    name: str = field()
    text: str = field()
    sides: Mapping[str, Side] = field()
    tables: Mapping[str, str] = field(default_factory=dict)
    delay: str | None = None

    summary = "a SELECT over folders, tables and topics"
    source = "your own"
    generated = False
    zipf = None

    @override
    def stream(self, options: Options) -> Listed:
        """The files and topics that are there; the statement is checked, unless topics are in it.

        Raises InvalidRequest for a source that is not there, and for whatever `sql` refuses.
        """
        for name, side in self.sides.items():
            side.check(f"source {name}")
        listed = Listed(self.sides)
        # The columns of topics are checked once there is a session to read them with.
        if not any(isinstance(side, TopicSide) for side in self.sides.values()):
            self.build(None, listed.record(), options).query()
        return listed

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamQuery:
        streams = streams_of(self.sides, spark, recorded, options)
        tables = {name: recorded_table(spark, place) for name, place in self.tables.items()}
        return sql(self.text, {**streams, **tables}, delay=self.delay, **options.placing)

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str | Oracle:
        raise NotImplementedError("a statement is not compared with DuckDB")
