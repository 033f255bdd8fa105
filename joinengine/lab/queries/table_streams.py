"""The tables of a recorded stream as inputs of a join: from its files, or from their topics."""

from __future__ import annotations

from typing import Any

from joinengine import kafka_stream
from joinengine.lab.queries.topics import topic_of
from joinengine.lab.tpch.stream import RecordedStream
from joinengine.spark.sources import types
from joinengine.spark.sources.inputs import recorded_stream
from joinengine.spark.sources.own_streams import OwnStream


def table_stream(spark: Any, recorded: RecordedStream, table: str) -> OwnStream:
    """A table of a recorded stream; `spark` None: the query will not run."""
    if recorded.topics is not None and spark is not None:
        return kafka_stream(
            spark,
            recorded.topics.cluster.servers,
            topic_of(recorded, table),
            options=recorded.topics.cluster.options,
            schema=types.spark_schema(recorded.schema(table)),
            max_rows=recorded.topics.batch_rows[table],
        )
    return recorded_stream(spark, recorded.index(table), recorded.schema(table))
