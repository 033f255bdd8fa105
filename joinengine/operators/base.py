"""What the tasks of every operator have in common: what they are told, and what they work with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from joinengine.exchange.blocks import BlockReader
from joinengine.exchange.reports import Block, JoinReport
from joinengine.exchange.results import Results, Target
from joinengine.kernels.hashing import Words
from joinengine.model.query import Operator
from joinengine.state.keeper import Keeper, Shelf, Upkeep
from joinengine.state.run import RunStore
from joinengine.state.storage import StoredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTask(ABC):
    """The instructions of task `task` of an operator in one batch, for the instances `hosted`.

    `generation` is the driver's: it is in the name of every file that the task writes.

    The watermark is event time in microseconds; `listed` are the keys that the layout wants
    counted, None: no counts. `work_s`: emulated work for each tuple that an instance receives.
    """

    spec: Operator
    batch: int
    task: int
    generation: int
    hosted: tuple[int, ...]
    files: Mapping[str, StoredFile]
    watermark: float
    listed: Words | None
    target: Target
    checksum: bool
    runs_folder: str
    exchange_folder: str
    work_s: float = 0.0
    fsync: bool = False

    @abstractmethod
    def carry_out(self, store: RunStore) -> JoinReport:
        """Do what the batch asks of the hosted instances; `store` opens their runs."""

    def reader(self, blocks: Sequence[Block]) -> BlockReader:
        """Reads what is on its way to the hosted instances."""
        return BlockReader(Path(self.exchange_folder), list(blocks))

    def results(self, schema: pa.Schema) -> Results:
        """Takes results."""
        return Results(self.target, schema, checksum=self.checksum)

    def upkeep(self, shelf: Shelf, version: int = 0, merge_rows: int = 0) -> Upkeep:
        """How the runs of a shelf are kept in this batch."""
        return Upkeep(
            shelf=shelf,
            batch=self.batch,
            task=self.task,
            generation=self.generation,
            version=version,
            watermark=self.watermark,
            merge_rows=merge_rows,
            fsync=self.fsync,
        )

    def keeper(self, upkeep: Upkeep, store: RunStore) -> Keeper:
        """Opens, seals and merges runs."""
        return Keeper(upkeep, Path(self.runs_folder), store, self.files)
