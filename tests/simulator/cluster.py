"""Executors of a simulated driver: disks that die with them, and uploads as actors."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass

from joinengine.driver.recovery import restoration as restoring
from joinengine.lab.inline.inline_tasks import arrived, carried_out
from joinengine.model.errors import JoinEngineError
from joinengine.state import manifests
from joinengine.state.run import RunStores
from joinengine.wire.codec import decode, encode
from joinengine.wire.reports import OperatorReport
from joinengine.world.behind import Behind
from joinengine.world.memory import MemoryStorage
from tests.executors import Placed
from tests.simulator.disk import LostTask, TaskWorld
from tests.simulator.jobs import SimulatedJobs

#: How likely an executor dies before a job, and that a task runs where it does not belong.
DEATHS, MISPLACED = 0.05, 0.03
#: Before a file is tried again, in virtual seconds.
PAUSE_S = 0.05


class Executor:
    """A disk, and the files on it that wait for their upload."""

    def __init__(self, jobs, number):
        self._jobs, self.number = jobs, number
        self.disk, self.waiting = {}, []
        self.dead = self._busy = False

    def add(self, storage, name):
        """As `Uploads`: an actor takes care of it, in its own turns."""
        self.waiting.append((storage.folder, name))
        if not self._busy:
            self._busy = True
            number = self._jobs.scheduler.number()
            self._jobs.scheduler.spawn(f"uploads {number}", self._upload)

    @property
    def cache_folder(self):
        """As the disk, it dies with the executor."""
        return f"{self._jobs.cache_folder}-{self.number}"

    def near(self, folder):
        return MemoryStorage(folder, self.disk)

    def _upload(self, actor):
        while self.waiting and not (self.dead or self._jobs.ended):
            folder, name = self.waiting.pop(0)
            world = TaskWorld(self._jobs.scheduler, actor, self._jobs.disk, self._jobs.faults)
            world.cache_folder = self.cache_folder
            try:
                Behind(world.storage(folder), self.near(folder), self).upload(name)
            except (OSError, JoinEngineError, LostTask):  # another worker tries again
                self.waiting.append((folder, name))
                actor.sleep(PAUSE_S)
        self._busy = False


class ExecutorWorld(TaskWorld):
    """The world of an attempt at an executor."""

    executor = None

    def storage(self, folder, *, fsync=False, cache_bytes=0, is_behind=False):
        durable = super().storage(folder, cache_bytes=cache_bytes)
        if not is_behind:
            return durable
        return Behind(durable, self.executor.near(str(folder)), self.executor)


@dataclass
class ClusterJobs(Placed, SimulatedJobs):
    """Task t runs at executor t modulo `executors`."""

    executors: int = 3

    def __post_init__(self):
        super().__post_init__()
        self.parallelism = self.executors
        self.alive = [self._new() for _ in range(self.executors)]
        self.ran, self.tasks = {}, {}

    def _new(self):
        return Executor(self, self.scheduler.number())

    @property
    def ended(self):
        """Whether the driver has ended, and its executors with it."""
        return self.actor.ended or self.actor.doomed

    def disks(self):
        """All files that the driver's tasks can see."""
        return ChainMap(self.disk.files, *(one.disk for one in self.alive))

    def _perhaps_lose(self):
        if self.faults.left > 0 and self.faults.rng.random() < DEATHS:
            self.faults.take("executor dies")
            place = self.faults.rng.randrange(self.executors)
            self.scheduler.note(self.actor, f"executor {self.alive[place].number} dies")
            self.alive[place].dead = True
            self.alive[place] = self._new()

    def route(self, frame, plan, start, end):
        self._perhaps_lose()
        return super().route(frame, plan, start, end)

    def run(self, operator, tasks):
        self._perhaps_lose()
        reports, exchanges = [], []
        own, whole = arrived(operator, tasks, self.scheduler.rng, self.mail)
        for task, packets in zip(tasks, own, strict=True):
            place = task.header.task % self.executors
            if self.scheduler.rng.random() < MISPLACED:
                place = self.scheduler.rng.randrange(self.executors)
                self.scheduler.note(self.actor, f"task {task.header.task} runs at place {place}")
            at = self.alive[place]
            told = operator, encode(task), packets, whole, at
            report, exchange = self._tried(_operate_at, *told)
            exchanges.append(exchange)
            reports.append(decode(encode(report), OperatorReport))
            self.ran[operator.index, task.header.task] = at.number
        self.tasks[operator.index] = len(tasks)
        if not any(report.lost for report in reports):
            for exchange in exchanges:
                self._carry(exchange)
        return reports

    def _world(self, actor):
        return ExecutorWorld(self.scheduler, actor, self.disk, self.faults)


def _operate_at(operator, told, packets, whole, executor, *, world):
    world.executor, world.cache_folder = executor, executor.cache_folder
    return carried_out(operator, told, packets, whole, RunStores(world), world)


def obstacle(checkpoint):
    """Why a query could not be started again from its checkpoint, in words; None: it could."""
    found = manifests.newest(checkpoint.manifests)
    try:
        found and restoring.line_to(checkpoint, found)
    except JoinEngineError as error:
        return f"batch {found.batch} cannot be restored: {error}"
    return None
