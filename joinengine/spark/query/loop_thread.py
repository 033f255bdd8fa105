"""Runs the batches of a query: the engine's own loop, on a thread of this process.

All its Spark jobs are in one job group, so that a stop can cut a batch short. If there are
streaming DataFrames, it is the group of Spark's streaming query over them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from joinengine.driver.loop import Loop
from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.spark.jobs.failures import LOGGER, in_own_words, plain_error
from joinengine.spark.query.heartbeat import Heartbeat
from joinengine.spark.sources.handing_over import Frames
from joinengine.state.manifest import Handed

#: Seconds between two cancellations of a batch that must be cut short: it may start another job.
_CANCEL_S = 0.1


@dataclass(frozen=True)
class Identity:
    """The id of a query over all its starts, the id of this run, and its name."""

    id: str
    name: str | None = None
    runId: str = field(default_factory=lambda: str(uuid.uuid4()))


class Running:
    """A running query: the engine's own loop runs its batches, on a separate thread.

    Batches with a micro-batch run on the thread on which Spark hands it over.
    """

    def __init__(
        self,
        context: SparkContext,
        identity: Identity,
        loop_of: Callable[[Callable[[float], bool]], Loop],
        cut_short: Callable[[], None],
        tasks: Callable[[], str],
        frames: Frames | None,
        heartbeat: Heartbeat,
    ) -> None:
        """`loop_of(rest)`: makes the loop. `cut_short`: makes the running step fail.

        `tasks`: what carries out steps, in words. `frames`: hands micro-batches over to the loop,
        once `start` has started it; None: there are no streaming DataFrames. `heartbeat`: shows
        other drivers that the query runs; it ends with the query.
        """
        self._context = context
        self._stopping, self._ended = Event(), Event()
        self._error: JoinEngineError | None = None
        self._loop = loop_of(self._rest)
        self._cut_short = cut_short
        self._tasks = tasks
        self._frames = frames
        self._heartbeat = heartbeat
        if frames is not None:
            frames.start(self._take, self._is_ending)
            ids = str(frames.query.id), identity.name, str(frames.query.runId)
            identity = Identity(*ids)
        self._identity = identity
        self._thread = InheritableThread(
            self._run, name=f"joinengine {identity.name or identity.id}", daemon=True
        )

    @property
    def query(self) -> StreamingQuery | None:
        """Spark's handle of the query over the streaming DataFrames; None: there are none."""
        return None if self._frames is None else self._frames.query

    def start(self) -> None:
        """Start the loop, and Spark's query if there is one."""
        self._thread.start()

    def _take(self, frame: DataFrame, handed: Handed) -> None:
        self._loop.take(frame, handed)

    def _is_ending(self) -> bool:
        return self._stopping.is_set() or self._loop.has_ended

    def _run(self) -> None:
        context = self._context
        try:
            # The engine's jobs have their own descriptions; this one is for the user's sink.
            about = f"{self.name or ''}\nid = {self.id}\nrunId = {self.runId}"
            context.setJobGroup(self.runId, about, interruptOnCancel=True)
            self._loop.run()
        except BaseException as error:
            if self._is_cut_short(error):
                LOGGER.info("joinengine: the running batch was interrupted", exc_info=error)
            else:
                LOGGER.error("the query failed", exc_info=error)
                self._error = plain_error(error)
        finally:
            if self._frames is not None:
                with suppress(Py4JError, AttributeError):  # the JVM is gone
                    self._frames.stop()
            self._heartbeat.stop()
            self._ended.set()

    def _is_cut_short(self, error: BaseException) -> bool:
        """Whether an error only means that the query was stopped: then nothing is lost."""
        if isinstance(error, JoinEngineError):
            return False
        return self._stopping.is_set() or _has_stopped(self._context)

    def _rest(self, seconds: float) -> bool:
        return self._stopping.wait(seconds) or _has_stopped(self._context)

    @property
    def id(self) -> str:
        """The id of the query, a UUID; the same over restarts."""
        return self._identity.id

    @property
    def runId(self) -> str:
        """The id of this run, a UUID."""
        return self._identity.runId

    @property
    def name(self) -> str | None:
        """The name of the query; None: it has none."""
        return self._identity.name

    @property
    def isActive(self) -> bool:
        """Whether the query is running."""
        return not (self._stopping.is_set() or self._ended.is_set())

    @property
    def status(self) -> dict[str, Any]:
        """What the query is doing, in Spark's form."""
        busy = self._loop.is_busy
        message = "Processing new data" if busy else "Waiting for data to arrive"
        return {
            "message": message if self.isActive else "Stopped",
            "isDataAvailable": busy,
            "isTriggerActive": busy,
        }

    @property
    def reports(self) -> list[dict[str, Any]]:
        """Spark's progress of the last triggers of the query over the streaming DataFrames."""
        spark: Any = self.query
        return (
            []
            if spark is None
            else [json.loads(progress.json()) for progress in spark._jsq.recentProgress()]
        )

    @property
    def missing(self) -> list[int]:
        """The sources that have not yet reached their awaited offsets."""
        return self._loop.missing

    @property
    def tasks(self) -> str:
        """What carries out the steps of a batch, in words."""
        return self._tasks()

    @property
    def is_here(self) -> bool:
        """Whether a batch of this query makes the call: waiting would then never end."""
        return self._loop.is_here

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the query has ended, in whatever way; False: it has not."""
        self._check_thread("awaitTermination")
        return self._ended.wait(timeout_s)

    def _check_thread(self, method: str) -> None:
        """Raise an error in a listener or function of the query, which must not wait for it."""
        if self.is_here:
            raise InvalidRequest(
                f"{method}: it was called from within a batch of this query, which would wait for "
                "itself; call it from another thread, or stop the query with stop()"
            )

    def process_all(self) -> None:
        """Wait until all present data is processed; raises the error that ended the query."""
        self._check_thread("processAllAvailable")
        if self._frames is not None:
            try:
                with in_own_words():
                    self._frames.process_all()
            except JoinEngineError as error:
                self._ended.wait()  # if the loop ended Spark's query, its error says why
                raise self._error or error from None
        self._loop.process_all()
        if self._loop.has_ended:
            self._ended.wait()
            if self._error is not None:
                raise self._error

    def error(self) -> JoinEngineError | None:
        """The error that ended the query; None: there was none."""
        return self._error

    def stop(self) -> None:
        """End the query, and wait for the end, unless a batch of the query makes the call."""
        self._stopping.set()
        if self.is_here:
            return
        self._cut_short()
        while not self._ended.wait(_CANCEL_S):
            self._cut_short()
            with suppress(Py4JError, AttributeError):  # the JVM is gone
                self._context.cancelJobGroup(self.runId)


def _has_stopped(context: SparkContext) -> bool:
    """Whether Spark was stopped, and its queries with it."""
    return getattr(context, "_jsc", None) is None


def kept_id(query_id: str, metadata: str | None) -> str:
    """The id of a query, a UUID: the one in Spark's `metadata` of its checkpoint, if there is one.

    >>> kept_id("q", '{"id":"0c1e7a0e-71b6-4f1a-9c9f-9a8e8ac23c52"}')
    '0c1e7a0e-71b6-4f1a-9c9f-9a8e8ac23c52'
    >>> kept_id("q", None) == kept_id("q", "")
    True
    """
    with suppress(ValueError, KeyError, TypeError):
        known: Mapping[str, str] = json.loads(metadata or "")
        return str(uuid.UUID(known["id"]))
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"joinengine:{query_id}"))
