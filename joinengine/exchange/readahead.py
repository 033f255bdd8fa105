"""Reads the portions of a batch when the batch runs, or ahead of it.

Why: while the driver commits a batch and cleans up, the tasks of the query are idle. By then it is
usually known what the next batch will read, and reading writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import pyarrow as pa

from joinengine.exchange.route import Portion
from joinengine.sources.places import Seen
from joinengine.sources.projection import Projection
from joinengine.wire.codec import decode
from joinengine.wire.reports import RouteReport
from joinengine.world.world import World

#: The part of a task's memory for tuples that are read ahead.
AHEAD_PART = 0.125
#: A source, and the tuples of one of its files.
_File = tuple[int, Iterator[pa.RecordBatch]]


def read_portion(
    readings: Mapping[int, Projection], portion: Portion, report: RouteReport
) -> Iterator[_File]:
    """The files of a portion, to be read one by one; `report` gets the skipped files."""
    for source, groups in portion.files:
        seen = report.newest.setdefault(source, Seen())
        yield source, readings[source].batches(groups, report.skipped, seen)


class ReadAhead:
    """The files of a portion; about the first `most_bytes` of them are already in memory.

    `portion`: encoded. Raises the errors of reading it.
    """

    def __init__(
        self, readings: Mapping[int, Projection], portion: bytes, most_bytes: int, world: World
    ) -> None:
        start = world.timer_s()
        self.portion = portion
        self._found = RouteReport(0)
        self.files = list(read_portion(readings, decode(portion, Portion), self._found))
        for number, (source, tuples) in enumerate(self.files):
            read = list[pa.RecordBatch]()
            while most_bytes > 0 and (batch := next(tuples, None)) is not None:
                read.append(batch)
                most_bytes -= batch.nbytes
            self.files[number] = source, chain(read, tuples)
        self._read_s = world.timer_s() - start

    def told(self, report: RouteReport) -> RouteReport:
        """The report of the task that has routed the files, with the counts and times of here."""
        report.skipped += self._found.skipped
        report.newest |= self._found.newest
        report.seconds["read"] += self._read_s
        return report
