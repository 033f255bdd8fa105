"""Hands micro-batches of streaming DataFrames over to the loop, by one streaming query of Spark's.

Only Spark knows how far a DataFrame can be read. So one streaming query over all of them cuts
micro-batches, and its `foreachBatch` hands each over to the loop (`joinengine.driver.loop`). Its
plan is fixed: one `mapInArrow` routes each DataFrame and yields only reports or, under a shuffle,
packets and reports; these are united. Tasks get what changes from batch to batch separately
(`joinengine.spark.jobs.tasks`).

Law: the callback returns only if a manifest holds the micro-batch. Otherwise it raises an error,
and Spark commits nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from threading import Event, Thread
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from typing_extensions import override

from joinengine.driver.loop import HandsOver
from joinengine.model.errors import JoinEngineError
from joinengine.spark.jobs.failures import plain_error, short_if, unless_interrupted
from joinengine.spark.jobs.tasks import RouteRows
from joinengine.spark.query.spark_logs import SparkLogs
from joinengine.spark.session import session
from joinengine.spark.sources.frames import nameable
from joinengine.spark.sources.inputs import schema_of
from joinengine.spark.sources.source import NAME, ROW, JoinEngineSource
from joinengine.state.manifest import Handed

_log = logging.getLogger("joinengine")
#: Takes a micro-batch.
Take = Callable[[DataFrame, Handed], None]


@dataclass(eq=False)
class Frames(HandsOver):
    """The streaming DataFrames of a query, by source.

    `trigger`, `name`: as the user gives them. `checkpoint`: the folder of Spark's logs, which
    `logs` reads.
    """

    spark: SparkSession
    frames: Mapping[int, DataFrame]
    logs: SparkLogs
    checkpoint: str
    trigger: Mapping[str, Any]
    name: str | None
    _query: StreamingQuery | None = field(default=None, init=False)
    _has_started: Event = field(default_factory=Event, init=False)
    _is_over: Event = field(default_factory=Event, init=False)
    _error: JoinEngineError | None = field(default=None, init=False)

    def start(self, take: Take, is_ending: Callable[[], bool]) -> None:
        """Begin to hand micro-batches over. `is_ending`: whether errors only mean the end."""

        def hand_over(frame: DataFrame, batch: int) -> None:
            with short_if(is_ending):
                self._has_started.wait()
                take(frame, Handed(str(self.query.id), batch, self.logs.crc32_of(batch)))

        writer: DataStreamWriter = (
            self._united()
            .writeStream.foreachBatch(hand_over)
            .option("checkpointLocation", self.checkpoint)
        )
        if self.trigger:
            writer = writer.trigger(**self.trigger)
        if self.name is not None:
            writer = writer.queryName(self.name)
        try:
            with session.for_query(self.spark):
                self._query = writer.start()
        finally:
            self._has_started.set()
        Thread(target=self._wait, name="joinengine-frames", daemon=True).start()

    @property
    def query(self) -> StreamingQuery:
        """Spark's handle."""
        assert self._query is not None, "it has not started"
        return self._query

    @override
    def has_more(self) -> bool:
        """As in HandsOver; also True until Spark has looked for data for the first time."""
        status = self.query.status
        looks = str(status["message"]).startswith("Initializing")
        return looks or (bool(status["isTriggerActive"]) and bool(status["isDataAvailable"]))

    @override
    def has_ended(self) -> bool:
        if self._error is not None:
            raise self._error
        return self._is_over.is_set()

    def process_all(self) -> None:
        """Wait until all data that is there now is handed over and taken."""
        self.query.processAllAvailable()

    def stop(self) -> None:
        """End Spark's query; on return, the callback is not running any more."""
        with unless_interrupted():
            self.query.stop()

    def _wait(self) -> None:
        """Wait for the end of Spark's query, and take note of it."""
        try:
            with suppress(Exception):  # the error is read below
                self.query.awaitTermination()
            failure = self.query.exception()
            self._error = None if failure is None else plain_error(failure)
        except Exception as error:  # the JVM is gone
            _log.debug("joinengine: Spark's query could not say how it ended", exc_info=error)
        finally:
            self._is_over.set()

    def _united(self) -> DataFrame:
        """One frame with all rows that routing yields."""
        rows = [routed_rows(self.spark, number, frame) for number, frame in self.frames.items()]
        if self.logs.know_a_source_of_ours():
            # An earlier version read all of joinengine's own streams through one Spark source, and
            # Spark continues only with as many sources as its logs have. This one never moves.
            session.register(self.spark, JoinEngineSource)
            still = self.spark.readStream.format(NAME).option("feeds", "[]").load()
            rows.insert(0, still)
        return reduce(DataFrame.union, rows)


def routed_rows(spark: SparkSession, number: int, frame: DataFrame) -> DataFrame:
    """A frame with the rows that routing the source `number`, read by Spark, yields."""
    route = RouteRows(number, schema_of(frame))
    return nameable(frame).coalesce(session.parallelism(spark)).mapInArrow(route, ROW)
