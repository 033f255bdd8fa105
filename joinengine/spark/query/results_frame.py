"""The driver's part of `to_df`: it waits for a reader, and runs the engine's query while one reads.

Protocol, over a socket in a folder of this user's: the reader says whether the query shall end with
the data that are there now. The driver says at last how the query ended: `error`, None: it has read
all. Who is gone closes the connection.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from joinengine.spark.query.join_query import JoinQuery
from joinengine.spark.session import session
from joinengine.spark.sources import types
from joinengine.spark.sources.results_source import RESULTS, ResultsSource

#: How often the driver looks whether the reader is gone.
_LOOK_S = 0.1
#: Starts the engine's query; the argument: whether it ends with the data that are there now.
Start = Callable[[bool], JoinQuery]


def results_frame(spark: SparkSession, schema: pa.Schema, folder: str, start: Start) -> DataFrame:
    """A streaming DataFrame of the results that a query shows in `folder`; `start` starts it."""
    session.register(spark, ResultsSource)
    door = str(Path(tempfile.mkdtemp(prefix="joinengine-")) / "door")
    listener, taken = Listener(door, "AF_UNIX"), Lock()

    def wait() -> None:
        while True:
            with suppress(EOFError):
                line = listener.accept()
                InheritableThread(target=_serve, args=(line, start, taken), daemon=True).start()

    InheritableThread(target=wait, name="joinengine-results", daemon=True).start()
    reader = spark.readStream.format(RESULTS).schema(types.spark_schema(schema))
    reader = reader.option("folder", folder).option("door", door)
    frame: DataFrame = reader.option("partitions", session.parallelism(spark)).load()
    return frame


def _serve(line: Connection, start: Start, taken: Any) -> None:
    """Run the query for one reader."""
    with line, suppress(OSError, EOFError):
        if not taken.acquire(blocking=False):
            _tell(
                line,
                "to_df: another query reads this DataFrame already; call to_df once for each "
                "query, with a checkpointLocation of its own",
            )
            return
        try:
            ends = json.loads(line.recv_bytes())["ends"]
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
    except Exception as error:  # the reader's query is where the user looks
        _tell(line, str(error))
        return
    _tell(line, None)
    with suppress(EOFError):
        line.recv_bytes()  # a reader that is there has nothing to say


def _tell(line: Connection, error: str | None) -> None:
    line.send_bytes(json.dumps({"error": error}).encode())
