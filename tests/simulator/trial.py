"""One seed: drivers, ghosts, faults, re-layouts and resizes, and the invariants of it all."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from joinengine.driver import clock, durability
from joinengine.driver.batch import BatchRunner
from joinengine.driver.compacting import CompactingSink
from joinengine.driver.loop import Loop, Trigger
from joinengine.driver.sinks import STAGING, ParquetSink
from joinengine.exchange.staging import Cutting
from joinengine.model.errors import InvalidRequest, JoinEngineError, TakenOver
from joinengine.model.keys import Side
from joinengine.operators import Join
from joinengine.state import fence, manifests
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest
from joinengine.state.run import RunStore
from tests.harness import rows
from tests.invariants import check_places
from tests.simulator import sources, store
from tests.simulator.case import RATES, Case
from tests.simulator.cluster import ClusterJobs, obstacle
from tests.simulator.disk import Broken, Disk, Faults, FaultyWorld
from tests.simulator.jobs import JobFailed, SimulatedJobs
from tests.simulator.scheduler import Scheduler, describe
from tests.simulator.spark import Spark, SparkFailed
from tests.worlds import MemoryStorage, MemoryWorld

CHECKPOINT, OUT = "checkpoint", "out"
#: In a position of Spark's: for how many batches all has ended.
ENDED = 2
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
        self.home = None
        self.spark = Spark()
        self.query, self.choices = self.case.query()
        self.sizes = [len(side) for side in self.case.tuples]
        if self.case.files is not None:  # positions then count row groups
            self.sizes = [sum(map(len, files)) for files in self.case.files]
        self.reported = {}
        self.named = frozenset()
        self.started = self.finished = self.ghosts = 0
        self.adopted = self.changed = self.recovered = 0
        self.final = None
        self._alive = {}
        self._jobs = {}
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

    def _drive(self, actor):
        world = FaultyWorld(self.scheduler, actor, self.disk, self.faults)
        ours = self.scheduler, actor, self.disk, self.faults, self.case.ghosts
        world.cache_folder = f"{self.home}/cache-{self.started if self.case.seed % 2 else 0}"
        feeds = []
        if self.case.executors:
            jobs = ClusterJobs(*ours, executors=self.case.executors)
        else:
            jobs = SimulatedJobs(*ours)
        jobs.between, jobs.logged_ends = partial(self._between_positions, feeds), self._logged_end
        self._jobs[actor] = jobs
        jobs.haunted, jobs.cache_folder = self._haunted, world.cache_folder
        actor.generation = 0
        checkpoint = self._checkpoint(world)
        sink = self._sink(jobs, world)
        told = self.query, self.choices, checkpoint, "q", sink, self.case.settings
        runner = BatchRunner(jobs, *told)
        runner.observe(lambda record: self._report(record, actor))
        if self.writer is not None:
            feeds += sources.open_feeds(world, checkpoint, self.started)
        runner.recover()
        actor.generation = runner.generation
        if self.case.looped:
            self._loop(actor, world, runner, feeds)
        else:
            self._by_spark(actor, runner, feeds)
        runner.finish()
        self.finished += 1

    def _loop(self, actor, world, runner, feeds):
        """The engine's own loop, until all is read and nothing is due."""
        feeds = feeds or [sources.Tuples(size, self.scheduler.rng) for size in self.sizes]
        trigger = Trigger(finite=self.writer is None)

        def rest(seconds):
            actor.sleep(seconds) if seconds else actor.step("looks")
            return seconds > 0 and self.writer.done and self._all_of(runner.position)

        Loop(runner, dict(enumerate(feeds)), trigger, world, rest, sources.PAUSE_S).run()

    def _by_spark(self, actor, runner, feeds):
        """Batches as Spark cuts them, which logs where one ends before it is computed."""
        batch = self._next_batch(actor)
        begun = batch in self.spark.offsets
        while begun or self._offer(actor, batch, runner, feeds):
            begun = False
            runner(None, batch)
            self.adopted += runner.manifest.generation != runner.generation
            actor.step(f"Spark's log: {batch} is done")
            if batch in self.spark.commits:
                raise SparkFailed(f"batch {batch} is done already")
            self.spark.commits.add(batch)
            batch += 1

    def _checkpoint(self, world):
        return Checkpoint.below(CHECKPOINT, self.state, world=world)

    def _sink(self, jobs, world):
        if self.case.compact is None:
            return ParquetSink(world.storage(self.out), "q")
        every, target = self.case.compact
        cutting = Cutting(target_bytes=target)
        out = world.storage(self.out)
        return CompactingSink(out, "q", cutting=cutting, merge=jobs.merge, every=every)

    def _next_batch(self, actor):
        """The batch that Spark begins with: the last one again, if it is not done."""
        actor.step("Spark's logs")
        last = max(self.spark.offsets)
        return last + 1 if last in self.spark.commits else last

    def _offer(self, actor, batch, runner, feeds):
        """Write into Spark's log how far a batch goes; False: there is nothing left to do."""
        *start, ended = self.spark.offsets[batch - 1]
        if start != self.sizes:
            end = *self._further(actor, batch, start, feeds), 0
        elif (
            ended and clock.tick_due(self.query, replace(runner.manifest, quiet=True), 0.0) is None
        ):
            return False
        else:
            end = *start, ended + 1
        actor.step(f"Spark's log: {batch} goes to {end}")
        if batch in self.spark.offsets:
            raise SparkFailed(f"batch {batch} was begun by another")
        self.spark.offsets[batch] = end
        return True

    def _tick_due(self, runner):
        return clock.tick_due(self.query, replace(runner.manifest, quiet=True), 0.0)

    def _further(self, actor, batch, start, feeds):
        """Where a batch ends on each side; under feeds the driver waits for something new."""
        if not feeds:
            rng = random.Random(f"{self.case.seed} {batch}")
            steps = zip(start, self.sizes, strict=True)
            return [min(at + rng.choice([0, 3, 8, 20]), size) for at, size in steps]
        while True:
            for feed in feeds:
                feed.discover()
            end = [feed.advance(at) for feed, at in zip(feeds, start, strict=True)]
            if end != start:
                return end
            actor.sleep(sources.PAUSE_S)

    def _logged_end(self, batch):
        return dict(enumerate(self.spark.offsets[batch]))

    def _all_of(self, position):
        """Whether a position is that behind all tuples."""
        return [position.get(int(side), 0) for side in Side] == self.sizes

    def _between_positions(self, feeds, start, end):
        """What lies between two positions; the last tuple of a side brings its end.

        In a batch of Spark's the third source is the number of batches for which all has ended.
        """
        over = end.get(ENDED, 0)
        if over:
            return [[(int(side), math.inf) for side in Side]] if over == 1 else [[]]
        starts, ends = ([one.get(int(side), 0) for side in Side] for one in (start, end))
        new = [self.case.tuples[side][starts[side] : ends[side]] for side in Side]
        if feeds:
            groups = [feeds[side].row_groups(starts[side], ends[side]) for side in Side]
            numbers = [sources.numbers_of(self.case, side, groups[side]) for side in Side]
            new = [[self.case.tuples[side][one] for one in numbers[side]] for side in Side]
        tasks = [
            [(int(side), rows(side, new[side][task::2])) for side in Side] for task in range(2)
        ]
        if self.case.looped and self._all_of(end):
            tasks[0] += [(int(side), math.inf) for side in Side]
        return tasks

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
        self.recovered += sum(join.lost_instances for join in record.joins)
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
        position = self._newest().position or {}
        if not self._all_of(position) or not (self.case.looped or position[ENDED]):
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
