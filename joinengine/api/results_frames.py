"""`to_df`: the results of a query as a streaming DataFrame."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from joinengine.api import options as given
from joinengine.api.writer import JoinWriter
from joinengine.results.merging import TARGET_BYTES
from joinengine.results.offered import OfferedSink
from joinengine.results.staging import Cutting
from joinengine.spark.query.join_query import JoinQuery
from joinengine.spark.query.query_folders import checkpoint_at
from joinengine.spark.query.results_frame import results_frame
from joinengine.spark.sources.locations import place


def to_df(writer: JoinWriter) -> DataFrame:
    """The results of a query as a streaming DataFrame; the writer has the options of the query."""
    given.check_names("to_df", writer.settings)
    writer._settings(writer.settings)  # refuses invalid values
    join, location = writer.join, writer.settings["checkpointLocation"]
    there = checkpoint_at(
        place(location, "checkpointLocation"), writer.settings.get("stateLocation")
    )
    cutting = Cutting(target_bytes=TARGET_BYTES)
    made = replace(
        writer,
        join=replace(join, transform=None),
        factory=lambda checkpoint, query: OfferedSink(there.offered, query, cutting=cutting),
    )

    def start(ends: bool) -> JoinQuery:
        return (made.trigger(availableNow=True) if ends else made).start()

    frame = results_frame(join.spark, join.schema, there.location, start)
    return frame if writer.join.transform is None else writer.join.transform(frame)
