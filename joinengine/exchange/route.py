"""The route task: makes one pass over its tuples of a batch, from the sources to the blocks.

A task gets its portion of the batch (for joinengine's own streams) or rows (for any other streaming
DataFrame), routes the tuples, and reports.

Law: each source tuple is read once in a batch, however many operators read the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinengine.exchange.blocks import BlockWriter
from joinengine.exchange.exchange import Exchange, Through
from joinengine.exchange.roles import Origin, Role
from joinengine.kernels.hashing import content_hashes
from joinengine.kernels.probing import distinct
from joinengine.kernels.widths import content_bytes
from joinengine.results.staging import ParquetFile
from joinengine.sources.places import Piece
from joinengine.sources.projection import is_refused
from joinengine.wire.reports import RouteReport
from joinengine.world.storage import tagged
from joinengine.world.world import World

#: Rows that are routed together. With more rows, instances get fewer and longer slices; with fewer
#: rows a task needs less memory.
ROUTE_ROWS = 1 << 18
#: Rows that are routed together take up at most this part of a task's memory: about four copies of
#: them are in memory.
ROUTE_PART = 0.25


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """The instructions of all route tasks of a batch: per source, the roles of its tuples.

    `serials`: how many serial numbers the tasks of earlier batches have taken.
    `unordered`: the sources whose rows may come in another order if a route task runs again.
    `memory_bytes`: how many bytes of tuples a task may hold.
    """

    batch: int
    serials: int
    roles: Mapping[int, tuple[Role, ...]]
    exchange: Through
    memory_bytes: int
    unordered: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Portion:
    """What one route task reads, in order: (source, pieces of it that are read in one go)."""

    files: tuple[tuple[int, tuple[Piece, ...]], ...]


class RouteTask:
    """Routes the tuples that one task reads.

    `sorts`: the task holds all its tuples and routes them in the order of their content. Then a
    second attempt routes alike, in whatever order the tuples arrive.
    """

    def __init__(
        self,
        plan: RoutePlan,
        partition: int,
        exchange: Exchange,
        world: World,
        *,
        sorts: bool = False,
    ) -> None:
        self._plan = plan
        self._world = world
        self._exchange = exchange
        self._sorts = sorts
        self._most_bytes = max(int(plan.memory_bytes * ROUTE_PART), 1)
        self._writers: dict[int, list[BlockWriter]] = {}
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._seconds = {"read": 0.0, "route": 0.0}
        self._aside: ParquetFile | None = None
        self.report = RouteReport(partition)

    def add(self, source: int, batches: Iterable[pa.RecordBatch]) -> Iterator[None]:
        """Route all of `batches`, which are tuples of `source`; yields after each routed piece."""
        iterator = iter(batches)
        while True:
            start = self._world.timer_s()
            batch = next(iterator, None)
            self._seconds["read"] += self._world.timer_s() - start
            if batch is None:
                return
            if is_refused(batch):
                self._set_aside(source, batch)
                continue
            self.report.source_rows += batch.num_rows
            waiting = self._waiting.setdefault(source, [])
            if self._sorts:
                waiting.append(batch)
                continue
            for piece in self._pieces(batch):
                waiting.append(piece)
                rows, size = sum(b.num_rows for b in waiting), sum(b.nbytes for b in waiting)
                if rows >= ROUTE_ROWS or size >= self._most_bytes:
                    self._route(source)
                    yield
                    waiting = self._waiting[source]

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """A batch, cut into pieces if it is too large to be routed at once."""
        pieces = max(1, -(-batch.nbytes // self._most_bytes))
        step = max(1, -(-batch.num_rows // pieces))
        for start in range(0, max(batch.num_rows, 1), step):
            yield batch.slice(start, step)

    def _set_aside(self, source: int, refused: pa.RecordBatch) -> None:
        """Keep messages that have become no tuples, if the user wants a side output."""
        role = self._plan.roles[source][0]  # `aside` is the same for all roles
        if role.aside is not None and self._aside is None:
            name = tagged(role.generation, f"messages-{self._world.nonce()}.parquet")
            aside = self._world.storage(role.aside, fsync=role.fsync)
            self._aside = ParquetFile(aside, name)
        if self._aside is not None:
            self._aside.add(refused.replace_schema_metadata())

    def close(self) -> RouteReport:
        """Route the last tuples, close the blocks, and report."""
        if self._aside is not None:
            self.report.refused = self._aside.close()
        for source in self._waiting:
            self._route(source)
        for writers in self._writers.values():
            for writer in writers:
                block = writer.close()
                self.report.inputs.append(writer.report)
                if block is not None:
                    self.report.blocks.append(block)
        wrote = sum(writer.write_s for writers in self._writers.values() for writer in writers)
        self._seconds["route"] -= wrote
        self.report.seconds = self._seconds | {"exchange": wrote}
        return self.report

    def _route(self, source: int) -> None:
        start = self._world.timer_s()
        batches, self._waiting[source] = self._waiting[source], []
        for batch in self._together(batches):
            for writer in self._writers_of(source):
                writer.add(batch)
        self._seconds["route"] += self._world.timer_s() - start

    def _together(self, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows: as one batch or, if the task sorts, in order and in batches that fit."""
        if not batches:
            return
        if not self._sorts or not any(batch.num_rows for batch in batches):
            yield batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            return
        order = np.argsort(
            np.concatenate([content_hashes(batch.columns) for batch in batches]), kind="stable"
        )
        starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
        # Each attempt must cut alike, however its rows arrived in batches.
        size = sum(content_bytes(column) for batch in batches for column in batch.columns)
        fitting = len(order) * self._most_bytes // max(size, 1)
        step = max(min(fitting, ROUTE_ROWS), 1)
        for first in range(0, len(order), step):
            rows = order[first : first + step]
            numbers = np.searchsorted(starts, rows, side="right") - 1
            by_batch = np.argsort(numbers, kind="stable")
            back = np.empty(len(rows), np.int64)
            back[by_batch] = np.arange(len(rows))
            taken = [
                batches[number].take(pa.array(rows[numbers == number] - starts[number]))
                for number in distinct(numbers).tolist()
            ]
            yield pa.concat_batches(taken).take(pa.array(back))

    def _writers_of(self, source: int) -> list[BlockWriter]:
        if source not in self._writers:
            partition = self.report.partition
            origin = Origin(self._plan.batch, partition, self._plan.serials + partition)
            self._writers[source] = [
                BlockWriter(role, self._exchange, origin, self._world)
                for role in self._plan.roles[source]
            ]
        return self._writers[source]
