"""The `joinengine_results` data source: results of a query as a streaming DataFrame of Spark's.

Spark asks a separate process how far the results go. That process connects to the driver
(`joinengine.spark.query.results_frame`), which then starts the engine's query, and ends it when the
connection is lost. So the query runs exactly as long as a reader is connected.

Law: an offset is the number of a batch and the id of its query, so a replay reads the same rows.
Files are removed only once Spark has committed the rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from joinengine.model.errors import DataLost, JoinEngineError
from joinengine.results.offered import NOTHING, Offered
from joinengine.results.staging import rows_of
from joinengine.sources.feeds import REMOTE_REST_S
from joinengine.sources.readings import conform
from joinengine.spark.session.daemon import end_quietly
from joinengine.state.checkpoint import Checkpoint, read_account
from joinengine.world.storage import StoredFile
from joinengine.world.world import MACHINE

RESULTS = "joinengine_results"
_ROWS = 1 << 16


class ResultsSource(DataSource):
    """The data source of `to_df`, as Spark sees it.

    Options: `state`: where the engine's part of its checkpoint lies; `door`: the address at which
    the driver waits for readers; `frame`: the number of the DataFrame there; `partitions`: how many
    tasks read a batch.
    """

    @classmethod
    def name(cls) -> str:
        """The format name."""
        return RESULTS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of the results."""
        end_quietly()
        return _Reader(dict(self.options), schema)


@dataclass
class _Part(InputPartition):
    """The files that one task reads."""

    files: list[StoredFile]


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._state, self._door = options["state"], options["door"]
        self._frame, self._partitions = int(options["frame"]), int(options["partitions"])
        self._schema = schema
        self._line: Connection | None = None
        self._end = NOTHING
        self._ends = self._is_final = False
        self._asked_s = -math.inf

    def initialOffset(self) -> dict[str, Any]:
        """The offset before the first batch."""
        return {"batch": NOTHING}

    def getDefaultReadLimit(self) -> ReadLimit:
        """No limit: read all that is there."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The offset of the newest batch; the first call starts the engine's query.

        Under availableNow, it waits until the engine has read all that is there now.
        """
        if self._line is None:
            self._check(start)
        if not self._is_final:
            self._listen()
            self._look()
            self._is_final = self._ends
        if self._end <= start["batch"]:
            return start
        return {"batch": self._end, "query": self._query}

    def _check(self, known: dict[str, Any]) -> None:
        """Raise DataLost if the results are not those of which Spark has read a part.

        `known`: an offset in Spark's log. The list of the last batch that Spark has read stays.
        """
        batch = known["batch"]
        there = max(self._offered.batches, default=NOTHING)
        if batch > there or (batch != NOTHING and known.get("query", self._query) != self._query):
            raise DataLost(
                f"to_df: {self._checkpoint.location} does not hold the results of which Spark has "
                f"read those up to batch {batch}; restore it from a copy, or give to_df and the "
                "query that reads it new checkpoints"
            )

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends with the data that is there; its last batch is the last offset."""
        self._ends = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The files of the batches between two offsets."""
        if self._line is None:  # a replay, before the first look
            self._check(end)
        files = self._offered.files(start["batch"], end["batch"])
        return [_Part(files[n :: self._partitions]) for n in range(self._partitions)][: len(files)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some files."""
        assert isinstance(partition, _Part)
        storage = self._offered.storage
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for file in partition.files:
            for rows in rows_of(storage, file, _ROWS):
                yield conform(rows, schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Remove the results that Spark has committed."""
        self._offered.forget(end["batch"])

    @property
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint.below(self._state)

    @property
    def _query(self) -> str | None:
        """The id of the engine's query; None: it has not begun."""
        account = read_account(self._checkpoint)
        return None if account is None else str(account["id"])

    @property
    def _offered(self) -> Offered:
        return Offered(self._checkpoint.offered)

    def _look(self) -> None:
        """Find the newest batch; in an object store with pauses, because listings cost money."""
        now = MACHINE.timer_s()
        if self._checkpoint.is_remote and now - self._asked_s < REMOTE_REST_S:
            return
        self._asked_s = now
        self._end = max([self._end, *self._offered.batches])

    def _listen(self) -> None:
        """Make the engine's query run, and check whether it has ended, for which it may wait.

        Raises JoinEngineError with the error that ended it.
        """
        if self._line is None:
            self._line = _connected(self._door)
            self._line.send_bytes(json.dumps({"frame": self._frame, "ends": self._ends}).encode())
        if self._ends or self._line.poll():
            message: dict[str, Any] = json.loads(self._line.recv_bytes())
            if message["error"] is not None:
                raise JoinEngineError(message["error"])


def _connected(door: str) -> Connection:
    try:
        return Client(door, "AF_UNIX")
    except OSError:
        raise JoinEngineError(
            "to_df: the program that made this DataFrame has ended; call to_df again, and start "
            "the query that reads it from there"
        ) from None
