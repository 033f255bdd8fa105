"""A run of a query without Spark.

Why: it measures the seconds of single instances, has as many tasks as instances, and allows
hundreds of runs in an hour. It lacks the time that Spark adds to a batch, which `make bench-peers`
measures.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
from typing_extensions import override

from joinengine.driver.batch import BatchRunner
from joinengine.driver.records import BatchRecord
from joinengine.driver.settings import Settings
from joinengine.kernels.allocating import keep_freed_memory
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts.layout import LayoutChoice
from joinengine.operators.base import QuerySpec
from joinengine.results.delivery import Delivery
from joinengine.results.sinks import DiscardSink
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Handed
from joinengine.world.world import MACHINE, Machine, World

#: Per source the tuples of a batch.
Frame = Sequence[pa.RecordBatch]
#: How many route tasks share a batch.
ROUTERS = 2


class OnProcessor(Machine):
    """The machine, with a timer that stands still while other programs have the processor."""

    @override
    def timer_s(self) -> float:
        return time.process_time()


class TimeUp(Exception):
    """A run has reached its time limit."""


class On(NamedTuple):
    """Where a run takes place. `world`: its timer measures the steps and the limit.

    `tasks`: how many tasks host the instances; None: one each. `most_s`: the limit in seconds.
    """

    world: World = MACHINE
    tasks: int | None = None
    most_s: float = math.inf


_HERE = On()


def run(
    query: QuerySpec,
    choice: LayoutChoice,
    batches: Iterable[Frame],
    settings: Settings | None = None,
    tables: Mapping[int, pa.RecordBatch] | None = None,
    on: On = _HERE,
) -> list[BatchRecord]:
    """The records of all batches.

    `tables`: source -> the rows of a table; tables are numbered after all streams.

    Raises TimeUp after the first task that ends beyond the limit.
    """
    keep_freed_memory()  # as workers do
    world = on.world
    end = world.timer_s() + on.most_s

    def step(_: str) -> None:
        if world.timer_s() > end:
            raise TimeUp(f"a run of {choice.label} has taken more than {on.most_s:g} s")

    jobs = InlineJobs(on.tasks or query.operators[0].instances, step=step, world=world)
    jobs.tables = [list((tables or {}).items())]
    return run_on(jobs, query, [choice] * len(query.operators), batches, settings)


def run_on(
    jobs: InlineJobs,
    query: QuerySpec,
    choices: Sequence[LayoutChoice],
    batches: Iterable[Frame],
    settings: Settings | None = None,
) -> list[BatchRecord]:
    """The records of all batches, by the clock of `jobs`; `choices`: one for each operator."""
    records = list[BatchRecord]()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        checkpoint = Checkpoint.below(folder, world=jobs.world)
        checkpoint.create()
        asked = replace(settings or Settings(), exchange=jobs.exchange)
        delivery = Delivery(checkpoint, DiscardSink())
        runner = BatchRunner(jobs, query, choices, checkpoint, "q", delivery, asked)
        runner.observe(records.append)
        runner.recover()
        for number, frame in enumerate(batches):
            dealt = [dealt_to(frame, router) for router in range(ROUTERS)]
            runner.take(dealt, Handed("", number, ""), dict)
    return records


def dealt_to(frame: Frame, router: int) -> list[tuple[int, pa.RecordBatch]]:
    """The tuples of one route task, by source."""
    dealt = list[tuple[int, pa.RecordBatch]]()
    for source, batch in enumerate(frame):
        start, end = (batch.num_rows * number // ROUTERS for number in (router, router + 1))
        dealt.append((source, batch.slice(start, end - start)))
    return dealt
