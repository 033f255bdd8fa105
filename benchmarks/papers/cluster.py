"""A cluster in this process: the engine's own driver and tasks, with an emulated clock.

Why: the papers' figures show tuples a second over an hour on tens of machines. Here each task has a
machine of its own: tasks run one after another, and the clock goes on by the longest of them.
Emulated work moves the clock and lets nobody wait, so an hour passes in seconds, and figures of
emulated work are the same in every run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from joinengine.driver.records import BatchRecord
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.lab.inline.inline_runs import Frame
from joinengine.lab.tpch.stream import RecordedStream
from joinengine.world.world import Machine

#: Where the clock begins, in seconds since the epoch.
_BEGIN_S = 1_700_000_000.0


class Clock(Machine):
    """The cluster's time: emulated work, and with `measures` the processor time of this process."""

    def __init__(self, *, measures: bool = False) -> None:
        self._measures = measures
        self._at_s, self._mark_s = 0.0, time.process_time()

    @override
    def timer_s(self) -> float:
        now_s = time.process_time()
        if self._measures:
            self._at_s += now_s - self._mark_s
        self._mark_s = now_s
        return self._at_s

    @override
    def now_s(self) -> float:
        return _BEGIN_S + self.timer_s()

    @override
    def sleep(self, seconds: float) -> None:
        self._at_s = self.timer_s() + seconds

    def turn_to(self, at_s: float) -> None:
        """Set the clock, also to an earlier time."""
        self.timer_s()
        self._at_s = at_s

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """In the block, the clock stands still."""
        at_s = self.timer_s()
        yield
        self.turn_to(at_s)


@dataclass
class Cluster(InlineJobs):
    """A machine for each of `parallelism` tasks; what is emulated beside the engine's own options.

    `backed_s`: seconds for each tuple that an instance keeps as a backup. `moved_s`: for each that
    it gets by a move. `sent_s`: for each tuple that is sent to the operator, which upstream does
    while instances work. `timeout_s`: from the loss of an instance until it is noticed;
    `resent_s`: then for each tuple of its state, which is sent again.
    """

    world: Clock = field(default_factory=Clock)
    backed_s: float = 0.0
    moved_s: float = 0.0
    sent_s: float = 0.0
    timeout_s: float = 0.0
    resent_s: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        self._begun_s, self._ended_s = 0.0, list[float]()
        self.step = self._ended

    def _ended(self, name):
        """A task is done: the next one begins when it began."""
        if name == "joined":
            self._ended_s.append(self.world.timer_s())
            self.world.turn_to(self._begun_s)

    def _routed(self, frame, plan):
        with self.world.stopped():
            return super()._routed(frame, plan)

    def run(self, operator, tasks):
        """The reports of tasks, once the last of them is done."""
        self._begun_s, self._ended_s = self.world.timer_s(), []
        reports = super().run(operator, tasks)
        ends = dict(zip((one.header.task for one in tasks), self._ended_s, strict=True))
        done_s = max(ends[one.task] + self._besides_s(one) for one in reports)
        sent = sum(sum(one.received) for report in reports for one in report.instances.values())
        self.world.turn_to(max(done_s, self._begun_s + self.sent_s * sent))
        lost = {instance for one in reports for instance in one.lost}
        if lost:
            held = {
                run.ident: run.live
                for task in tasks
                for place, runs in task.stored.runs.items()
                if place[0] in lost
                for run in runs
            }
            self.world.sleep(self.timeout_s + self.resent_s * sum(held.values()))
        return reports

    def _besides_s(self, report):
        backed = sum(sum(one.backed) for one in report.instances.values())
        moved = sum(one.moved_rows for one in report.changes.values())
        return self.backed_s * backed + self.moved_s * moved


def recorded_frames(recorded: RecordedStream, tables: Sequence[str], batches: int) -> list[Frame]:
    """The tables of a recorded stream, each cut into as many pieces of equal length."""
    found = list[list[pa.RecordBatch]]([] for _ in range(batches))
    for table in tables:
        whole = pq.read_table(recorded.folder / table).combine_chunks().to_batches()[0]
        cuts = [whole.num_rows * number // batches for number in range(batches + 1)]
        for number, frame in enumerate(found):
            frame.append(whole.slice(cuts[number], cuts[number + 1] - cuts[number]))
    return list(found)


def seconds_of(records: Iterable[BatchRecord]) -> list[float]:
    """What each batch took, in the cluster's seconds."""
    return [record.seconds["elapsed_s"] for record in records]
