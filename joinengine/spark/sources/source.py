"""The `joinengine` data source: one of joinengine's own streams as a DataFrame of Spark's.

Earlier versions read all `Stream`s of a query through one such source, of which Spark saw offsets
but no rows. If Spark's logs have it, it stays in the plan, without a feed, and never moves.

Law: an offset means the same row groups at every replay. Under availableNow, the source goes, in
intervals, to the end of the row groups that were there at the start, and no further.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from joinengine.model.skipped import Skipped
from joinengine.sources.feeds import REMOTE_REST_S, CountedFeed, Feed, open_feed
from joinengine.sources.places import by_file, fold
from joinengine.sources.positions import RowGroup
from joinengine.spark.session.daemon import end_quietly
from joinengine.world.buckets import is_url
from joinengine.world.world import MACHINE

NAME = "joinengine"
_log = logging.getLogger("joinengine")
#: The columns that route tasks yield, with which a source without rows is united.
ROW = "row binary"

Offset = dict[str, int]


def first_offset(feeds: int) -> Offset:
    """The offset before the first row group of each feed; earlier versions used its tick."""
    return {"tick": 0} | {f"feed{number}": 0 for number in range(feeds)}


class JoinEngineSource(DataSource):
    """The data source of a `Stream`, as Spark sees it.

    Options: `feeds` (JSON): one or none; `reading`: how it is read; `partitions`: number of tasks.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        end_quietly()

    @classmethod
    def name(cls) -> str:
        """The format name."""
        return NAME

    def schema(self) -> str:
        """The columns that routing yields, unless another schema is given."""
        return ROW

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of the rows."""
        end_quietly()  # here, too: some workers get a source that another process has made
        return _Reader(dict(self.options), schema)


@dataclass
class _Part(InputPartition):
    """The row groups that one task reads."""

    groups: list[RowGroup]


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options: list[dict[str, Any]] = json.loads(options["feeds"])
        self._opened: list[Feed] | None = None
        self._partitions = int(options.get("partitions", "1"))
        self._target: Offset | None = None
        #: when an object store was last asked for new files
        self._asked_s = -math.inf
        self._reading = options.get("reading")
        self._schema = schema

    @property
    def _feeds(self) -> list[Feed]:
        # Feeds are opened on first use: a reader also travels to tasks, which need none.
        if self._opened is None:
            self._opened = [open_feed(options) for options in self._options]
        return self._opened

    def initialOffset(self) -> Offset:
        """The offset before the first row group."""
        return first_offset(len(self._options))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The feeds cut their own intervals."""
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The next interval of every feed that has one."""
        rested = self._has_rested()
        end = dict(start)
        for number, feed in enumerate(self._feeds):
            name = f"feed{number}"
            if self._target is None and (rested or not is_url(self._options[number]["path"])):
                feed.discover()
            last = feed.end() if self._target is None else self._target[name]
            end[name] = max(min(feed.advance(start[name]), last), start[name])
        return end

    def _has_rested(self) -> bool:
        """Whether an object store may be asked again; if so, notes that it is asked now.

        Spark asks for new data a hundred times a second, and stores charge for requests.
        """
        now = MACHINE.timer_s()
        rested = now - self._asked_s >= REMOTE_REST_S
        self._asked_s = now if rested else self._asked_s
        return rested

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the row groups that are there now.

        There is no later look, so this waits until half-written files are whole or bad.
        """
        for feed in self._feeds:
            feed.discover(wait=MACHINE.sleep)
        self._target = {f"feed{number}": feed.end() for number, feed in enumerate(self._feeds)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The row groups between two offsets, divided among the tasks; empty without a feed."""
        if self._reading is None:
            return []
        (feed,) = self._feeds
        assert isinstance(feed, CountedFeed)
        groups = [(0, group) for group in feed.row_groups(start["feed0"], end["feed0"])]
        parts = fold(groups, self._partitions) if groups else []
        return [_Part([group for _, group in part]) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of some row groups."""
        assert isinstance(partition, _Part)
        # Each query starts three processes for this source, and this import would load DuckDB.
        from joinengine.sources.readings import reading_from_json  # noqa: PLC0415

        assert self._reading is not None
        schema = to_arrow_schema(self._schema, timezone="UTC")
        reading = reading_from_json(schema, self._reading)
        for part in by_file(partition.groups):
            skipped = list[Skipped]()
            yield from reading.batches(part, skipped)
            for skip in skipped:  # there is no report that could name it
                _log.warning("joinengine: skipped source file %s: it %s", *skip)
