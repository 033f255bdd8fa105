"""Portions of a batch, read as they are asked for, or before.

Why: while the driver commits a batch, and cleans up behind it, no task of the query works. What
the next batch brings is known by then, as a rule, and to read it writes nothing.
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

#: Of what a task may hold, as much may wait that was read ahead.
AHEAD_PART = 0.125
#: The tuples of one file, and of which source they are.
_File = tuple[int, Iterator[pa.RecordBatch]]


def read_portion(
    readings: Mapping[int, Projection], portion: Portion, report: RouteReport
) -> Iterator[_File]:
    """The files of a portion, to be read one after the other; `report` gets what is left out."""
    for source, groups in portion.files:
        seen = report.newest.setdefault(source, Seen())
        yield source, readings[source].batches(groups, report.skipped, seen)


class ReadAhead:
    """The files of a portion, of which the first `most_bytes` or so are in memory.

    `portion`: encoded. Raises what reading it raises.
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
        """The report of the task that has routed them, with what was found and done here."""
        report.skipped += self._found.skipped
        report.newest |= self._found.newest
        report.seconds["read"] += self._read_s
        return report
