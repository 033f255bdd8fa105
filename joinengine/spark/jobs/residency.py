"""Decides whether the tasks of a query are resident, or each step is a job of Spark."""

from __future__ import annotations

from pyspark.sql import SparkSession

from joinengine.driver.settings import Settings, Tasks
from joinengine.exchange.exchange import ExchangeKind
from joinengine.model.errors import InvalidRequest
from joinengine.results.sinks import Sink
from joinengine.spark.jobs.slots import obstacle
from joinengine.spark.query.frame_sinks import FrameSink, TransformedParquetSink


def why_jobs(
    spark: SparkSession, settings: Settings, sink: Sink, *, has_frames: bool
) -> str | None:
    """Why the tasks of a query are not resident (see `slots`), in words; None: they are.

    `has_frames`: a DataFrame is among its streams. Raises InvalidRequest if the user requires
    resident tasks and they are impossible.
    """
    if settings.tasks is Tasks.JOBS:
        return "option 'tasks' is 'jobs'"
    why = _obstacle(spark, settings, sink, has_frames=has_frames)
    if why is not None and settings.tasks is Tasks.RESIDENT:
        raise InvalidRequest(
            f"tasks: 'resident' is not available here: {why}; leave the option out, or give 'jobs'"
        )
    return why


def _obstacle(
    spark: SparkSession, settings: Settings, sink: Sink, *, has_frames: bool
) -> str | None:
    """Why the tasks of a query cannot be resident, in words; None: they can."""
    if has_frames:
        return "a DataFrame is among the streams, and Spark delivers its rows in jobs"
    if settings.exchange is ExchangeKind.SHUFFLE:
        return "exchange 'shuffle' runs in jobs"
    if isinstance(sink, FrameSink | TransformedParquetSink):
        return "the sink takes a DataFrame, which Spark computes and writes in jobs"
    return obstacle(spark.sparkContext)
