"""A query with all that its start needs except a sink, fitted to a checkpoint if there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import SparkSession

from joinengine.driver.account import account_of, check_types, kept_columns, operators_kept
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.errors import CheckpointMismatch, InvalidRequest
from joinengine.operators.base import QuerySpec
from joinengine.spark.query.frame_sinks import Transform
from joinengine.spark.query.query_folders import checkpoint_at
from joinengine.spark.sources.inputs import Source
from joinengine.spark.sources.own_streams import OwnStream


@dataclass(frozen=True)
class ResolvedJoin:
    """A query with its sources, layouts and transformation, ready for a sink."""

    spark: SparkSession
    query: QuerySpec
    choices: Sequence[LayoutChoice]
    sources: Sequence[Source]
    schema: pa.Schema
    transform: Transform | None = None
    #: the same over other sources: id of a source -> its replacement
    over: Callable[[Mapping[int, Source]], ResolvedJoin] | None = None
    #: the same with one operator for each join; None: the query is like that already
    as_written: Callable[[], ResolvedJoin] | None = None
    #: the query over the columns that the checkpoint keeps, if this one has more
    before: QuerySpec | None = None

    @property
    def leaving(self) -> list[str] | None:
        """The names of the columns that reach the sink; None: `transform` makes them."""
        return None if self.transform is not None else list(self.schema.names)


def as_kept(join: ResolvedJoin, location: str, state: str | None = None) -> ResolvedJoin:
    """The query with the operators and columns that the checkpoint was made with.

    A checkpoint of an earlier version may have several joins, whose state a multiway join would not
    find. Streams with schema_changes="add" also have the columns that their files have now.
    `state`: as in `Checkpoint.below`. Raises CheckpointMismatch if the query does not fit.
    """
    there = checkpoint_at(location, state)
    kept_operators = operators_kept(there)
    if join.as_written is not None and kept_operators not in (None, len(join.query.operators)):
        written = join.as_written()
        join = written if len(written.query.operators) == kept_operators else join
    kept = kept_columns(there, join.query.sources)
    streams = ((source, kept[n]) for n, source in enumerate(join.sources) if n in kept)
    changed = [
        (stream, columns)
        for stream, columns in streams
        if isinstance(stream, OwnStream) and not stream.has_columns(columns)
    ]
    if join.over is None or not changed:
        return join
    try:
        before = {id(stream): stream.over(columns) for stream, columns in changed}
        after = {id(stream): stream.at_restart(columns) for stream, columns in changed}
        now = join.over(after)
        was = join.over(before).query
    except InvalidRequest as error:
        raise CheckpointMismatch(
            f"checkpoint {location} knows fewer columns than the query needs: {error}. Give "
            f"parquet_stream schema_changes='add', or use a new checkpointLocation"
        ) from None
    if account_of(was) == account_of(now.query):
        return now
    check_types(was, now.query)
    return replace(now, before=was)
