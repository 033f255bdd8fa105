"""Where the results of one task go: nowhere, into files for a sink, or into the next operator.

Why: results come in many small pieces (one for each instance, side and run). They are gathered
into batches of useful size before they are written or routed; at most one such batch is in memory.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from joinengine.exchange.blocks import BlockWriter, Origin, Role
from joinengine.exchange.reports import OperatorReport
from joinengine.kernels.hashing import multiset_checksum
from joinengine.state.storage import StoredFile, seal, tagged

#: Rows that are gathered before they leave.
BATCH_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class Discard:
    """Results are made and dropped."""


@dataclass(frozen=True, slots=True)
class ToParquet:
    """Results are staged in `folder` as Parquet, for the driver of `generation`."""

    folder: str
    generation: int
    fsync: bool = False


@dataclass(frozen=True, slots=True)
class ToOperator:
    """Results are the tuples of `role` in a later operator."""

    role: Role
    folder: str
    origin: Origin


Target = Discard | ToParquet | ToOperator


class _Writer(Protocol):
    def write(self, batch: pa.RecordBatch) -> None:
        """Take over a batch."""

    def close(self, report: OperatorReport) -> None:
        """Finish, and enter the files or the block into `report`."""


class Results:
    """Gathers the results of one task and hands them to its target."""

    def __init__(self, target: Target, schema: pa.Schema, *, checksum: bool) -> None:
        self._schema = schema
        self._checksum = checksum
        self._writer = _writer(target, schema)
        self._waiting = list[pa.RecordBatch]()
        self._waiting_rows = 0
        self._sum = 0
        self.rows = 0
        self._left_at = list[tuple[float, int]]()

    def add(self, columns: list[pa.Array]) -> None:
        """Take over some results, as columns of the output schema."""
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self.rows += batch.num_rows
        if self._waiting_rows >= BATCH_ROWS:
            self._flush()

    def close(self, report: OperatorReport) -> None:
        """Hand over the last results, and enter files and counts into `report`."""
        self._flush()
        self._writer.close(report)
        report.result_rows = self.rows
        report.result_checksum = self._sum
        report.left_at = self._left_at

    def _flush(self) -> None:
        if not self._waiting_rows:
            return
        batch = pa.concat_batches(self._waiting)
        if self._checksum:
            self._sum = (self._sum + multiset_checksum(batch.columns)) % (1 << 64)
        self._writer.write(batch)
        self._left_at.append((time.time(), batch.num_rows))
        self._waiting, self._waiting_rows = [], 0


def _writer(target: Target, schema: pa.Schema) -> _Writer:
    match target:
        case Discard():
            return _Nowhere()
        case ToParquet():
            return _Parquet(target, schema)
        case ToOperator():
            return _NextOperator(target)


class _Nowhere:
    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def close(self, report: OperatorReport) -> None:
        pass


class _Parquet:
    def __init__(self, target: ToParquet, schema: pa.Schema) -> None:
        self._target = target
        self._schema = schema
        self._path = Path(target.folder) / tagged(target.generation, f"{uuid.uuid4().hex}.parquet")
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Results of joins are wide and repeat values: a light codec halves the bytes cheaply.
            # Decimals as integers, as Spark writes them, cost a third to read.
            self._writer = pq.ParquetWriter(
                str(self._path), self._schema, compression="snappy", store_decimal_as_integer=True
            )
        self._writer.write_batch(batch)

    def close(self, report: OperatorReport) -> None:
        if self._writer is not None:
            self._writer.close()
            stored: StoredFile = seal(self._path, fsync=self._target.fsync)
            report.result_files.append(stored)


class _NextOperator:
    def __init__(self, target: ToOperator) -> None:
        self._blocks = BlockWriter(target.role, Path(target.folder), target.origin)

    def write(self, batch: pa.RecordBatch) -> None:
        self._blocks.add(batch)

    def close(self, report: OperatorReport) -> None:
        report.next_block = self._blocks.close()
        report.next_input = self._blocks.report
