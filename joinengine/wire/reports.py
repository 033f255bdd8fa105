"""The reports of tasks to the driver: numbers and names, never tuples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nlargest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joinengine.balancing.statistics import KeyCounts
from joinengine.model.keys import Side
from joinengine.model.skipped import Skipped
from joinengine.sources.places import Seen
from joinengine.state.run import Reads
from joinengine.state.upkeep import Changes
from joinengine.world.storage import StoredFile

#: The most capped keys that a task reports, and that a batch records.
MOST_CAPPED = 8
#: Bytes of a number in a report.
NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Block:
    """Routed tuples of one task for one side of one operator; a file, if the exchange uses files.

    Its record batches are sorted by instance; batch c holds instance i in the rows
    bounds[c][i]:bounds[c][i + 1]. Under a shuffle, these bounds travel with the tuples. In a
    report, such a block has no file name, and its bounds are by task, not by instance.
    """

    operator: int
    side: Side
    file: str
    bounds: tuple[NDArray[np.int64], ...]


@dataclass(slots=True)
class InputReport:
    """One side of an operator as one task saw it (a route task, or one of an earlier operator)."""

    operator: int
    side: Side
    rows: int = 0
    null_rows: int = 0
    late_rows: int = 0
    ahead_rows: int = 0
    unknown_change_rows: int = 0
    newest_time: int | None = None
    deliveries: int = 0
    #: the file of refused tuples; None: there are none, or the query has no side output
    refused: StoredFile | None = None

    def see_time(self, time_us: int) -> None:
        """Take note of an event time (us)."""
        self.newest_time = time_us if self.newest_time is None else max(self.newest_time, time_us)


@dataclass(frozen=True, slots=True)
class Lag:
    """`behind`: partition -> how many messages wait after the end of a batch.

    `idle_us`: after so long without messages, a partition does not hold event time up.
    """

    behind: dict[int, int]
    idle_us: int


@dataclass(slots=True)
class RouteReport:
    """One route task: what it read and refused, and its blocks."""

    partition: int
    source_rows: int = 0
    inputs: list[InputReport] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    #: source number -> the event time (us) below which no tuple will follow from it
    progress: dict[int, float] = field(default_factory=dict)
    #: source number -> bytes of a tuple in the widest Arrow batch that Spark handed over
    widths: dict[int, float] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    #: the file of messages that are not tuples; None: there are none, or there is no side output
    refused: StoredFile | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    #: number of a source with partitions -> how far these have come
    newest: dict[int, Seen] = field(default_factory=dict)
    #: number of a source with partitions -> what waits in these
    lags: dict[int, Lag] = field(default_factory=dict)


@dataclass(slots=True)
class InstanceReport:
    """One instance in one batch; lists of two are [left, right]. `backed`: stored as a backup.

    `unbacked`: keys that have their home there and, since an instance was lost, no complete backup.
    `probed`: tuples that have probed, once for each hash and layout version. `candidates`: pairs
    compared; in semi and anti joins, tuples looked at. `seconds`: the measured part of `busy_s`, by
    step (`balancing.costs.STEPS`), and then the rest.
    """

    received: list[int] = field(default_factory=lambda: [0, 0])
    stored: list[int] = field(default_factory=lambda: [0, 0])
    backed: list[int] = field(default_factory=lambda: [0, 0])
    probe_copies: int = 0
    unbacked: int = 0
    probed: int = 0
    candidates: int = 0
    results: int = 0
    busy_s: float = 0.0
    seconds: tuple[float, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """All integers, in the order of the fields; those of lists left, then right."""
        return (
            *(*self.received, *self.stored, *self.backed),
            *(self.probe_copies, self.unbacked, self.probed, self.candidates, self.results),
        )


#: Instance -> its report; a task may have hundreds.
InstanceReports = dict[int, InstanceReport]


class HotKey(NamedTuple):
    """A key that brought many tuples to a task: how many it stored, per side, and the key's value.

    Copies count. `text`: None if values are not shown, or if no tuple at hand has the key.
    """

    hash_: int
    rows: tuple[int, int]
    text: str | None


class CappedKey(NamedTuple):
    """A key with more pairs than its cap: how many were made, how many left out; and its value.

    `text`: None if values are not shown.
    """

    hash_: int
    made: int
    left_out: int
    text: str | None


@dataclass(slots=True)
class OperatorReport:
    """One task of an operator: its work at each instance, and the files that it has written.

    `changes`: per shelf, the changes of its runs. `reads`: the run files that it has opened in an
    object store; None: they lie in a folder. `executor`: where it ran, as Spark names it; None: any
    executor would do. `lost`: instance whose state could not be read -> why; if there are any, the
    task has done nothing.
    """

    task: int
    instances: InstanceReports = field(default_factory=dict)
    changes: dict[str, Changes] = field(default_factory=dict)
    keys: list[KeyCounts] = field(default_factory=list)
    #: heaviest first
    hot: list[HotKey] = field(default_factory=list)
    #: pairs that were left out, and the keys that lost most
    capped_pairs: int = 0
    capped: list[CappedKey] = field(default_factory=list)
    result_files: list[StoredFile] = field(default_factory=list)
    result_rows: int = 0
    result_checksum: int = 0
    result_bytes: int = 0
    #: (seconds since the epoch, rows) for each batch of results that left the task
    left_at: list[tuple[float, int]] = field(default_factory=list)
    #: how many teams of instances the task processed, one after another
    turns: int = 0
    next_input: InputReport | None = None
    next_block: Block | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    reads: Reads | None = None
    executor: str | None = None
    lost: dict[int, str] = field(default_factory=dict)

    @property
    def count_bytes(self) -> int:
        """Bytes of the numbers for planners: the counts of keys, and what each instance stored."""
        keys = sum(column.nbytes for counts in self.keys for column in counts)
        loads = sum(
            len(instance.stored) + len(instance.backed) for instance in self.instances.values()
        )
        return keys + NUMBER_BYTES * loads


class Work(NamedTuple):
    """The work of N instances in a batch, over all tasks: arrays (2, N) by side, or (N,)."""

    received: NDArray[np.int64]
    stored: NDArray[np.int64]
    backed: NDArray[np.int64]
    probe_copies: NDArray[np.int64]
    unbacked: NDArray[np.int64]
    probed: NDArray[np.int64]
    candidates: NDArray[np.int64]
    results: NDArray[np.int64]


def work_of(reports: Iterable[OperatorReport], instances: int) -> Work:
    """The work of instances 0 to `instances` - 1; after a shrink, higher instances only watch."""
    rows = [
        (number, *counts.numbers)
        for report in reports
        for number, counts in report.instances.items()
        if number < instances
    ]
    table = np.array(rows, np.int64).reshape(-1, 12)
    sums = np.zeros((instances, 11), np.int64)
    np.add.at(sums, table[:, 0], table[:, 1:])
    columns = sums.T
    return Work(columns[0:2], columns[2:4], columns[4:6], *columns[6:])


def worst_capped(capped: Iterable[CappedKey]) -> list[CappedKey]:
    """The keys that most pairs are left out of, each once, the worst first."""
    by_hash = dict[int, CappedKey]()
    for key in capped:
        total = by_hash.get(key.hash_, CappedKey(key.hash_, 0, 0, None))
        made, left_out = total.made + key.made, total.left_out + key.left_out
        by_hash[key.hash_] = CappedKey(key.hash_, made, left_out, key.text or total.text)
    return nlargest(MOST_CAPPED, by_hash.values(), key=lambda key: (key.left_out, key.hash_))
