"""The driver's part of `to_df`: waits for readers, and runs the engine's query while one reads.

Protocol, over a socket in a folder of this user: the reader says which frame it reads, and whether
the query ends with the data that is there now. At the end, the driver says how the query ended:
`error`, or None if it has read all. If either end is gone, the connection is closed.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Listener
from threading import Lock, Thread

import pyarrow as pa
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession

from joinengine.spark.query.join_query import JoinQuery
from joinengine.spark.session import session
from joinengine.spark.sources import types
from joinengine.spark.sources.results_source import RESULTS, ResultsSource

#: Seconds between two looks whether the reader is gone, and of a pause after an error.
_LOOK_S = 0.1
#: How many readers may wait to be let in.
_BACKLOG = 16
#: Starts the engine's query; the argument: whether it ends with the data that is there now.
Start = Callable[[bool], JoinQuery]
#: Serves one reader of a frame; the second argument: whether the query ends, as above.
Serve = Callable[[Connection, bool], None]


def results_frame(spark: SparkSession, schema: pa.Schema, state: str, start: Start) -> DataFrame:
    """A streaming DataFrame of the results that a query offers in its checkpoint.

    `state`: where the engine's part of it lies. `start`: starts the query.
    """
    session.register(spark, ResultsSource)
    door = _door()
    taken = Lock()
    number = door.add(inheritable_thread_target(spark)(partial(_serve, start, taken)))
    reader = spark.readStream.format(RESULTS).schema(types.spark_schema(schema))
    reader = reader.option("state", state).option("door", door.path).option("frame", number)
    frame: DataFrame = reader.option("partitions", session.parallelism(spark)).load()
    return frame


class _Door:
    """Lets in the readers of all frames of this process, as long as the process runs.

    It cannot close with a frame: Spark may go on reading a DataFrame that Python has released.
    """

    def __init__(self) -> None:
        self.path = f"{tempfile.mkdtemp(prefix='joinengine-')}/door"
        self._listener = Listener(self.path, "AF_UNIX", backlog=_BACKLOG)
        self._frames, self._numbers = dict[int, Serve](), itertools.count()
        atexit.register(self._close)
        Thread(target=self._wait, name="joinengine-results", daemon=True).start()

    def add(self, serve: Serve) -> int:
        """Add a frame, whose readers `serve` serves; the number by which readers ask for it."""
        number = next(self._numbers)
        self._frames[number] = serve
        return number

    def _wait(self) -> None:
        while True:
            try:
                line = self._listener.accept()
                Thread(target=self._welcome, args=(line,), daemon=True).start()
            except (OSError, EOFError, RuntimeError):  # too many open files or threads
                time.sleep(_LOOK_S)

    def _close(self) -> None:
        with suppress(OSError):
            self._listener.close()
            os.rmdir(os.path.dirname(self.path))

    def _welcome(self, line: Connection) -> None:
        with line, suppress(OSError, EOFError):
            asked = json.loads(line.recv_bytes())
            self._frames[asked["frame"]](line, asked["ends"])


@functools.cache
def _door() -> _Door:
    return _Door()


def _serve(start: Start, taken: Lock, line: Connection, ends: bool) -> None:
    """Run the query for one reader."""
    if not taken.acquire(blocking=False):
        _tell(
            line,
            "to_df: another query reads this DataFrame already; call to_df once for each query, "
            "with a checkpointLocation of its own",
        )
        return
    try:
        _run(line, start, ends)
    finally:
        taken.release()


def _run(line: Connection, start: Start, ends: bool) -> None:
    """Start the query; tell the reader how it ends, or end it if the reader is gone."""
    try:
        query = start(ends)
        try:
            while not query.awaitTermination(_LOOK_S):
                if line.poll():
                    return
        finally:
            query.stop()
    except Exception as error:  # the user looks at the reader's query
        _tell(line, str(error))
        return
    _tell(line, None)
    with suppress(EOFError):
        line.recv_bytes()  # ends only when the reader is gone: it sends nothing more


def _tell(line: Connection, error: str | None) -> None:
    line.send_bytes(json.dumps({"error": error}).encode())
