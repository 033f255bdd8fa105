"""Runs tasks for a simulated driver: attempts fail and are made again, and some go on as ghosts.

A ghost is a second attempt of a task whose driver no longer waits for it: an actor of its own, that
writes its files whenever its turns come.
"""

from __future__ import annotations

from dataclasses import dataclass

from joinengine.exchange.codec import decode, encode
from joinengine.exchange.reports import OperatorReport, RouteReport
from joinengine.exchange.route import RoutePlan, RouteTask
from joinengine.exchange.shuffle import sender
from joinengine.model.errors import JoinEngineError
from joinengine.operators.base import OperatorTask, carry_out
from joinengine.state.run import RunStores
from tests.simulator.disk import LostTask, TaskWorld

#: As Spark does on a cluster.
MOST_ATTEMPTS = 4


class JobFailed(Exception):
    """A task has failed too often."""


class Unnamed(AssertionError):
    """A fault reaches the user as an error of a library."""


@dataclass
class SimulatedJobs:
    """The jobs of one driver, in its own turns. `ghosts`: how likely a second attempt is."""

    scheduler: object
    actor: object
    disk: object
    faults: object
    ghosts: float = 0.0
    parallelism: int = 2
    haunted: object = lambda: None

    def logged(self, batch):
        return {}

    def read_tables(self, plan):
        return []

    def route(self, frame, plan):
        """`frame`: per map task, a list of (source, record batch)."""
        return [
            decode(self._tried(_route, (encode(plan), number, tuples)), RouteReport)
            for number, tuples in enumerate(frame)
        ]

    def run(self, operator, tasks):
        reports = [
            decode(self._tried(_operate, (encode(task), operator)), OperatorReport)
            for task in tasks
        ]
        self.scheduler.rng.shuffle(reports)
        return reports

    def _tried(self, attempt, told):
        """The report of the attempt that wins."""
        if self.scheduler.rng.random() < self.ghosts:
            self._haunt(attempt, told)
        for _ in range(MOST_ATTEMPTS):
            before = self.faults.count
            try:
                return attempt(self._world(self.actor), *told)
            except (Exception, LostTask) as error:
                if self.faults.count == before:
                    raise
                self.scheduler.note(self.actor, f"a task fails: {error!r}"[:120])
                if not isinstance(error, (LostTask, OSError, JoinEngineError)):
                    raise Unnamed(f"a task fails without a sentence of ours: {error!r}") from error
        raise JobFailed(f"a task has failed {MOST_ATTEMPTS} times")

    def _haunt(self, attempt, told):
        def program(actor):
            try:
                attempt(self._world(actor), *told)
            except (LostTask, OSError, ValueError) as error:
                # Nobody waits for it, and what it reads may be gone.
                self.scheduler.note(actor, f"gives up: {error!r}"[:120])

        self.haunted()
        self.scheduler.spawn(f"ghost {self.scheduler.number()}", program)

    def _world(self, actor):
        return TaskWorld(self.scheduler, actor, self.disk, self.faults)


def _route(world, told, number, tuples):
    plan = decode(told, RoutePlan)
    task = RouteTask(plan, number, sender(plan.exchange, world), world)
    for source, batch in tuples:
        for _ in task.add(source, [batch]):
            pass
    return encode(task.close())


def _operate(world, told, operator):
    task = decode(told, OperatorTask)
    header = task.header
    store = RunStores(world).store_of(
        header.runs_folder, header.operator, header.driver, header.cache_bytes
    )
    return encode(carry_out(operator, task, store, sender(header.exchange, world), world))
