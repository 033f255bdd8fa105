"""Queries in memory that keep second copies of their run files, and harm to these files."""

from __future__ import annotations

from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.keys import Side
from joinengine.model.recovery import Recovery
from joinengine.model.windows import within
from joinengine.state.run import RunStores
from joinengine.world.memory import MemoryWorld
from joinengine.world.storage import verify
from tests.harness import LocalQuery, rows
from tests.laws.cases import (
    skewed_batches,
)

NOWHERE = "/nowhere/query"
STORE = Settings(recovery=Recovery.STORE)
WINDOW = within("lt", "rt", lower="-150 us", upper="150 us", delay="400 us")


class Clocked(MemoryWorld):
    """A world that notes how long it has slept."""

    def sleep(self, seconds):
        super().sleep(seconds)
        self.slept = [*getattr(self, "slept", []), seconds]


class Stored(LocalQuery):
    """After each batch every run file that is named has a whole copy."""

    def check_state(self):
        super().check_state()
        if self.settings.keeps_store:
            for stored in files_of(self):
                verify(self.runner._store.copies, stored, "copy")


class StoredStream(Stored):
    """The same over the left tuples alone."""

    def run_tuples(self, batch, left, right, map_tasks=2):
        parts = [[(0, rows(Side.LEFT, left[task::map_tasks]))] for task in range(map_tasks)]
        self.run(batch, parts)


def in_memory(spec, layout, settings=None, **more):
    jobs = InlineJobs(
        twice=more.pop("twice", False), world=more.pop("world", None) or MemoryWorld()
    )
    return Stored(NOWHERE, spec, layout, jobs=jobs, settings=settings or Settings(), **more)


def files_of(query):
    return [
        stored
        for state in query.runner.manifest.operators
        for stored in state.shelves.files.values()
    ]


def runs_of(query):
    return [
        run
        for state in query.runner.manifest.operators
        for runs in state.shelves.runs.values()
        for run in runs.values()
    ]


def alter(storage, name):
    content = bytearray(storage.get(name))
    content[len(content) // 2] ^= 0x10
    storage.put(name, bytes(content))


HARM = {
    "gone": lambda storage, name: storage.delete(name),
    "truncated": lambda storage, name: storage.put(name, storage.get(name)[:-7]),
    "altered": alter,
}


def harm(query, instances, how):
    """Damage the files in which instances have runs; how many. No worker has seen them."""
    names = {run.file for run in runs_of(query) if run.instance in instances}
    for name in names:
        HARM[how](query.checkpoint.runs, name)
    query.jobs.stores = RunStores(query.world)
    return len(names)


def timed_batches(n, seed):
    """Full batches of both sides in event time, with some disorder."""
    return [
        tuple([(key, v, 100 * b + 7 * v % 150) for key, v, _ in side] for side in batch)
        for b, batch in enumerate(skewed_batches(n, seed))
    ]


def noticed(query, batch):
    return [
        join.lost.instances for one in query.records if one.batch == batch for join in one.joins
    ]
