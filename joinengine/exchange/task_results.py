"""Gathers the results of one task, and hands them to a sink, to a later operator, or to nothing.

Why: results come in many small pieces (one for each instance, side and run). They are gathered
into batches of useful size before they are written or routed. At most one such batch is in memory,
of BATCH_ROWS rows or of an eighth of the task's memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa
from typing_extensions import override

from joinengine.exchange.blocks import BlockWriter
from joinengine.exchange.exchange import Exchange
from joinengine.exchange.finishing import Finish
from joinengine.exchange.roles import Origin, Role
from joinengine.results.staging import staged_files
from joinengine.results.targets import Discard, SinkTarget, ToParquet
from joinengine.wire.reports import OperatorReport
from joinengine.world.storage import Storage, tagged
from joinengine.world.world import World

#: Columns of results -> the sum of their hashes, modulo 2^64.
Checksum = Callable[[Iterable[pa.Array]], int]
#: Rows that are gathered before they leave.
BATCH_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class ToOperator:
    """The target of results that are tuples of `role` in a later operator."""

    role: Role
    origin: Origin


Target = SinkTarget | ToOperator


class ResultColumns(NamedTuple):
    """The columns of results. `schema`: as the operator makes them.

    `finish`: the steps before results leave; None: none. `is_changelog`: the last column that
    leaves says how often a row counts.
    """

    schema: pa.Schema
    finish: Finish | None = None
    is_changelog: bool = False


class _Writer(Protocol):
    @abstractmethod
    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Take results, in many small batches that the writer may have to join."""

    @abstractmethod
    def close(self, report: OperatorReport) -> None:
        """Finish, and enter the files or the block into `report`."""


class Results:
    """Gathers the results of one task and hands them to its target."""

    def __init__(
        self,
        target: Target,
        columns: ResultColumns,
        exchange: Exchange,
        world: World,
        *,
        checksum: Checksum | None,
        most_bytes: int,
        fsync: bool,
    ) -> None:
        self._schema, self._finish = columns.schema, columns.finish
        self._now_s = world.now_s
        self._checksum = checksum
        self._writer = _writer(target, exchange, world, fsync=fsync)
        self._waiting = list[pa.RecordBatch]()
        self._waiting_rows = self._waiting_bytes = 0
        self._most_bytes = most_bytes
        self._sum = 0
        #: how many results were made, and their bytes; how many rows have left
        self.rows = self._bytes = self._left = 0
        self._left_at = list[tuple[float, int]]()

    def add(self, columns: list[pa.Array]) -> None:
        """Take some results, as columns of the schema in which they are made."""
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        size = batch.nbytes  # takes some 2 us a column
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += size
        self._bytes += size
        self.rows += batch.num_rows
        if self._waiting_rows >= BATCH_ROWS or self._waiting_bytes >= self._most_bytes:
            self._flush()

    def close(self, report: OperatorReport) -> None:
        """Hand over the last results, and enter files and counts into `report`."""
        self._flush()
        self._writer.close(report)
        report.result_rows = self._left
        report.result_bytes = self._bytes
        report.result_checksum = self._sum
        report.left_at = self._left_at

    def _flush(self) -> None:
        leaving, rows = self._waiting, self._waiting_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        if rows and self._finish is not None:
            leaving = [self._finish.rows(pa.concat_batches(leaving))]
            rows = leaving[0].num_rows
        if not rows:
            return
        if self._checksum is not None:
            # Pieces are small, so they are joined. This is done column by column, so that each
            # column can reuse the memory of the previous one.
            pieces = zip(*(piece.columns for piece in leaving), strict=True)
            columns = map(pa.concat_arrays, pieces)
            self._sum = (self._sum + self._checksum(columns)) % (1 << 64)
        self._writer.write(leaving)
        self._left += rows
        self._left_at.append((self._now_s(), rows))


def _writer(target: Target, exchange: Exchange, world: World, *, fsync: bool) -> _Writer:
    match target:
        case Discard():
            return _Nowhere()
        case ToParquet():
            return _Parquet(target, world.storage(target.folder, fsync=fsync), world.nonce())
        case ToOperator():
            return _NextOperator(target, exchange, world)


class _Nowhere(_Writer):
    @override
    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        pass

    @override
    def close(self, report: OperatorReport) -> None:
        pass


class _Parquet(_Writer):
    def __init__(self, target: ToParquet, staging: Storage, nonce: str) -> None:
        self._files = staged_files(staging, tagged(target.generation, nonce), target.cutting)

    @override
    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._files.add(pa.concat_batches(batches))

    @override
    def close(self, report: OperatorReport) -> None:
        report.result_files += self._files.close()


class _NextOperator(_Writer):
    def __init__(self, target: ToOperator, exchange: Exchange, world: World) -> None:
        self._blocks = BlockWriter(target.role, exchange, target.origin, world)

    @override
    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._blocks.add(pa.concat_batches(batches))

    @override
    def close(self, report: OperatorReport) -> None:
        report.next_block = self._blocks.close()
        report.next_input = self._blocks.report
