"""Simulated tasks: they answer as the engine's own would, and touch no tuple.

A join task seals one run for each of its instances and sides, merges runs of like size four at a
time, as `joinengine.state.spine` does, and counts the keys that it is asked for. What the workers
would do (decode instructions, make and encode a report) is not the driver's: `outside` measures it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from typing_extensions import override

from joinengine.balancing.counting import Asked
from joinengine.balancing.statistics import KeyCounts
from joinengine.driver.jobs import Jobs
from joinengine.exchange.codec import decode, encode
from joinengine.exchange.reports import (
    Block,
    HotKey,
    InputReport,
    InstanceReport,
    OperatorReport,
    RouteReport,
)
from joinengine.exchange.route import RoutePlan
from joinengine.model.keys import Side
from joinengine.operators.base import Operator, OperatorTask
from joinengine.operators.hot import MOST_NAMED
from joinengine.state.keeper import Changes
from joinengine.state.operator_state import STATE
from joinengine.state.run import Run
from joinengine.state.spine import FAN_IN
from joinengine.world.storage import StoredFile, tagged

#: Tuples that an instance gets from each side in a batch, and their bytes.
ROWS, ROW_BYTES = 1000, 40
#: Event time of a batch, in microseconds.
BATCH_US = 1_000_000
#: Heavy keys that an instance reports beside those that it is asked for.
HEAVY = 32


@dataclass
class SimulatedJobs(Jobs):
    """Tasks that make reports; `seconds` and `sizes`: what the driver has spent on them.

    `hot`: instances whose heavy keys bring so many times as much.
    """

    tasks: int
    instances: int
    hot: dict[int, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    sizes: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    @override
    def parallelism(self) -> int:
        return self.tasks

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Charge the processor's time inside to a part."""
        start = time.process_time()
        yield
        self.seconds[part] += time.process_time() - start

    @override
    def route(self, frame: Any, plan: RoutePlan) -> list[RouteReport]:
        """A block for each task and side, of one record batch."""
        with self.timed("instructions"):
            self.sizes["instructions"] += len(encode(plan))
        with self.timed("outside"):
            answers = [encode(self._routed(plan, task)) for task in range(self.tasks)]
        return self._decoded(answers, RouteReport)

    @override
    def logged(self, batch: int) -> dict[str, str]:
        return {}

    @override
    def read_tables(self, plan: RoutePlan) -> list[RouteReport]:
        raise AssertionError("there is no table")

    @override
    def run(self, operator: Operator, tasks: Sequence[OperatorTask]) -> list[OperatorReport]:
        """The reports of all tasks."""
        with self.timed("instructions"):
            self.sizes["instructions"] += sum(len(encode(task)) for task in tasks)
        with self.timed("outside"):
            answers = [encode(self._joined(task)) for task in tasks]
        return self._decoded(answers, OperatorReport)

    def _decoded(self, answers: list[bytes], kind: Any) -> list[Any]:
        with self.timed("reports"):
            self.sizes["reports"] += sum(map(len, answers))
            return [decode(answer, kind) for answer in answers]

    def _routed(self, plan: RoutePlan, task: int) -> RouteReport:
        bounds = np.arange(self.instances + 1) * (ROWS // self.tasks + 1)
        rows = int(bounds[-1])
        newest = BATCH_US * (plan.batch + 1) - 1
        report = RouteReport(task, 2 * rows, seconds={"read": 0.1, "route": 0.1, "exchange": 0.1})
        for side in Side:
            name = f"block-0-{side.value}-{plan.batch:08d}{task:04d}.arrow"
            report.blocks.append(Block(0, side, name, (bounds,)))
            report.inputs.append(InputReport(0, side, rows, 0, 0, newest, rows))
        return report

    def _joined(self, task: OperatorTask) -> OperatorReport:
        header = task.header
        report = OperatorReport(header.task, seconds={"probe": 0.1, "store": 0.1, "sort": 0.1})
        changes = Changes()
        for side in Side:
            name = f"run-{header.batch:08d}-{header.operator}-{side.value}-{header.task}.arrow"
            name = tagged(header.generation, name)
            parts = 0
            for instance in header.hosted:
                spine = task.stored.runs.get((instance, side), ())
                for run in _sealed(spine, name, parts, side, instance, header.batch, changes):
                    changes.change(run)
                    parts += 1
            changes.files.append(StoredFile(name, parts * ROWS * ROW_BYTES, 1 << 31))
        report.changes[STATE] = changes
        for instance in header.hosted:
            here = InstanceReport([ROWS, ROWS], [ROWS, ROWS], busy_s=0.1, results=ROWS)
            asked = None if header.counted is None else header.counted[instance]
            if asked is not None:
                counts, more = self._counted(instance, asked)
                here.stored = [ROWS + more, ROWS]
                report.keys.append(counts)
            report.instances[instance] = here
            report.hot += [HotKey(key, (9, 9), None) for key in _own(instance, self.instances)]
        del report.hot[MOST_NAMED:]
        return report

    def _counted(self, instance: int, asked: Asked) -> tuple[KeyCounts, int]:
        """The counts of an instance, and how many tuples its heavy keys bring beyond ROWS."""
        many = max(1, round(ROWS / (2 * HEAVY) * self.hot.get(instance, 1.0)))
        own = np.array(_own(instance, self.instances), np.uint64)
        hashes = np.concatenate([own, np.setdiff1d(asked.listed, own)])
        n = len(hashes)
        stored = np.where(np.arange(n) < HEAVY, many, 0)
        held = stored + 5
        both = [np.concatenate([one, one]) for one in (hashes, held)]
        sides = np.repeat([0, 1], n)
        quiet = np.where(np.arange(n) < HEAVY, ROWS // (2 * HEAVY), 0)
        counts = KeyCounts(
            *(np.full(2 * n, instance), sides, both[0]),
            np.concatenate([stored, quiet]),
            both[1],
        )
        return counts, int(stored.sum() - quiet.sum())


def _own(instance: int, instances: int) -> list[int]:
    """The heavy keys of an instance, which is their base home."""
    return [number * instances * (1 << 20) + instance for number in range(1, HEAVY + 1)]


def _sealed(
    spine: Sequence[Run],
    file: str,
    part: int,
    side: Side,
    instance: int,
    batch: int,
    changes: Changes,
) -> Iterator[Run]:
    """The run of a batch, and one merged of those that are four of a size; the inputs go."""
    by_size = defaultdict[int, list[Run]](list)
    for run in spine:
        by_size[run.rows.bit_length() // 2].append(run)
    oldest, newest = BATCH_US * batch, BATCH_US * (batch + 1) - 1

    def made(rows: int, oldest: int, newest: int, number: int) -> Run:
        size, group = rows * ROW_BYTES, batch << 20 | part + number
        return Run(
            *(file, part + number, side, instance, 0, rows, size, group),
            min_time=oldest,
            max_time=newest,
            settled_time=newest,
        )

    yield made(ROWS, oldest, newest, 0)
    # Not all instances merge in the same batch.
    full = [runs for _, runs in sorted(by_size.items()) if len(runs) >= FAN_IN + instance % FAN_IN]
    if full:
        inputs = full[0][:FAN_IN]
        for run in inputs:
            changes.remove(run)
        first, last = (min(r.min_time or 0 for r in inputs), max(r.max_time or 0 for r in inputs))
        yield made(sum(run.rows for run in inputs), first, last, 1)
