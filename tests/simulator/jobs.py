"""Runs tasks for a simulated driver: attempts fail and are made again, and some go on as ghosts.

A ghost is a second attempt of a task whose driver no longer waits for it: an actor of its own, that
writes its files whenever its turns come.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from joinengine.lab.inline.inline_tasks import arrived, carried_out, routed, sent_by
from joinengine.lab.inline.one_process import OneProcess
from joinengine.model.errors import JoinEngineError
from joinengine.results.merging import MergeReport, MergeTask, merge
from joinengine.state.run import RunStores
from joinengine.wire.codec import decode, encode
from joinengine.wire.reports import OperatorReport, RouteReport
from tests.simulator.disk import LostTask, TaskWorld

#: As Spark does on a cluster.
MOST_ATTEMPTS = 4


class JobFailed(Exception):
    """A task has failed too often."""


class Unnamed(AssertionError):
    """A fault reaches the user as an error of a library."""


@dataclass
class SimulatedJobs(OneProcess):
    """The jobs of one driver, in its own turns. `ghosts`: how likely a second attempt is."""

    scheduler: object
    actor: object
    disk: object
    faults: object
    ghosts: float = 0.0
    parallelism: int = 2
    haunted: object = lambda: None
    cache_folder: object = None
    #: what a micro-batch of Spark's and the stretch between two positions bring
    brought: object = None

    def __post_init__(self):
        self.mail = defaultdict(list)

    def read_tables(self, plan):
        return []

    def route(self, frame, plan, start, end):
        """Per map task there is a list of (source, record batch or progress of event time)."""
        self.mail.clear()
        told, reports = encode(plan), []
        for number, tuples in enumerate(self.brought(frame, start, end)):
            report, exchange = self._tried(routed, told, number, tuples)
            self._carry(exchange)
            reports.append(decode(encode(report), RouteReport))
        return reports

    def run(self, operator, tasks):
        reports, exchanges = [], []
        own, whole = arrived(operator, tasks, self.scheduler.rng, self.mail)
        for task, packets in zip(tasks, own, strict=True):
            report, exchange = self._tried(_operate, operator, encode(task), packets, whole)
            exchanges.append(exchange)
            reports.append(decode(encode(report), OperatorReport))
        if not any(report.lost for report in reports):
            for exchange in exchanges:
                self._carry(exchange)
        self.scheduler.rng.shuffle(reports)
        return reports

    def merge(self, tasks):
        """For a sink that shows the results of several batches together."""
        return [decode(encode(self._tried(_merge, encode(one))), MergeReport) for one in tasks]

    def _carry(self, exchange):
        sent_by([exchange], self.scheduler.rng, self.mail)

    def _tried(self, attempt, *told):
        """What the attempt that wins returns."""
        if self.scheduler.rng.random() < self.ghosts:
            self._haunt(attempt, told)
        for _ in range(MOST_ATTEMPTS):
            before = self.faults.count
            try:
                return attempt(*told, world=self._world(self.actor))
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
                attempt(*told, world=self._world(actor))
            except (LostTask, OSError, JoinEngineError) as error:
                # Nobody waits for it, and what it reads may be gone.
                self.scheduler.note(actor, f"gives up: {error!r}"[:120])

        self.haunted()
        self.scheduler.spawn(f"ghost {self.scheduler.number()}", program)

    def _world(self, actor):
        world = TaskWorld(self.scheduler, actor, self.disk, self.faults)
        world.cache_folder = self.cache_folder
        return world


def _operate(operator, told, packets, whole, *, world):
    return carried_out(operator, told, packets, whole, RunStores(world), world)


def _merge(told, *, world):
    return merge(decode(told, MergeTask), world)
