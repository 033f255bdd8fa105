"""Simulated tasks: they report as the engine's own would, and touch no tuple.

A join task seals one run for each of its instances and sides, merges runs of like size four at a
time, as `joinengine.state.spine` does, and counts the keys that the driver asks for. The work of
workers (decode instructions, make and encode a report) is not the driver's: `outside` measures it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from joinengine.balancing.counting import Asked
from joinengine.balancing.statistics import KeyCounts
from joinengine.driver.asking import asked_of
from joinengine.driver.jobs import Jobs
from joinengine.exchange.exchange import ThroughShuffle
from joinengine.exchange.route import RoutePlan
from joinengine.lab.inline.one_process import OneProcess
from joinengine.model.keys import PAIR, Side
from joinengine.operators.base import Operator, OperatorTask
from joinengine.operators.hot import MOST_NAMED
from joinengine.state.manifest import Position
from joinengine.state.operator_state import STATE
from joinengine.state.run import Run
from joinengine.state.spine import FAN_IN
from joinengine.state.upkeep import Changes
from joinengine.wire.codec import decode, encode
from joinengine.wire.reports import (
    Block,
    HotKey,
    InputReport,
    InstanceReport,
    OperatorReport,
    RouteReport,
)
from joinengine.world.storage import StoredFile, tagged

#: Tuples that an instance gets from each side in a batch, and their bytes.
ROWS, ROW_BYTES = 1000, 40
#: Event time of a batch, in microseconds.
BATCH_US = 1_000_000
#: Heavy keys that an instance reports beside those that the driver asks for.
HEAVY = 32


class Worked(NamedTuple):
    """The work of an instance in a batch, per side: tuples received, stored, and sealed in runs.

    `counts`: those of keys; None: the planner needs no counts.
    """

    received: tuple[int, int]
    stored: tuple[int, int]
    sealed: tuple[int, int]
    counts: KeyCounts | None


@dataclass
class SimulatedJobs(OneProcess, Jobs):
    """Tasks that make reports; `seconds` and `sizes`: what the driver has spent on them.

    `hot`: instance -> how many times as many tuples its heavy keys bring.
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
    def route(
        self, frame: Any, plan: RoutePlan, start: Position, end: Position
    ) -> list[RouteReport]:
        """A block for each task and side, of one record batch."""
        with self.timed("instructions"):
            self.sizes["instructions"] += len(encode(plan))
        with self.timed("outside"):
            answers = [encode(self._routed(plan, task)) for task in range(self.tasks)]
        return self._decoded(answers, RouteReport)

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
        """The report of a route task: a block for each side, of the size that instances get."""
        shuffled = isinstance(plan.exchange, ThroughShuffle)
        receivers = self.tasks if shuffled else self.instances
        newest = BATCH_US * (plan.batch + 1) - 1
        sides = [-(-rows // self.tasks) for rows in self.routed_rows()]
        report = RouteReport(task, sum(sides), seconds={"read": 0.1, "route": 0.1, "exchange": 0.1})
        for side, rows in zip(PAIR, sides, strict=True):
            bounds = np.linspace(0, rows, receivers + 1).astype(np.int64)
            name = f"block-0-{side.value}-{plan.batch:08d}{task:04d}.arrow"
            report.blocks.append(Block(0, side, "" if shuffled else name, (bounds,)))
            report.inputs.append(InputReport(0, side, rows, 0, 0, newest, rows))
        return report

    def routed_rows(self) -> tuple[int, int]:
        """How many tuples all route tasks read of each side in a batch."""
        rows = self.instances * ROWS
        return rows, rows

    def _joined(self, task: OperatorTask) -> OperatorReport:
        header = task.header
        report = OperatorReport(header.task, seconds={"probe": 0.1, "store": 0.1, "sort": 0.1})
        changes = Changes()
        worked = {
            number: self.worked(number, asked_of(header.counted, [number]))
            for number in header.hosted
        }
        for side in PAIR:
            name = f"run-{header.batch:08d}-{header.operator}-{side.value}-{header.task}.arrow"
            name = tagged(header.generation, name)
            parts = 0
            for instance in header.hosted:
                spine = task.stored.runs.get((instance, side), ())
                rows = worked[instance].sealed[side]
                if rows:
                    sealed = _sealed(header.batch, name, parts, side, instance, rows)
                    for run in (sealed, *_merged(spine, sealed, changes)):
                        changes.change(run)
                        parts += 1
            if parts:
                changes.files.append(StoredFile(name, parts * ROWS * ROW_BYTES, 1 << 31))
        report.changes[STATE] = changes
        for instance, work in worked.items():
            instance_report = InstanceReport(
                list(work.received), list(work.stored), busy_s=0.1, results=ROWS
            )
            report.instances[instance] = instance_report
            if work.counts is not None:
                report.keys.append(work.counts)
            report.hot += [HotKey(key, (9, 9), None) for key in _own(instance, self.instances)]
        del report.hot[MOST_NAMED:]
        return report

    def worked(self, instance: int, asked: Asked | None) -> Worked:
        """What an instance has done in a batch; `asked` None: it counts no keys."""
        if asked is None:
            return Worked((ROWS, ROWS), (ROWS, ROWS), (ROWS, ROWS), None)
        counts, more = self._counted(instance, asked)
        return Worked((ROWS, ROWS), (ROWS + more, ROWS), (ROWS, ROWS), counts)

    def _counted(self, instance: int, asked: Asked) -> tuple[KeyCounts, int]:
        """The counts of an instance, and how many tuples its heavy keys bring beyond ROWS."""
        many = max(1, round(ROWS / (2 * HEAVY) * self.hot.get(instance, 1.0)))
        own = np.array(_own(instance, self.instances), np.uint64)
        hashes = np.concatenate([own, np.setdiff1d(asked.listed.hashes, own)])
        n = len(hashes)
        stored = np.where(np.arange(n) < HEAVY, many, 0)
        held = stored + 5
        both = [np.concatenate([column, column]) for column in (hashes, held)]
        sides = np.repeat([0, 1], n)
        quiet = np.where(np.arange(n) < HEAVY, ROWS // (2 * HEAVY), 0)
        counts = KeyCounts(
            *(np.full(2 * n, instance), sides, both[0]), np.concatenate([stored, quiet]), both[1]
        )
        return counts, int(stored.sum() - quiet.sum())


def _own(instance: int, instances: int) -> list[int]:
    """The heavy keys of an instance, which is their base home."""
    return [number * instances * (1 << 20) + instance for number in range(1, HEAVY + 1)]


def _sealed(batch: int, file: str, part: int, side: Side, instance: int, rows: int) -> Run:
    """The run of a batch."""
    oldest, newest = BATCH_US * batch, BATCH_US * (batch + 1) - 1
    return Run(
        *(file, part, side, instance, 0, rows, rows * ROW_BYTES, batch << 20 | part),
        min_time=oldest,
        max_time=newest,
        settled_time=newest,
    )


def _merged(spine: Sequence[Run], sealed: Run, changes: Changes) -> Iterator[Run]:
    """The run merged from four runs of one size, if there are four; the four leave.

    It follows the run that the batch has `sealed`.
    """
    by_size = defaultdict[int, list[Run]](list)
    for run in spine:
        by_size[run.rows.bit_length() // 2].append(run)
    # Not all instances merge in the same batch.
    most = FAN_IN + sealed.instance % FAN_IN
    full = [runs for _, runs in sorted(by_size.items()) if len(runs) >= most]
    if full:
        inputs = full[0][:FAN_IN]
        for run in inputs:
            changes.remove(run)
        rows = sum(run.rows for run in inputs)
        newest = max(run.max_time or 0 for run in inputs)
        yield sealed._replace(
            part=sealed.part + 1,
            rows=rows,
            size_bytes=rows * ROW_BYTES,
            group=sealed.group + 1,
            min_time=min(run.min_time or 0 for run in inputs),
            max_time=newest,
            settled_time=newest,
        )
