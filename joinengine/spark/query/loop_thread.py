"""What runs the batches of a query: the engine's own loop, on a thread of this process.

Its Spark jobs are one job group, so that a stop can cut a batch short; that of the streaming query
over the streaming DataFrames, if there are any.
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

#: How often a batch that is to be cut short is cancelled again: it may start one more job.
_CANCEL_S = 0.1


@dataclass(frozen=True)
class Identity:
    """Who a query is: its id over all starts, that of this run, and its name."""

    id: str
    name: str | None = None
    runId: str = field(default_factory=lambda: str(uuid.uuid4()))


class Running:
    """A running query: the engine's own loop runs its batches, on a thread of its own.

    Micro-batches of streaming DataFrames are run on the thread by which Spark hands them over.
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
        """`loop_of`: the loop, given what lets time pass; `cut_short`: ends a step that runs.

        `tasks`: what carries out steps, in words. `frames`: what hands micro-batches over to the
        loop; it begins to here, and Spark gives it its ids. None: there are no streaming
        DataFrames. `heartbeat`: tells other drivers that it runs; it ends with the query.
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
        """Begin."""
        self._thread.start()

    def _take(self, frame: DataFrame, handed: Handed) -> None:
        self._loop.take(frame, handed)

    def _is_ending(self) -> bool:
        return self._stopping.is_set() or self._loop.has_ended

    def _run(self) -> None:
        context = self._context
        try:
            # Jobs of ours have names of their own; this one is for those of the user's sink.
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
                with suppress(Py4JError, AttributeError):  # there is no JVM any more
                    self._frames.stop()
            self._heartbeat.stop()
            self._ended.set()

    def _is_cut_short(self, error: BaseException) -> bool:
        """Whether an error only tells that the query was to end: nothing is lost by it."""
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
        """Whether it runs."""
        return not (self._stopping.is_set() or self._ended.is_set())

    @property
    def status(self) -> dict[str, Any]:
        """What it is doing, in Spark's form."""
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
        """The sources of which offsets are awaited that have not come."""
        return self._loop.missing

    @property
    def tasks(self) -> str:
        """What carries out the steps of a batch, in words."""
        return self._tasks()

    @property
    def is_here(self) -> bool:
        """Whether this is called from within a batch of it, which would wait for itself."""
        return self._loop.is_here

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended, however; False: it has not."""
        self._check_thread("awaitTermination")
        return self._ended.wait(timeout_s)

    def _check_thread(self, method: str) -> None:
        """Refuse to wait in a listener, or a function, that the query itself waits for."""
        if self.is_here:
            raise InvalidRequest(
                f"{method}: it was called from within a batch of this query, which would wait for "
                "itself; call it from another thread, or stop the query with stop()"
            )

    def process_all(self) -> None:
        """Wait until all that is there now is processed; raises what ended the query."""
        self._check_thread("processAllAvailable")
        if self._frames is not None:
            with in_own_words():
                self._frames.process_all()
        self._loop.process_all()
        if self._loop.has_ended:
            self._ended.wait()
            if self._error is not None:
                raise self._error

    def error(self) -> JoinEngineError | None:
        """What ended it; None: no error did."""
        return self._error

    def stop(self) -> None:
        """End it, and wait for that, unless it is called from a batch of its own."""
        self._stopping.set()
        if self.is_here:
            return
        self._cut_short()
        while not self._ended.wait(_CANCEL_S):
            self._cut_short()
            with suppress(Py4JError, AttributeError):  # there is no JVM any more
                self._context.cancelJobGroup(self.runId)


def _has_stopped(context: SparkContext) -> bool:
    """Whether somebody has stopped Spark, and the queries with it."""
    return getattr(context, "_jsc", None) is None


def kept_id(query_id: str, metadata: str | None) -> str:
    """The id of a query, a UUID: that in Spark's `metadata` of its checkpoint, if it has had one.

    >>> kept_id("q", '{"id":"0c1e7a0e-71b6-4f1a-9c9f-9a8e8ac23c52"}')
    '0c1e7a0e-71b6-4f1a-9c9f-9a8e8ac23c52'
    >>> kept_id("q", None) == kept_id("q", "")
    True
    """
    with suppress(ValueError, KeyError, TypeError):
        known: Mapping[str, str] = json.loads(metadata or "")
        return str(uuid.UUID(known["id"]))
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"joinengine:{query_id}"))
