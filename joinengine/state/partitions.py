"""Tracks how far event time has come in each partition of a source, and which partitions count.

Why: the tuples of one partition arrive in order, but those of different partitions do not. If the
greatest event time of all decided what is late, the rows of a partition that is read later would be
late. So the partition with the least event time decides. A partition that brings nothing does not
hold the others up for ever: after `idle_s` it no longer counts, if nothing in it waits to be read.

Law: a partition that has something to read, or has brought something lately, counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of a source, by number.

    `clocks`: greatest event time (us), and since when nothing has come (seconds since the epoch).
    `behind`: how many messages wait. `read`: the timestamp of the last message read (seconds since
    the epoch), for partitions that have brought one.
    """

    idle_s: float
    clocks: Mapping[int, tuple[float, float]]
    behind: Mapping[int, int]
    read: Mapping[int, float] = field(default_factory=dict)

    def slowest(self, now_s: float) -> float:
        """The least event time (us) of the partitions that count; inf if none does."""
        active = [newest for newest, since in self.clocks.values() if now_s - since < self.idle_s]
        return min(active, default=math.inf)

    def due(self, now_s: float) -> float | None:
        """When a slow partition next ceases to count, and so moves the watermark; None: never."""
        newest = max((newest_there for newest_there, _ in self.clocks.values()), default=-math.inf)
        moments = [
            since + self.idle_s
            for newest_there, since in self.clocks.values()
            if newest_there < newest and since + self.idle_s > now_s
        ]
        return min(moments, default=None)

    def lag_s(self, partition: int, now_s: float) -> float | None:
        """The age at most of the oldest waiting message; 0: none waits; None: unknown.

        That message is not older than the last one read.
        """
        if not self.behind.get(partition):
            return 0.0
        return max(0.0, now_s - self.read[partition]) if partition in self.read else None

    def to_json(self) -> list[Any]:
        """The plain values that a manifest holds."""
        rows = [
            [
                *(number, None if math.isinf(newest) else newest, since),
                *(self.behind.get(number, 0), self.read.get(number)),
            ]
            for number, (newest, since) in self.clocks.items()
        ]
        return [self.idle_s, rows]

    @classmethod
    def from_json(cls, fields: list[Any]) -> Partitions:
        """The inverse of `to_json`."""
        clocks, behind = dict[int, tuple[float, float]](), dict[int, int]()
        read = dict[int, float]()
        for number, newest, since, waiting, *stamp in fields[1]:
            clocks[number] = -math.inf if newest is None else newest, since
            behind[number] = waiting
            if stamp and stamp[0] is not None:
                read[number] = stamp[0]
        return cls(fields[0], clocks, behind, read)


#: Source -> its partitions, of sources that have any.
BySource = Mapping[int, Partitions]
