"""Sinks that take staged files as they are, made from the options of a writer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from joinengine.api import options as given
from joinengine.api.resolved import ResolvedJoin
from joinengine.driver.settings import Settings
from joinengine.model.errors import InvalidRequest
from joinengine.results.compaction import CompactingSink
from joinengine.results.folders import check_partitions
from joinengine.results.merging import TARGET_BYTES
from joinengine.results.noted import delivered_to
from joinengine.results.outputs import Wanted
from joinengine.results.readers import ReaderSink, Receiver
from joinengine.results.sinks import DiscardSink, SinkFactory
from joinengine.results.staging import Cutting
from joinengine.spark.jobs.result_jobs import merges
from joinengine.spark.query.frame_sinks import Transform, TransformedParquetSink
from joinengine.spark.query.query_folders import Output
from joinengine.spark.session import session
from joinengine.spark.sources.locations import place
from joinengine.spark.sources.types import parquet_row
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.storage import Storage
from joinengine.world.world import MACHINE

_log = logging.getLogger("joinengine")


def parquet_sink(
    join: ResolvedJoin,
    options: Mapping[str, str],
    settings: Settings,
    partitions: tuple[str, ...],
    name: str | None,
) -> tuple[SinkFactory, Output]:
    """A function that makes the Parquet sink, and its folder; `name`: the name of the query.

    Raises InvalidRequest if no folder is given, or if the path cannot be one.
    """
    if "path" not in options:
        raise InvalidRequest("parquet: path is missing; give .option('path', folder)")
    folder = place(options["path"], "path")
    output = MACHINE.storage(folder, fsync=settings.fsync)
    columns = partitions
    if join.transform is None:
        columns = check_partitions(join.schema, columns, exact=session.case_sensitive(join.spark))
    shared, overwrite = (given.value_of(options, name) for name in ("shared", "overwrite"))
    owned = Output(folder, Wanted(shared, overwrite, columns, join.transform is not None))
    codec = given.value_of(options, "compression")
    if join.transform is not None:
        return _transformed(join, options, output, join.transform, partitions), owned
    cutting = Cutting(
        codec,
        columns,
        session.zone(join.spark),
        given.value_of(options, "targetFileSize"),
        spark_row=parquet_row(join.schema, columns),
    )
    every = given.value_of(options, "compactEvery")
    if every > 1:  # files of one task are about as large as merged ones
        cutting = replace(cutting, target_bytes=cutting.target_bytes or TARGET_BYTES)
    merge = merges(join.spark, name)
    return (
        lambda checkpoint, query: CompactingSink(
            output, query, settings.fsync, cutting, merge, every, marked=True
        )
    ), owned


def _transformed(
    join: ResolvedJoin,
    options: Mapping[str, str],
    output: Storage,
    transform: Transform,
    columns: tuple[str, ...],
) -> SinkFactory:
    for name in ("targetFileSize", "compactEvery"):
        if name in options:
            raise InvalidRequest(
                f"{name} is not valid with transform, whose files Spark writes; leave out one "
                f"of the two"
            )
    codec, fsync = options.get("compression", "snappy").lower(), given.value_of(options, "fsync")
    return lambda checkpoint, query: TransformedParquetSink(
        join.spark, output, query, checkpoint, join.schema, transform, codec, columns, bool(fsync)
    )


def reader_sink(join: ResolvedJoin, receive: Receiver) -> SinkFactory:
    """A function that makes the sink that calls `receive`. Refuses a query with a transform."""
    check_untransformed(join, "foreach_batch_arrow")
    return lambda checkpoint, query: ReaderSink(checkpoint.results, join.schema, receive)


def dropping(checkpoint: Checkpoint, query: str) -> DiscardSink:
    """The sink that drops results; it warns if the checkpoint has delivered any."""
    place = delivered_to(checkpoint)
    if place is not None:
        _log.warning(
            "joinengine: checkpoint %s has delivered its results to %s; this run drops its own, "
            "and no later run makes them again",
            *(checkpoint.location, place),
        )
    return DiscardSink()


def check_untransformed(join: ResolvedJoin, kind: str) -> None:
    """Refuse a function over DataFrames for a sink that does without Spark."""
    if join.transform is not None:
        raise InvalidRequest(
            f"{kind} is not valid with transform, whose results Spark computes; leave out "
            "transform, or use foreachBatch"
        )


def check_same_columns(join: ResolvedJoin, kind: str) -> None:
    """Refuse results with more columns than before where readers would mistake one for another."""
    if kind != "csv" or join.before is None:
        return
    last = join.before.operators[-1]
    leaving = last.output_schema if last.finish is None else last.finish.schema(last.output_schema)
    if leaving.names != join.schema.names:
        before, now = (", ".join(schema.names) for schema in (leaving, join.schema))
        raise InvalidRequest(
            "schema_changes: readers take the columns of CSV by their places, and the results have "
            f"had {before} so far, and would have {now}; "
            "keep them with select=, or start with a new checkpointLocation and another folder"
        )
