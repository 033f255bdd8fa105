"""The tables of a recorded stream as inputs of a join: from its files, or from their topics."""

from __future__ import annotations

from typing import Any

from joinengine.lab.tpch.stream import RecordedStream
from joinengine.spark.sources.inputs import Stream, recorded_stream


def table_stream(spark: Any, recorded: RecordedStream, table: str) -> Stream:
    """A table of a recorded stream; `spark` None: the query will not run."""
    return recorded_stream(spark, recorded.index(table), recorded.schema(table))
