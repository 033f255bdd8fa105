"""One seed: drivers, ghosts, faults, re-layouts and resizes, and the invariants of it all."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from joinengine.driver.batch import BatchRunner
from joinengine.driver.loop import Loop, Trigger
from joinengine.driver.recovery import durability
from joinengine.model.errors import (
    CheckpointMismatch,
    InvalidRequest,
    JoinEngineError,
    TakenOver,
)
from joinengine.model.keys import PAIR
from joinengine.operators import Join
from joinengine.results.compaction import CompactingSink
from joinengine.results.delivery import Delivery
from joinengine.results.sinks import STAGING, ParquetSink
from joinengine.results.staging import Cutting
from joinengine.results.token_sinks import TokenSink
from joinengine.state import fence, manifests
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest
from joinengine.state.run import RunStore
from joinengine.world.memory import MemoryStorage, MemoryWorld
from tests.harness import rows
from tests.invariants import check_places
from tests.reference.target import Outside
from tests.simulator import sources, store
from tests.simulator.case import RATES, Case
from tests.simulator.cluster import ClusterJobs, obstacle
from tests.simulator.disk import Broken, Disk, Faults, FaultyWorld
from tests.simulator.jobs import JobFailed, SimulatedJobs
from tests.simulator.scheduler import Scheduler, describe
from tests.simulator.spark import Logs, SparkFailed, SparkQuery
from tests.simulator.targets import SimulatedTarget

CHECKPOINT, OUT = "checkpoint", "out"
#: How likely a driver is started with an older copy of Spark's logs.
OLDER_COPY = 0.1
#: For the caches of machines; None: wherever this system has its temporary files.
_SCRATCH = next((folder for folder in ("/dev/shm",) if os.path.isdir(folder)), None)
#: Drivers are started one after the other, and at times a further one while others are alive.
MOST_ALIVE = 2
#: Virtual seconds after which a further driver may be started beside one that is alive.
SECOND_DRIVER_S = 0.4
#: So many manifests, so that names of manifests become free again in short runs.
FULL_EVERY = 3


class Violation(AssertionError):
    """A promise was broken."""


class Trial:
    """One run of a case; `check` raises Violation for whatever is wrong."""

    def __init__(self, seed):
        self.case = Case.of(seed)
        self.scheduler = Scheduler(seed)
        rates = {kind: RATES[kind] for kind in self.case.faults}
        rng = random.Random(f"faults {seed}")
        self.faults = Faults(rng, rates, self.case.most_faults)
        self.disk = Disk()
        self.disk.watchers.append(self._look_at)
        place = f"{store.BUCKET}/" if self.case.stored else ""
        self.state, self.out = place + CHECKPOINT, place + OUT
        self.plain = MemoryStorage(self.out, self.disk.files)
        self.writer = None if self.case.files is None else sources.Writer(self.case, self.disk)
        self.home, self.outside = None, Outside()
        self.spark = Logs()
        self.query, self.choices = self.case.query()
        self.sizes = [len(side) for side in self.case.tuples]
        if self.case.files is not None:  # positions then count row groups
            self.sizes = [
                size if side in self.case.handed else sum(map(len, files))
                for side, size, files in zip(PAIR, self.sizes, self.case.files, strict=True)
            ]
        self.reported = {}
        self.named = frozenset()
        self.started = self.finished = self.ghosts = 0
        self.adopted = self.changed = self.recovered = 0
        self.final = None
        self._alive = {}
        self._jobs, self._queries = {}, {}
        self._shown = {}

    def _haunted(self):
        self.ghosts += 1

    # The drivers

    def run(self):
        """Run until a driver has finished the work with no fault any more, and check."""
        with ExitStack() as patches:
            patches.enter_context(patch.object(manifests, "FULL_EVERY", FULL_EVERY))
            if not self.case.manners:  # safety does not rest on that look
                patches.enter_context(patch.object(fence, "check_generation", lambda *_: None))
            patches.enter_context(sources.simulated())
            patches.enter_context(store.simulated(self.scheduler, self.case.inlined))
            self.home = patches.enter_context(TemporaryDirectory(dir=_SCRATCH))
            if self.writer is not None:
                self.scheduler.spawn("sources", self.writer.write)
            self.scheduler.run(self._between)
            self._check_end()
        return self

    def _between(self):
        """Judge the drivers that have ended, and start others."""
        for actor in [one for one in self._alive if one.ended]:
            self._judge(actor)
        if self.final is not None:
            return
        rested = self.faults.left <= 0 or self.finished
        alive = len(self._alive)
        if not alive:
            self._start()
            if rested:
                self.final = next(iter(self._alive))
                self.faults.left = 0
        elif alive < MOST_ALIVE and not rested:
            youngest = max(self._alive.values())
            lonely_s = self.scheduler.now_s - youngest
            if lonely_s > SECOND_DRIVER_S and self.scheduler.rng.random() < 0.02:
                self._start()

    def _start(self):
        self.started += 1
        actor = self.scheduler.spawn(f"driver {self.started}", self._drive)
        self._alive[actor] = self.scheduler.now_s
        actor.faults_before = self.faults.count

    def _judge(self, actor):
        """A driver ends well, or because of another driver, or of a fault."""
        del self._alive[actor]
        error = actor.error
        if error is None or isinstance(error, (TakenOver, SparkFailed)):
            return
        if isinstance(error, CheckpointMismatch) and self._has_older_copy(actor):
            return
        if isinstance(error, AssertionError):
            raise error
        injected = self.faults.count > actor.faults_before or not self._is_newest(actor)
        excused = isinstance(error, (Broken, JobFailed, JoinEngineError, OSError))
        refused = type(error) is InvalidRequest
        if actor is self.final or not injected or not excused or refused:
            raise Violation(f"{actor.name} failed: {describe(error)}") from error

    def _is_newest(self, actor):
        """Whether no newer driver was started."""
        checkpoint = self._checkpoint(MemoryWorld(self.disk.files))
        return fence.greatest(checkpoint.generations, 0) <= actor.generation

    def _has_older_copy(self, actor):
        """Whether a driver has seen other logs of Spark's than belong to the checkpoint."""
        return actor in self._queries and self._queries[actor].logs is not self.spark

    def _logs(self):
        """Spark's logs for a driver, or an older copy of them."""
        noted = self._newest().handed
        may_be_older = not self.faults.left <= 0 and noted is not None and noted.batch > 0
        if may_be_older and self.scheduler.rng.random() < OLDER_COPY:
            return self.spark.until(self.scheduler.rng.randrange(noted.batch))
        return self.spark

    def _drive(self, actor):
        world = FaultyWorld(self.scheduler, actor, self.disk, self.faults)
        ours = self.scheduler, actor, self.disk, self.faults, self.case.ghosts
        world.cache_folder = f"{self.home}/cache-{self.started if self.case.seed % 2 else 0}"
        feeds = []
        if self.case.executors:
            jobs = ClusterJobs(*ours, executors=self.case.executors)
        else:
            jobs = SimulatedJobs(*ours)
        self._jobs[actor] = jobs
        jobs.haunted, jobs.cache_folder = self._haunted, world.cache_folder
        actor.generation = 0
        checkpoint = self._checkpoint(world)
        sink = self._sink(jobs, world, checkpoint)
        delivery = Delivery(checkpoint, sink)
        told = self.query, self.choices, checkpoint, "q", delivery, self.case.settings
        runner = BatchRunner(jobs, *told)
        runner.observe(lambda record: self._report(record, actor))
        if self.writer is not None:
            feeds += sources.open_feeds(world, checkpoint, self.started)
        logs = self._logs()
        jobs.brought = partial(self._brought, feeds, runner, logs)
        runner.recover()
        actor.generation = runner.generation
        self._loop(actor, world, runner, feeds, logs)
        runner.finish()
        self.finished += 1

    def _loop(self, actor, world, runner, feeds, logs):
        """The engine's own loop, until all is read and nothing is due."""
        handed, rng = self.case.handed, self.scheduler.rng
        feeds = feeds or [sources.Tuples(size, rng) for size in self.sizes]
        own = {
            int(side): feed for side, feed in zip(PAIR, feeds, strict=True) if side not in handed
        }
        trigger, spark = Trigger(finite=self.writer is None), None
        if handed:
            told = logs, actor, rng, handed, self.sizes
            spark = self._queries[actor] = SparkQuery(*told, ends=trigger.finite)

        def rest(seconds):
            actor.sleep(seconds) if seconds else actor.step("looks")
            if spark is not None and rng.random() < 0.7:
                before = runner.manifest.nonce
                spark.go_on(loop.take)
                is_older = runner.manifest.generation < runner.generation
                self.adopted += is_older and runner.manifest.nonce != before
            return (
                seconds > 0
                and self.writer is not None
                and self.writer.done
                # An older driver may have committed the last batches, and this one does not look.
                and self._all_of(self._newest())
                and (spark is None or spark.is_done)  # for which ticks wait
            )

        loop = Loop(runner, own, trigger, world, rest, sources.PAUSE_S, spark)
        loop.run()

    def _checkpoint(self, world):
        return Checkpoint.below(CHECKPOINT, self.state, world=world)

    def _sink(self, jobs, world, checkpoint):
        if self.case.tokens is not None:
            target = SimulatedTarget(self.outside, world, checkpoint.results)
            return TokenSink(checkpoint, target, self.case.tokens)
        if self.case.compact is None:
            return ParquetSink(world.storage(self.out), "q")
        every, target = self.case.compact
        cutting = Cutting(target_bytes=target)
        out = world.storage(self.out)
        return CompactingSink(out, "q", cutting=cutting, merge=jobs.merge, every=every)

    def _all_of(self, manifest):
        """Whether no tuple is left behind a manifest."""
        return self._reach(manifest.position or {}, self._handed_end(manifest)) == self.sizes

    def _handed_end(self, manifest):
        """Before which tuple of each side the last micro-batch of a manifest ends."""
        return self.spark.end(-1 if manifest.handed is None else manifest.handed.batch)

    def _reach(self, position, handed_end):
        """How far each side is read, by a position and the end of the last micro-batch."""
        return [
            handed_end[side] if side in self.case.handed else position.get(int(side), 0)
            for side in PAIR
        ]

    def _brought(self, feeds, runner, logs, batch, start, end):
        """What a micro-batch (None: there is none) and the stretch between two positions bring.

        The batch behind which no tuple is left brings the end of both sides.
        """
        handed_end = self._handed_end(runner.manifest) if batch is None else logs.end(batch)
        whole = self._reach(end, handed_end) == self.sizes
        new = [self._tuples(feeds, side, logs, batch, start, end) for side in PAIR]
        tasks = [
            [(int(side), rows(side, new[side][task::2])) for side in PAIR] for task in range(2)
        ]
        if whole:
            tasks[0] += [(int(side), math.inf) for side in PAIR]
        return tasks

    def _tuples(self, feeds, side, logs, batch, start, end):
        """The tuples of one side among them."""
        tuples = self.case.tuples[side]
        if side in self.case.handed:
            return [] if batch is None else tuples[logs.start(batch)[side] : logs.end(batch)[side]]
        stretch = start.get(int(side), 0), end.get(int(side), 0)
        if not feeds:
            return tuples[slice(*stretch)]
        groups = feeds[side].row_groups(*stretch)
        return [tuples[one] for one in sources.numbers_of(self.case, side, groups)]

    def told(self):
        """What happened, in numbers."""
        return Counter(
            {
                "batches": max(self.reported, default=-1) + 1,
                "steps": self.scheduler.steps,
                "drivers started": self.started,
                "ghosts": self.ghosts,
                "batches adopted from an older driver": self.adopted,
                "layouts changed": self.changed,
                "recoveries: drivers that went on from a checkpoint": self.started - 1,
                "recoveries: instances that lost their state": self.recovered,
                **{f"fault: {kind}": n for kind, n in sorted(self.faults.injected.items())},
            }
        )

    # The invariants

    def _report(self, record, actor):
        """One driver alone says that it has done a batch."""
        before = self.reported.setdefault(record.batch, actor.name)
        if before != actor.name:
            raise Violation(f"{actor.name} reports batch {record.batch} after {before}")
        self.changed += any(join.reason is not None for join in record.joins)
        self.recovered += sum(join.lost.count for join in record.joins)
        self._look_at_places(record.batch, self._jobs[actor])

    def _look_at(self, verb, path):
        """No manifest that counts names a missing file; what is visible stays as it is."""
        folder, _, name = path.rpartition("/")
        if self.case.executors and folder.startswith(self.state) and verb in ("create", "delete"):
            checkpoint = self._checkpoint(MemoryWorld(self.disk.files))
            if (why := obstacle(checkpoint)) is not None:
                raise Violation(f"{verb} {path}: {why}")
        elif folder == f"{self.state}/joinengine/manifest" and verb in ("create", "delete"):
            self._look_at_manifest()
        elif verb == "delete" and name in self.named:
            raise Violation(f"{path} is removed, which the newest manifest names")
        elif folder == self.out and not name.startswith(STAGING):
            content = self.disk.files.get(path)
            if self._shown.setdefault(path, content) != content:
                raise Violation(f"{path} was visible, and is another by {verb}")

    def _look_at_places(self, batch, jobs):
        """Every tuple stands at its homes."""
        checkpoint = self._checkpoint(MemoryWorld(self.disk.files))
        found = manifests.newest(checkpoint.manifests)
        if found is None or found.batch != batch:
            return
        runs = checkpoint.runs
        if self.case.executors:
            runs = MemoryStorage(runs.folder, jobs.disks())
        for operator, state in zip(self.query.operators, found.operators, strict=True):
            if isinstance(operator, Join):
                check_places(state, RunStore(runs), expires=operator.window is not None)

    def _look_at_manifest(self):
        checkpoint = self._checkpoint(MemoryWorld(self.disk.files))
        found = manifests.newest(checkpoint.manifests)
        if found is None or found.batch <= fence.greatest(checkpoint.boundary, -1):
            return  # a manifest below the boundary counts for nobody
        self.named = frozenset(found.named_files())
        missing = sorted(durability.files_of(found) - set(checkpoint.runs.names()))
        if missing:
            raise Violation(f"the manifest of batch {found.batch} names {missing[0]}: not there")

    def output(self):
        """The visible results, as a multiset of rows."""
        if self.case.tokens is not None:
            return self.outside.rows()
        found = Counter()
        for name in sorted(self.plain.names()):
            if name.endswith(".parquet"):
                # Without its threads, which may abort the process when it ends.
                table = pq.read_table(pa.BufferReader(self.plain.get(name)), use_threads=False)
                table = pa.table(
                    [
                        c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c
                        for c in table.columns
                    ],
                    names=[str(n) for n in range(table.num_columns)],
                )
                found.update(zip(*(c.to_pylist() for c in table.columns), strict=True))
        return found

    def _newest(self):
        checkpoint = self._checkpoint(MemoryWorld(self.disk.files))
        return manifests.newest(checkpoint.manifests) or Manifest("q", -1, ())

    def _check_end(self):
        if not self._all_of(self._newest()):
            raise Violation("the drivers have ended, and tuples are left")
        expected, output = self.case.expected(), self.output()
        if output != expected:
            lost, doubled = expected - output, output - expected
            raise Violation(
                f"{lost.total()} results are lost, {doubled.total()} are there too often, such as "
                f"{next(iter(lost or doubled))}"
            )


def play(seed):
    """The trial of a seed, played; a Violation carries its last steps."""
    trial = Trial(seed)
    try:
        return trial.run()
    except Exception as error:
        error.trial = trial
        raise
