"""The `joinengine` data source: descriptors, rows, and ticks.

One source serves all `Stream`s of a query, so that a batch costs one look for new data and as many
read tasks as there are cores. Its rows are *descriptors*: which row groups of which file belong to
which stream, and how far event time has come. It also *ticks*: if the driver has asked for it, a
batch is due although there is no data (docs/decisions/0001).

Law: an offset means the same row groups at every replay; under availableNow the source reads, in
intervals, the row groups that were there at the start, and no others.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

from joinengine.exchange.feeds import Feed, Reading, RowGroup, Skipped, by_file, fold, open_feed
from joinengine.exchange.listing import OnBadFile
from joinengine.exchange.schemas import as_text, from_text
from joinengine.exchange.steps import steps_from_json, steps_to_json
from joinengine.exchange.ticks import due_tick
from joinengine.spark.daemon import end_quietly
from joinengine.state.fence import check_generation
from joinengine.world.buckets import is_url
from joinengine.world.world import MACHINE

NAME = "joinengine"
_log = logging.getLogger("joinengine")
DESCRIPTOR_SCHEMA = (
    "source int, file string, groups array<int>, stamp array<long>, progress long, skipped string"
)
#: Progress as a long: the end of a stream is the greatest one.
_ENDED = (1 << 63) - 1

#: Spark asks for new data a hundred times a second, and a store takes money for each request.
_REST_S = 1.0

Offset = dict[str, int]


class JoinEngineSource(DataSource):
    """The data source of all `Stream`s, as Spark sees it.

    Options: `feeds` (JSON), `ticks` (path), `partitions`; `generations` (path) and `generation` of
    the driver that runs the query, which ends when another one has taken over.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        end_quietly()

    @classmethod
    def name(cls) -> str:
        """The format name."""
        return NAME

    def schema(self) -> str:
        """The schema of descriptors; a stream of rows is given its own."""
        return DESCRIPTOR_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of descriptors, or of rows if the option `rows` is given."""
        end_quietly()  # here too: some workers are handed a source that others have made
        return _Reader(dict(self.options), schema)


@dataclass
class _Part(InputPartition):
    """What one read task hands out."""

    groups: list[tuple[int, RowGroup]]
    progress: dict[int, float]


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options: list[dict[str, Any]] = json.loads(options["feeds"])
        self._opened: list[Feed] | None = None
        self._ticks = options.get("ticks")
        self._generations = options.get("generations")
        self._generation = int(options.get("generation", "0"))
        self._partitions = int(options.get("partitions", "1"))
        self._target: Offset | None = None
        #: when an object store was last asked for something new
        self._asked_s = -math.inf
        self._rows = to_arrow_schema(schema, timezone="UTC") if options.get("rows") else None
        self._reading = options.get("reading")

    @property
    def _feeds(self) -> list[Feed]:
        # Feeds are opened on first use: a reader also travels to tasks, which need none.
        if self._opened is None:
            self._opened = [open_feed(options) for options in self._options]
        return self._opened

    def initialOffset(self) -> Offset:
        """The offset before the first row group."""
        return {"tick": 0} | {f"feed{number}": 0 for number in range(len(self._options))}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The feeds cut their own intervals."""
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The next interval of every feed that has one, and the next tick if it is due."""
        rested = self._has_rested()
        if self._generations is not None and (rested or not is_url(self._generations)):
            check_generation(MACHINE.storage(self._generations), self._generation)
        end = dict(start)
        for number, feed in enumerate(self._feeds):
            name = f"feed{number}"
            if self._target is None and (rested or not is_url(self._options[number]["path"])):
                feed.discover()
            last = feed.end() if self._target is None else self._target[name]
            end[name] = max(min(feed.advance(start[name]), last), start[name])
        end["tick"] = max(self._due_tick(), start["tick"])
        return end

    def _has_rested(self) -> bool:
        """Whether an object store may be asked again; if so, it counts as asked now."""
        now = MACHINE.timer_s()
        rested = now - self._asked_s >= _REST_S
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
        """The row groups between two offsets, folded into as many parts as there are cores."""
        groups, progress = list[tuple[int, RowGroup]](), dict[int, float]()
        for number, feed in enumerate(self._feeds):
            source = self._options[number].get("source", number)
            first, last = start[f"feed{number}"], end[f"feed{number}"]
            groups += [(source, group) for group in feed.row_groups(first, last)]
            known = feed.progress(last) if last > first else None
            if known is not None:
                progress[source] = known
        parts = [_Part(part, {}) for part in fold(groups, self._partitions)] if groups else []
        if progress and not parts:
            parts = [_Part([], {})]
        if progress:
            parts[0].progress = progress
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Descriptors, one per file, or the rows themselves."""
        assert isinstance(partition, _Part)
        if self._rows is not None:
            yield from self._read_rows(partition.groups, self._rows)
            return
        for source, groups in _by_source(partition.groups):
            stamp = [groups[0].size, groups[0].modified_ns]
            numbers = [group.group for group in groups]
            yield (source, groups[0].file, numbers, stamp, None, groups[0].skipped)
        for source, time_us in partition.progress.items():
            limit = _ENDED if math.isinf(time_us) else int(time_us)
            yield (source, None, None, None, limit, None)

    def _read_rows(
        self, groups: Sequence[tuple[int, RowGroup]], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        reading = Reading(schema)
        if self._reading is not None:
            reading = reading_from_json(schema, self._reading)
        for part in by_file([group for _, group in groups]):
            skipped = list[Skipped]()
            yield from reading.batches(part, skipped)
            for one in skipped:  # there is no report in which it could be said
                _log.warning("joinengine: source file %s is left out: it %s", *one)


def described(batch: pa.RecordBatch) -> Iterator[tuple[int, list[RowGroup], float | None]]:
    """Descriptors as the route task needs them: (source, row groups of one file, progress)."""
    for row in batch.to_pylist():
        progress = row["progress"]
        limit = None if progress is None else math.inf if progress == _ENDED else progress
        groups = list[RowGroup]()
        if row["file"] is not None:
            size, modified_ns = row["stamp"]
            stamp = size, modified_ns, row["skipped"]
            groups = [RowGroup(row["file"], n, 0, *stamp) for n in row["groups"]]
        yield row["source"], groups, limit


def reading_to_json(reading: Reading) -> str:
    """How a stream is read, but for the columns that it delivers, as an option of the source."""
    return json.dumps(
        {
            "steps": steps_to_json(reading.steps),
            "columns": as_text(reading.columns),
            "root": reading.root,
            "zone": reading.zone,
            "on_bad_file": reading.on_bad_file,
        }
    )


def reading_from_json(schema: pa.Schema, content: str) -> Reading:
    """A reading that delivers the columns of `schema`, otherwise as the option says."""
    found = json.loads(content)
    steps = steps_from_json(found["steps"])
    bad = OnBadFile(found["on_bad_file"])
    columns = from_text(found["columns"])
    return Reading(schema, steps, columns, found["root"], found["zone"], bad)


def _by_source(
    groups: Sequence[tuple[int, RowGroup]],
) -> Iterator[tuple[int, list[RowGroup]]]:
    """Stretches of row groups of one stream and file."""
    for source in dict.fromkeys(source for source, _ in groups):
        for part in by_file([group for s, group in groups if s == source]):
            yield source, part
