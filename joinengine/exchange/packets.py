"""The exchange through a shuffle: tuples travel as packets of bytes, and no folder is shared.

A *packet* holds tuples that one task has put at a time, for the instances of one task of an
operator. It is an Arrow stream, sorted by instance, whose metadata name its origin. The jobs that
run the tasks take the packets from the senders (`sent`) and carry them to the receivers. They may
run a sender again if some of its packets were lost.

Law: a sender that runs again sends the same packets, if its tuples arrive in the same order. So a
receiver may have packets of any attempt of each sender. It reads them in the order of their
senders, in whatever order they arrived.
Cost: one copy into the stream, and the carrier's cost for the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from joinengine.exchange.exchange import (
    Address,
    Exchange,
    FileExchange,
    Outbox,
    Through,
    ThroughFiles,
    ThroughShuffle,
)
from joinengine.kernels.scattering import Groups, group_rows
from joinengine.model.errors import DamagedState
from joinengine.model.keys import Side
from joinengine.wire.reports import Block
from joinengine.world.world import World

_HEAD, _COUNTS = b"joinengine.head", b"joinengine.counts"


class Packet(NamedTuple):
    """Tuples on their way to the task `task` of an operator, as bytes."""

    operator: int
    task: int
    content: bytes


class _Head(NamedTuple):
    """The origin of a packet: the `number`-th `put` of `sender` for this side, part for `task`."""

    operator: int
    side: int
    sender: int
    number: int
    task: int

    @property
    def name(self) -> str:
        """The name of the block that the packet becomes at its receiver; names sort as heads do.

        >>> _Head(0, 1, 2, 3, 4).name
        '0-1-000002-000003-000004'
        """
        return f"{self.operator}-{self.side}-{self.sender:06}-{self.number:06}-{self.task:06}"


class ShuffleExchange(Exchange):
    """The packets of a task: those that have arrived, and those to be sent.

    `tasks`: tuples for instance i go to task i modulo `tasks` of the operator.
    """

    def __init__(self, tasks: int, arrived: Iterable[bytes] = ()) -> None:
        self._tasks = tasks
        self._sent = list[Packet]()
        self._arrived = {head.name: (head, *opened) for head, *opened in map(_opened, arrived)}

    @override
    def outbox(self, address: Address) -> Outbox:
        return _Packets(address, self._tasks, self._sent)

    @override
    def batches(self, block: Block) -> Sequence[pa.RecordBatch]:
        _, _, batch = self._arrived[block.file]
        return [batch]

    def blocks(self, sides: int) -> tuple[tuple[Block, ...], ...]:
        """The blocks that have arrived, per side, in the order of their senders."""
        by_side: list[list[Block]] = [[] for _ in range(sides)]
        for name, (head, counts, _) in sorted(self._arrived.items()):
            bounds = np.concatenate([[0], np.cumsum(counts)])
            by_side[head.side].append(Block(head.operator, Side(head.side), name, (bounds,)))
        return tuple(map(tuple, by_side))

    def check(self, expected: Sequence[int]) -> None:
        """Raise DamagedState unless as many tuples have arrived, per side, as reports say.

        A sender that ran again, but could no longer read its state, has sent nothing.
        """
        for side, (wanted, blocks) in enumerate(
            zip(expected, self.blocks(len(expected)), strict=True)
        ):
            came = sum(int(block.bounds[0][-1]) for block in blocks)
            if came != wanted:
                raise DamagedState(
                    f"{Side(side).name.title()} input: received {came:,} of {wanted:,} rows; "
                    "a retried task produced different rows. Start the query again"
                )

    def sent(self) -> Iterator[Packet]:
        """The packets made since the last call."""
        made = self._sent[:]
        self._sent.clear()
        yield from made


class _Packets(Outbox):
    """Cuts the tuples for one side of an operator into packets, one for each receiving task."""

    def __init__(self, address: Address, tasks: int, sent: list[Packet]) -> None:
        self._address = address
        self._sent = sent
        self._number = 0
        self._rows = np.zeros(tasks, np.int64)
        host = np.arange(address.instances) % tasks
        #: the instances in the order of their tasks, the place of each in it, and bounds of tasks
        self._by_task = np.argsort(host, kind="stable")
        self._places = np.argsort(self._by_task, kind="stable")
        self._ends = np.searchsorted(host[self._by_task], np.arange(tasks + 1))

    @override
    def group(self, instances: NDArray[np.integer]) -> Groups:
        """As in Outbox; the order is by task, then by instance."""
        return group_rows(self._places[instances], self._address.instances)

    @override
    def put(self, batch: pa.RecordBatch, bounds: NDArray[np.int64]) -> None:
        operator, side, sender, instances = self._address
        for task, (first, end) in enumerate(zip(self._ends, self._ends[1:], strict=False)):
            start, stop = int(bounds[first]), int(bounds[end])
            if start == stop:
                continue
            counts = np.zeros(instances, np.int64)
            counts[self._by_task[first:end]] = np.diff(bounds[first : end + 1])
            head = _Head(operator, int(side), sender, self._number, task)
            content = _packed(head, counts, batch.slice(start, stop - start))
            self._sent.append(Packet(operator, task, content))
            self._rows[task] += stop - start
        self._number += 1

    @override
    def close(self) -> Block | None:
        """A block without a name, since packets carry it; its bounds are by task."""
        operator, side, *_ = self._address
        bounds = np.concatenate([[0], np.cumsum(self._rows)])
        return Block(operator, side, "", (bounds,)) if self._number else None


def sender(through: Through, world: World) -> FileExchange | ShuffleExchange:
    """The exchange of a task at which nothing arrives."""
    match through:
        case ThroughFiles(folder):
            return FileExchange(world.storage(folder), world)
        case ThroughShuffle(tasks):
            return ShuffleExchange(tasks)


def forwarded(content: bytes, instances: Collection[int], tasks: int) -> Iterator[Packet]:
    """A packet that has arrived, plus one for each other task with the tuples for `instances`.

    If instances have lost their state, every task needs the tuples on their way to them.
    """
    head, counts, batch = _opened(content)
    yield Packet(head.operator, head.task, content)
    wanted = [
        instance for instance in sorted(instances) if instance < len(counts) and counts[instance]
    ]
    if not wanted:
        return
    ends = np.cumsum(counts)
    kept = np.concatenate(
        [np.arange(ends[instance] - counts[instance], ends[instance]) for instance in wanted]
    )
    left = np.zeros_like(counts)
    left[wanted] = counts[wanted]
    copy = _packed(head, left, batch.take(pa.array(kept)))
    for task in range(tasks):
        if task != head.task:
            yield Packet(head.operator, task, copy)


def _packed(head: _Head, counts: NDArray[np.int64], batch: pa.RecordBatch) -> bytes:
    """The bytes of a packet; `counts`: how many tuples it has for each instance."""
    said = {_HEAD: json.dumps(head).encode(), _COUNTS: counts.astype("<i8").tobytes()}
    sink = pa.BufferOutputStream()
    own = batch.replace_schema_metadata({**(batch.schema.metadata or {}), **said})
    with pa.ipc.new_stream(sink, own.schema) as writer:
        writer.write_batch(own)
    return bytes(sink.getvalue())


def _opened(content: bytes) -> tuple[_Head, NDArray[np.int64], pa.RecordBatch]:
    """The head of a packet, its number of tuples for each instance, and the tuples, not copied."""
    with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
        (batch,) = reader
    said = dict(batch.schema.metadata)
    head = _Head(*json.loads(said.pop(_HEAD)))
    counts = np.frombuffer(said.pop(_COUNTS), "<i8")
    return head, counts, batch.replace_schema_metadata(said or None)
