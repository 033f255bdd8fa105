"""Recorded inputs of a join: tables as streams, from files or topics, and tables that stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joinengine import kafka_stream
from joinengine.lab.queries.topics import topic_of
from joinengine.lab.tpch.stream import RecordedStream
from joinengine.sources.listing import OnBadFile
from joinengine.spark.sources import types
from joinengine.spark.sources.inputs import Table, recorded_stream
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


def recorded_table(spark: Any, path: Path | str) -> Table:
    """A table: one Parquet file or a folder of them; `spark` None: the query will not run."""
    columns = types.folder_columns(path, None, OnBadFile.FAIL)
    return Table(spark, str(path), columns.readable)
