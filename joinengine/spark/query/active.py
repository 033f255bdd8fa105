"""Keeps track of the queries that run in this process.

Spark's `spark.streams` knows only queries that Spark runs, not those of the engine's own loop.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from contextlib import suppress
from threading import Lock

from pyspark.sql import SparkSession

from joinengine.model.arguments import check_timeout
from joinengine.model.errors import InvalidRequest
from joinengine.spark.query.join_query import JoinQuery
from joinengine.spark.query.waiting import wait
from joinengine.world.buckets import is_url

_log = logging.getLogger("joinengine")
#: Checkpoint, with links resolved -> the query that was started on it last.
_started = dict[str, JoinQuery]()
_changing = Lock()
#: Seconds for which one of several queries is asked whether it has ended.
_POLL_S = 0.05


def active() -> list[JoinQuery]:
    """The queries that are running in this process, in the order of their starts."""
    with _changing:
        return [query for query in _started.values() if query.isActive]


def awaitAnyTermination(timeout: float | None = None) -> bool | None:
    """Wait until one of the queries of this process ends; return at once if none is running.

    With `timeout` (seconds), return whether one has ended. Ctrl-C stops all of them. If an error
    ended the query, raises it as a JoinEngineError.
    """
    queries = active()
    if timeout is not None:
        check_timeout(timeout, "awaitAnyTermination: timeout")

    def ended(seconds: float) -> bool:
        end_s = time.monotonic() + seconds
        while all(query.isActive for query in queries) and queries:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(left_s, _POLL_S))
        return True

    def line() -> str:
        return f"joinengine: {len(queries)} queries are running"

    over = wait(ended, lambda: _stop(queries), timeout, line)
    for query in queries:
        if not query.isActive:
            query.awaitTermination()
    return over if timeout is not None else None


def check_name(spark: SparkSession, name: str | None) -> None:
    """Raise InvalidRequest if a running query has the name."""
    taken = {query.name for query in active()} | {query.name for query in spark.streams.active}
    if name is not None and name in taken:
        raise InvalidRequest(
            f"queryName: a query named {name!r} is already running; stop it, or give another name"
        )


def runs_on(location: str) -> bool:
    """Whether a query of this process is running on a checkpoint."""
    return _on(location) is not None


def stop_on(location: str) -> None:
    """End the query of this process that runs on a checkpoint, as Spark does with its queries."""
    if (query := _on(location)) is not None:
        _log.warning(
            "joinengine: the query on checkpoint %s is stopped, because it was started again",
            location,
        )
        query.stop()


def note(location: str, query: JoinQuery) -> None:
    """Take note of a query that was started."""
    with _changing:
        for known in [key for key, other_query in _started.items() if not other_query.isActive]:
            del _started[known]
        _started[_real(location)] = query


def _on(location: str) -> JoinQuery | None:
    """The query of this process that is running on a checkpoint."""
    with _changing:
        query = _started.get(_real(location))
    return query if query is not None and query.isActive else None


def _real(location: str) -> str:
    """A checkpoint's location, with links resolved."""
    return location if is_url(location) else os.path.realpath(location)


def _stop(queries: list[JoinQuery]) -> None:
    for query in queries:
        query.stop()


@atexit.register
def _end_all() -> None:
    """At the end of the process: begin no more batches, and cut running ones short."""
    for query in active():
        _log.warning(
            "joinengine: the program ends while a query runs, and the query with it: %r. Let the "
            "program wait with awaitTermination()",
            query,
        )
        with suppress(Exception):  # the JVM may be gone
            query.end()
