"""The exchange: carries routed tuples from route tasks to the tasks of an operator.

Why an interface: if all executors see one folder, blocks are files that the reader maps into
memory. If they share nothing, Spark's own shuffle carries the tuples
(`joinengine.exchange.packets`; docs/decisions/0016). A task that routes has an outbox, a task that
joins reads blocks, and neither depends on the kind of exchange.

Law: each delivery that is put into an outbox arrives once, whatever the exchange.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from joinengine.kernels.scattering import Groups, group_rows
from joinengine.model.errors import DamagedState
from joinengine.model.keys import Side
from joinengine.model.named import one_of
from joinengine.wire.reports import Block
from joinengine.world.buckets import is_url
from joinengine.world.local import writing
from joinengine.world.storage import Storage
from joinengine.world.world import World


class ExchangeKind(StrEnum):
    """What carries routed tuples: files in a folder that all executors see, or Spark's shuffle."""

    FILES = "files"
    SHUFFLE = "shuffle"


def chosen_exchange(asked: str | None, state: str | None = None) -> ExchangeKind:
    """The exchange of a query. `asked`: the name that the user gives; None: not given.

    `state`: where the state lies. In an object store, the default is the shuffle, since each block
    would take several requests. Raises InvalidRequest for an unknown name.
    """
    if asked is not None:
        return one_of(ExchangeKind, asked, "exchange")
    return ExchangeKind.SHUFFLE if state is not None and is_url(state) else ExchangeKind.FILES


@dataclass(frozen=True, slots=True)
class ThroughFiles:
    """Blocks of a batch are files in `folder`."""

    folder: str


@dataclass(frozen=True, slots=True)
class ThroughShuffle:
    """Blocks of a batch are cut into packets: tuples for instance i go to task i modulo `tasks`."""

    tasks: int


Through = ThroughFiles | ThroughShuffle


def through(kind: ExchangeKind, tasks: int, folder: Storage) -> Through:
    """The exchange of a new batch, whose operators have at most `tasks` tasks each.

    Creates `folder` if blocks are files.
    """
    match kind:
        case ExchangeKind.FILES:
            folder.make()
            return ThroughFiles(folder.folder)
        case ExchangeKind.SHUFFLE:
            return ThroughShuffle(tasks)


class Address(NamedTuple):
    """The side of an operator to which the task `sender` of a batch sends tuples.

    `instances`: how many numbers the receiving instances and watchers share.
    """

    operator: int
    side: Side
    sender: int
    instances: int


class Outbox(Protocol):
    """Takes the tuples that one task has routed to one side of an operator."""

    @abstractmethod
    def group(self, instances: NDArray[np.integer]) -> Groups:
        """(n,) instance of each tuple -> the order in which `put` takes the tuples, with bounds."""

    @abstractmethod
    def put(self, batch: pa.RecordBatch, bounds: NDArray[np.int64]) -> None:
        """Take tuples in the order and with the bounds that `group` gave."""

    @abstractmethod
    def close(self) -> Block | None:
        """The block for the report; None: nothing was put."""


class Exchange(Protocol):
    """One task's share in the exchange of a batch."""

    @abstractmethod
    def outbox(self, address: Address) -> Outbox:
        """A new outbox."""

    @abstractmethod
    def batches(self, block: Block) -> Sequence[pa.RecordBatch]:
        """The record batches of a block, one for each of its bounds."""


class FileExchange(Exchange):
    """Blocks are Arrow files, which a reader maps into memory.

    The report of the attempt that won names its blocks. So all readers see the same attempt, even
    if a source is not repeatable.
    """

    def __init__(self, storage: Storage, world: World) -> None:
        self._storage = storage
        self._nonce = world.nonce
        self._open: dict[str, list[pa.RecordBatch]] = {}

    @override
    def outbox(self, address: Address) -> Outbox:
        return _File(address, self._storage, self._nonce())

    @override
    def batches(self, block: Block) -> Sequence[pa.RecordBatch]:
        if block.file not in self._open:
            content = self._storage.map(block.file)
            try:
                reader = pa.ipc.open_file(content)
                batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            except pa.ArrowInvalid as error:
                raise DamagedState(
                    f"block {self._storage.folder}/{block.file} of the exchange is truncated or "
                    f"was altered ({error}), so its batch is not committed; start the query again"
                ) from None
            self._open[block.file] = batches
        return self._open[block.file]


class _File(Outbox):
    """A file whose record batches are sorted by instance."""

    def __init__(self, address: Address, storage: Storage, nonce: str) -> None:
        self._address = address
        self._storage = storage
        self._name = f"block-{address.operator}-{address.side}-{nonce}.arrow"
        self._writer: Any = None
        self._bounds = list[NDArray[np.int64]]()

    @override
    def group(self, instances: NDArray[np.integer]) -> Groups:
        return group_rows(instances, self._address.instances)

    @override
    def put(self, batch: pa.RecordBatch, bounds: NDArray[np.int64]) -> None:
        with writing(f"{self._storage.folder}/{self._name}"):
            if self._writer is None:
                self._sink = self._storage.output(self._name)
                self._writer = pa.ipc.new_file(self._sink, batch.schema)
            self._writer.write_batch(batch)
        self._bounds.append(bounds)

    @override
    def close(self) -> Block | None:
        if self._writer is None:
            return None
        with writing(f"{self._storage.folder}/{self._name}"):
            self._writer.close()
            self._sink.close()
        operator, side, *_ = self._address
        return Block(operator, side, self._name, tuple(self._bounds))
