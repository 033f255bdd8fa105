"""What runs the batches of a query: the engine's own loop, or a streaming query of Spark's.

Both answer the same questions. The loop runs on a thread of this process; its Spark jobs are one
job group, so that a stop can cut a batch short. A query that Spark runs has a DataFrame among its
sources, of which only Spark knows how far it can be read.
"""

from __future__ import annotations

import json
import logging
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, current_thread
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from typing_extensions import override

from joinengine.driver.loop import Loop
from joinengine.model.errors import JoinEngineError
from joinengine.spark.failures import LOGGER, in_own_words, plain_error, unless_interrupted

_log = logging.getLogger("joinengine")
#: How often a batch that is to be cut short is cancelled again: it may start one more job.
_CANCEL_S = 0.1


class Running(Protocol):
    """A running query."""

    @property
    @abstractmethod
    def query(self) -> StreamingQuery | None:
        """Spark's handle; None: no streaming query of Spark's is behind it."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The id of the query, a UUID; the same over restarts."""

    @property
    @abstractmethod
    def runId(self) -> str:
        """The id of this run, a UUID."""

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The name of the query; None: it has none."""

    @property
    @abstractmethod
    def isActive(self) -> bool:
        """Whether it runs."""

    @property
    @abstractmethod
    def status(self) -> dict[str, Any]:
        """What it is doing, in Spark's form."""

    @property
    @abstractmethod
    def reports(self) -> list[dict[str, Any]] | None:
        """Spark's progress of the last triggers; None: Spark does not know of them."""

    @property
    @abstractmethod
    def tasks(self) -> str:
        """What carries out the steps of a batch, in words."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended, however; False: it has not."""

    @abstractmethod
    def process_all(self) -> None:
        """Wait until all that is there now is processed; raises what ended the query."""

    @abstractmethod
    def error(self) -> JoinEngineError | None:
        """What ended it; None: no error did."""

    @abstractmethod
    def stop(self) -> None:
        """End it, and wait for that, unless it is called from a batch of its own."""


class BySpark(Running):
    """A query whose batches Spark cuts."""

    def __init__(self, query: StreamingQuery, tasks: str) -> None:
        self._query = query
        self._tasks = tasks

    @property
    @override
    def tasks(self) -> str:
        return self._tasks

    @property
    @override
    def query(self) -> StreamingQuery:
        return self._query

    @property
    @override
    def id(self) -> str:
        return str(self._query.id)

    @property
    @override
    def runId(self) -> str:
        return str(self._query.runId)

    @property
    @override
    def name(self) -> str | None:
        return self._query.name

    @property
    @override
    def isActive(self) -> bool:
        return bool(self._query.isActive)

    @property
    @override
    def status(self) -> dict[str, Any]:
        return self._query.status

    @property
    @override
    def reports(self) -> list[dict[str, Any]]:
        spark: Any = self._query
        return [json.loads(one.json()) for one in spark._jsq.recentProgress()]

    @override
    def wait(self, timeout_s: float | None = None) -> bool:
        spark: Any = self._query  # whose own hints do not know parts of a second
        try:
            ended = spark.awaitTermination(timeout_s)
        except StreamingQueryException:
            return True
        return ended is not False

    @override
    def process_all(self) -> None:
        with in_own_words():
            self._query.processAllAvailable()

    @override
    def error(self) -> JoinEngineError | None:
        found = self._query.exception()
        return None if found is None else plain_error(found)

    @override
    def stop(self) -> None:
        with unless_interrupted():
            self._query.stop()


@dataclass(frozen=True)
class Identity:
    """Who a query is: its id over all starts, that of this run, and its name."""

    id: str
    name: str | None = None
    runId: str = field(default_factory=lambda: str(uuid.uuid4()))

    def as_json(self) -> dict[str, Any]:
        """As a progress report has it."""
        return {"id": self.id, "runId": self.runId, "name": self.name}


class ByLoop(Running):
    """A query whose batches the engine's own loop runs, on a thread of its own."""

    def __init__(
        self,
        context: SparkContext,
        identity: Identity,
        loop_of: Callable[[Callable[[float], bool]], Loop],
        cut_short: Callable[[], None],
        tasks: Callable[[], str],
    ) -> None:
        """`loop_of`: the loop, given what lets time pass; `cut_short`: ends a step that runs.

        `tasks`: what carries out steps, in words.
        """
        self._context = context
        self._identity = identity
        self._stopping, self._ended = Event(), Event()
        self._error: JoinEngineError | None = None
        self._loop = loop_of(self._rest)
        self._cut_short = cut_short
        self._tasks = tasks
        self._thread = InheritableThread(
            self._run, name=f"joinengine {identity.name or identity.id}", daemon=True
        )

    @property
    @override
    def query(self) -> None:
        return None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        context = self._context
        try:
            # Jobs of ours have names of their own; this one is for those of the user's sink.
            about = f"{self.name or ''}\nid = {self.id}\nrunId = {self.runId}"
            context.setJobGroup(self.runId, about, interruptOnCancel=True)
            self._loop.run()
        except BaseException as error:
            if self._is_cut_short(error):
                LOGGER.info("the running batch was cut short", exc_info=error)
            else:
                LOGGER.error("the query failed", exc_info=error)
                self._error = plain_error(error)
        finally:
            self._ended.set()

    def _is_cut_short(self, error: BaseException) -> bool:
        """Whether an error only tells that the query was to end: nothing is lost by it."""
        if isinstance(error, JoinEngineError):
            return False
        return self._stopping.is_set() or _has_stopped(self._context)

    def _rest(self, seconds: float) -> bool:
        return self._stopping.wait(seconds) or _has_stopped(self._context)

    @property
    @override
    def id(self) -> str:
        return self._identity.id

    @property
    @override
    def runId(self) -> str:
        return self._identity.runId

    @property
    @override
    def name(self) -> str | None:
        return self._identity.name

    @property
    @override
    def isActive(self) -> bool:
        return not (self._stopping.is_set() or self._ended.is_set())

    @property
    @override
    def status(self) -> dict[str, Any]:
        busy = self._loop.is_busy
        message = "Processing new data" if busy else "Waiting for data to arrive"
        return {
            "message": message if self.isActive else "Stopped",
            "isDataAvailable": busy,
            "isTriggerActive": busy,
        }

    @property
    @override
    def reports(self) -> None:
        return None

    @property
    @override
    def tasks(self) -> str:
        return self._tasks()

    @override
    def wait(self, timeout_s: float | None = None) -> bool:
        return self._ended.wait(timeout_s)

    @override
    def process_all(self) -> None:
        self._loop.process_all()
        if self._loop.has_ended:
            self._ended.wait()
            if self._error is not None:
                raise self._error

    @override
    def error(self) -> JoinEngineError | None:
        return self._error

    @override
    def stop(self) -> None:
        self._stopping.set()
        if current_thread() is self._thread:
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
