"""What cuts the batches of a query: the engine's own loop, or a streaming query of Spark's.

Spark does if a DataFrame is among the streams (docs/decisions/0024). Its streaming plan is fixed.
The source of all `Stream`s is there for its offsets alone; each input that Spark reads is routed by
one `mapInArrow`, whose only rows are reports, or under a shuffle packets and reports; these are
united, and `foreachBatch` runs everything else. What changes from batch to batch tasks learn apart
(joinengine.spark.tasks).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from joinengine.driver.batch import BatchRunner
from joinengine.driver.loop import LOCAL_REST_S, REMOTE_REST_S, Loop, Trigger
from joinengine.exchange.feeds import Feed
from joinengine.spark import session
from joinengine.spark.failures import short_if
from joinengine.spark.inputs import schema_of
from joinengine.spark.jobs import SparkJobs
from joinengine.spark.request import Request
from joinengine.spark.running import ByLoop, BySpark, Identity
from joinengine.spark.source import NAME, ROW
from joinengine.spark.tasks import RouteRows
from joinengine.spark.watch import Watch
from joinengine.state.checkpoint import Checkpoint, tick_name
from joinengine.world.buckets import is_url
from joinengine.world.world import MACHINE


def by_spark(
    request: Request, checkpoint: Checkpoint, runner: BatchRunner, watch: Watch, jobs: SparkJobs
) -> BySpark:
    """The query as a streaming query of Spark's; `runner` has recovered."""

    def run_batch(frame: DataFrame, batch: int) -> None:
        with short_if(lambda: watch.stopping):
            runner(frame, batch)

    writer: DataStreamWriter = (
        _united(request, checkpoint, runner.generation)
        .writeStream.foreachBatch(run_batch)
        .option("checkpointLocation", checkpoint.spark)
    )
    if request.trigger:
        writer = writer.trigger(**request.trigger)
    if request.name is not None:
        writer = writer.queryName(request.name)
    with session.for_query(request.spark):
        return BySpark(writer.start(), jobs.tasks)


def by_loop(
    request: Request,
    checkpoint: Checkpoint,
    runner: BatchRunner,
    feeds: Mapping[int, Feed],
    identity: Identity,
    jobs: SparkJobs,
) -> ByLoop:
    """The query on the engine's own loop; `runner` has recovered."""
    _ = runner.position  # where an earlier version has kept that elsewhere, it may be gone
    paths = [str(stream.feed["path"]) for stream, _ in request.own_feeds(checkpoint)]
    remote = checkpoint.is_remote or any(map(is_url, paths))
    trigger, rest_s = _trigger(request), REMOTE_REST_S if remote else LOCAL_REST_S
    return ByLoop(
        request.spark.sparkContext,
        identity,
        lambda rest: Loop(runner, feeds, trigger, MACHINE, rest, rest_s),
        jobs.cut_short,
        lambda: jobs.tasks,
    )


def _trigger(request: Request) -> Trigger:
    asked = request.trigger
    every = asked.get("processingTime")
    return Trigger(
        every_s=0.0 if every is None else float(every.partition(" ")[0]) / 1e3,
        once=bool(asked.get("once")),
        finite=bool(asked.get("availableNow")),
    )


def _united(request: Request, checkpoint: Checkpoint, generation: int) -> DataFrame:
    """One frame of what routing yields; all `Stream`s are one source, which also ticks."""
    rows = [routed_rows(request.spark, number, frame) for number, frame in request.frames.items()]
    return reduce(DataFrame.union, [_own_streams(request, checkpoint, generation), *rows])


def routed_rows(spark: SparkSession, number: int, frame: DataFrame) -> DataFrame:
    """A frame of what routing a source that Spark reads yields."""
    route = RouteRows(number, schema_of(frame))
    return frame.coalesce(session.parallelism(spark)).mapInArrow(route, ROW)


def _own_streams(request: Request, checkpoint: Checkpoint, generation: int) -> DataFrame:
    """The source that says how far batches go; the files that are there now are logged."""
    own = request.own_feeds(checkpoint)
    feeds = [feed | {"generation": generation} for _, feed in own]
    for (stream, _), feed in zip(own, feeds, strict=True):
        stream.list_files(feed)
    return (
        request.spark.readStream.format(NAME)
        .option("feeds", json.dumps(feeds))
        .option("ticks", f"{checkpoint.ticks.folder}/{tick_name(generation)}")
        .option("generations", checkpoint.generations.folder)
        .option("generation", generation)
        .load()
    )
