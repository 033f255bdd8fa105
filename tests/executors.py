"""Executors in memory, whose disks die with them, for queries that upload state behind."""

from __future__ import annotations

import random
from collections import ChainMap
from dataclasses import dataclass, field

from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.lab.inline.inline_tasks import arrived, carried_out, sent_by
from joinengine.state.run import RunStores
from joinengine.wire.codec import decode, encode
from joinengine.wire.reports import OperatorReport
from joinengine.world.behind import Behind
from joinengine.world.memory import MemoryStorage, MemoryWorld


class Executor:
    """A disk, the run stores of a worker, and files that wait for their upload."""

    def __init__(self, cluster, number):
        self.number, self.disk, self.waiting = number, {}, []
        self.world = ExecutorWorld(cluster, self)
        self.stores = RunStores(self.world)

    def add(self, storage, name):
        """As in `Uploads`, but a file waits until the test releases it."""
        self.waiting.append((storage, name))

    def upload(self, most):
        for storage, name in self.waiting[:most]:
            storage.upload(name)
        del self.waiting[:most]


class Placed:
    """Jobs that know where each task of an operator ran last, by `ran` and `tasks`."""

    def _ran_at(self, operator, instances):
        n = self.tasks.get(operator.index, 1)
        return [self.ran.get((operator.index, one % n)) for one in range(instances)]

    def gone(self, operator, instances):
        there = {one.number for one in self.alive}
        at = self._ran_at(operator, instances)
        return [one for one, where in enumerate(at) if where is not None and where not in there]

    def is_apart(self, operator, instances, domains):
        at = self._ran_at(operator, instances)
        pairs = {(where, one % domains) for one, where in enumerate(at)}
        return None not in at and len(pairs) == len(set(at))


@dataclass
class ExecutorWorld:
    """The world of the cluster, with a disk of its own."""

    cluster: object
    executor: object

    def __getattr__(self, name):
        return getattr(self.cluster, name)

    def storage(self, folder, *, fsync=False, cache_bytes=0, is_behind=False):
        durable = self.cluster.storage(folder)
        near = MemoryStorage(folder, self.executor.disk)
        return Behind(durable, near, self.executor) if is_behind else durable


class ClusterWorld(MemoryWorld):
    """While the driver sleeps, uploads go on, unless `stalled`."""

    jobs = None
    stalled = False

    def sleep(self, seconds):
        super().sleep(max(seconds, 0.001))
        if not self.stalled:
            self.jobs.upload(1)


@dataclass
class ClusterJobs(Placed, InlineJobs):
    """Task t runs at executor t modulo their number; `misplace`: how often elsewhere, of a hundred.

    `frames`: what batches brought, which are read again when they are repeated.
    """

    executors: int = 3
    parallelism: int = 3
    misplace: int = 0
    world: object = field(default_factory=ClusterWorld)
    frames: dict = field(default_factory=dict)

    def __post_init__(self):
        super().__post_init__()
        self.world.jobs = self
        self.started = 0
        self.alive = [self._new() for _ in range(self.executors)]
        self.ran, self.tasks, self.chance = {}, {}, random.Random(1)

    def _new(self):
        self.started += 1
        return Executor(self.world, self.started)

    def lose(self, place):
        """Kill the executor of a place; a new one, with an empty disk, replaces it."""
        self.alive[place] = self._new()

    def restart(self):
        """All executors end with their driver."""
        self.alive = [self._new() for _ in self.alive]
        self.ran, self.tasks = {}, {}

    def upload(self, most):
        for executor in self.alive:
            executor.upload(most)

    def disks(self):
        """All files, wherever they are."""
        return ChainMap(self.world.files, *(one.disk for one in self.alive))

    def route(self, frame, plan, start, end):
        if frame is None:
            frame = self.frames[plan.batch]
        self.frames[plan.batch] = frame
        return super().route(frame, plan, start, end)

    def place(self, task):
        """The place of the executor that is given a task."""
        if self.chance.randrange(100) < self.misplace:
            return self.chance.randrange(self.executors)
        return task % self.executors

    def run(self, operator, tasks):
        reports, results = [], []
        own, whole = arrived(operator, tasks, self.rng, self.mail)
        for task, packets in zip(tasks, own, strict=True):
            at = self.alive[self.place(task.header.task)]
            report, exchange = carried_out(
                operator, encode(task), packets, whole, at.stores, at.world
            )
            results.append([exchange])
            reports.append(decode(encode(report), OperatorReport))
            self.ran[operator.index, task.header.task] = at.number
            self.step("joined")
        self.tasks[operator.index] = len(tasks)
        if not any(report.lost for report in reports):
            for attempts in results:
                sent_by(attempts, self.rng, self.mail)
        return reports
