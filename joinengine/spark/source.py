"""The `joinengine` data source: it tells Spark when a batch is due, and how far it goes.

One source serves all `Stream`s of a query, so that a batch costs one look for new data. Its offsets
are all that Spark needs of it: it has no rows, as the driver finds in its logs which row groups lie
between two offsets (joinengine.spark.streams). It also *ticks*: if the driver has asked for it, a
batch is due although there is no data (docs/decisions/0001). A stream that is handed to Spark as a
DataFrame has rows, which this source reads.

Law: an offset means the same row groups at every replay; under availableNow the source goes, in
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

from joinengine.driver.loop import REMOTE_REST_S
from joinengine.exchange.feeds import Feed, by_file, fold, open_feed
from joinengine.exchange.logged import RowGroup
from joinengine.exchange.ticks import due_tick
from joinengine.model.skipped import Skipped
from joinengine.spark.daemon import end_quietly
from joinengine.state.fence import check_generation
from joinengine.world.buckets import is_url
from joinengine.world.world import MACHINE

NAME = "joinengine"
_log = logging.getLogger("joinengine")
#: What the route tasks of other sources yield: the source is united with them.
ROW = "row binary"

Offset = dict[str, int]


def first_offset(feeds: int) -> Offset:
    """The offset before the first row group of each feed."""
    return {"tick": 0} | {f"feed{number}": 0 for number in range(feeds)}


class JoinEngineSource(DataSource):
    """The data source of all `Stream`s, as Spark sees it.

    Options: `feeds` (JSON), `ticks` (path); `generations` (path) and `generation` of the driver
    that runs the query, which ends when another one has taken over. `rest`: how long nobody looks
    for new files after a look, in seconds. `reading`: how the one stream is read that is to have
    rows, in `partitions` tasks.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        end_quietly()

    @classmethod
    def name(cls) -> str:
        """The format name."""
        return NAME

    def schema(self) -> str:
        """That of what routing yields; a stream that has rows is given its own."""
        return ROW

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of rows, if the source has any."""
        end_quietly()  # here too: some workers are handed a source that others have made
        return _Reader(dict(self.options), schema)


@dataclass
class _Part(InputPartition):
    """What one task reads."""

    groups: list[RowGroup]


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options: list[dict[str, Any]] = json.loads(options["feeds"])
        self._opened: list[Feed] | None = None
        self._ticks = options.get("ticks")
        self._generations = options.get("generations")
        self._generation = int(options.get("generation", "0"))
        self._partitions = int(options.get("partitions", "1"))
        self._target: Offset | None = None
        # Spark asks for new data a hundred times a second, and stores take money for requests.
        self._rest_s = float(options.get("rest", REMOTE_REST_S))
        self._rests_everywhere = "rest" in options
        #: when something that is to rest was last asked for something new
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
        """The next interval of every feed that has one, and the next tick if it is due."""
        rested = self._has_rested()
        if self._generations is not None and (rested or not self._is_to_rest(self._generations)):
            check_generation(MACHINE.storage(self._generations), self._generation)
        end = dict(start)
        for number, feed in enumerate(self._feeds):
            name = f"feed{number}"
            to_rest = self._is_to_rest(self._options[number]["path"])
            if self._target is None and (rested or not to_rest):
                feed.discover()
            last = feed.end() if self._target is None else self._target[name]
            end[name] = max(min(feed.advance(start[name]), last), start[name])
        end["tick"] = max(self._due_tick(), start["tick"])
        return end

    def _is_to_rest(self, place: str) -> bool:
        return self._rests_everywhere or is_url(place)

    def _has_rested(self) -> bool:
        """Whether what is to rest may be asked again; if so, it counts as asked now."""
        now = MACHINE.timer_s()
        rested = now - self._asked_s >= self._rest_s
        self._asked_s = now if rested else self._asked_s
        return rested

    def _due_tick(self) -> int:
        if self._ticks is None:
            return 0
        folder, _, name = self._ticks.rpartition("/")
        return due_tick(MACHINE.storage(folder), name, MACHINE.now_s())

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the row groups that are there now; ticks are not data and go on.

        There is no later look, so half-written files are waited for until they are whole or bad.
        """
        for feed in self._feeds:
            feed.discover(wait=True)
        self._target = {f"feed{number}": feed.end() for number, feed in enumerate(self._feeds)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The row groups between two offsets, in as many parts as there are cores, if read here."""
        if self._reading is None:
            return []
        (feed,) = self._feeds
        groups = [(0, group) for group in feed.row_groups(start["feed0"], end["feed0"])]
        parts = fold(groups, self._partitions) if groups else []
        return [_Part([group for _, group in part]) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of some row groups."""
        assert isinstance(partition, _Part)
        # Each query starts three processes for this source; filters bring DuckDB along.
        from joinengine.exchange.reading import reading_from_json  # noqa: PLC0415

        assert self._reading is not None
        schema = to_arrow_schema(self._schema, timezone="UTC")
        reading = reading_from_json(schema, self._reading)
        for part in by_file(partition.groups):
            skipped = list[Skipped]()
            yield from reading.batches(part, skipped)
            for one in skipped:  # there is no report in which it could be said
                _log.warning("joinengine: source file %s is left out: it %s", *one)
