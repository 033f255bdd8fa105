"""Queries whose whole state lies in an object store give the same results as in a folder."""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from pathlib import Path

import obstore
import pytest

from joinengine.driver import step
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import Ftlb
from joinengine.model.keys import PAIR
from joinengine.model.recovery import Recovery
from joinengine.model.windows import within
from joinengine.state import run
from joinengine.state.manifest import Handed
from joinengine.state.run import RunStores
from joinengine.world import buckets
from joinengine.world import file_cache as cache
from joinengine.world.world import Machine
from tests.harness import Killed, LocalQuery, rows, two_way
from tests.laws.cases import check_results, skewed_batches
from tests.laws.losing import failing
from tests.objects import environment, make_bucket, s3_server

WINDOW = within("lt", "rt", lower="-150 us", upper="150 us", delay="400 us")
ROOT = Path(__file__).parents[2]
#: The functions of the library that make requests.
REQUESTS = ("put", "get", "get_ranges", "head", "copy", "delete", "list", "list_with_delimiter")


class StoreWorld(Machine):
    """A machine all of whose folders lie in a bucket."""

    def __init__(self, bucket):
        self.bucket = bucket

    def storage(self, folder, *, fsync=False, cache_bytes=0, is_behind=False):
        url = folder if buckets.is_url(folder) else f"{self.bucket}{folder}"
        return super().storage(url, cache_bytes=cache_bytes)


@pytest.fixture(scope="module")
def server():
    with s3_server() as values, environment(values):
        yield values
    buckets.store_of.cache_clear()


@pytest.fixture
def world(server, tmp_path, monkeypatch):
    monkeypatch.setenv("JOINENGINE_CACHE", str(tmp_path / "cache"))
    cache.file_cache.cache_clear()
    yield StoreWorld(make_bucket(server))
    cache.file_cache.cache_clear()


def query_of(world, layout, window=None, jobs=None, **rest):
    jobs = jobs or InlineJobs(world=world)
    return LocalQuery("/query", two_way(window, 4), layout, jobs=jobs, **rest)


@pytest.fixture
def inlined(request, monkeypatch):
    """Whether small run files are; else each is written."""
    if not request.param:
        monkeypatch.setattr(step, "INLINED_FILE_BYTES", 0)
    return request.param


@pytest.fixture
def written(monkeypatch):
    """Each run file is written, however small."""
    monkeypatch.setattr(step, "INLINED_FILE_BYTES", 0)


@pytest.mark.parametrize(
    ("layout", "inlined"),
    [
        ("hash", True),
        ("ftlb", False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("mnrt", False), ("dynamic", True))
        ),
    ],
    indirect=["inlined"],
)
def test_results_are_those_of_the_nested_loop(world, layout, inlined):
    """Also after restarts, and with workers that know nothing."""
    query = query_of(world, layout, WINDOW)
    batches = skewed_batches(5)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
        if number in (1, 3):
            query.restart()
        if number == 3:  # as on another machine
            query.jobs.stores = RunStores(world)
            shutil.rmtree(cache.file_cache().folder)
    query.finish(len(batches))
    check_results(query, batches, WINDOW)


@pytest.mark.parametrize(
    ("seed", "inlined"),
    [(0, True), (1, False), pytest.param(2, True, marks=pytest.mark.slow)],
    indirect=["inlined"],
)
def test_a_driver_that_is_killed_anywhere_repeats_its_batch(world, seed, inlined):
    rolled = random.Random(seed)

    def perhaps(name):
        if rolled.random() < 0.15:
            raise Killed(name)

    query = query_of(world, "mnrt", WINDOW, InlineJobs(world=world, twice=True, step=perhaps))
    batches = skewed_batches(4)
    for number, (left, right) in enumerate(batches):
        alive = False
        while not alive:
            try:
                query.run_tuples(number, left, right)
                alive = True
            except Killed:
                revived = False
                while not revived:
                    try:
                        query.restart()
                        revived = True
                    except Killed:
                        pass
    query.finish(len(batches))
    check_results(query, batches, WINDOW)


def test_an_instance_that_fails_is_taken_over_by_its_backups(world):
    losses = failing({3: (1,)})
    query = query_of(world, "ftlb", WINDOW, choice=Ftlb(), settings=losses)
    batches = skewed_batches(5)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
    assert any(join.lost.instances for record in query.records for join in record.joins)
    query.finish(len(batches))
    check_results(query, batches, WINDOW)


def files_of(query):
    return query.runner.manifest.operators[0].shelves.files.values()


def test_small_batches_write_no_run_files_until_their_runs_are_merged(world):
    """Also through a restart, and with workers that know nothing."""
    query = query_of(world, "hash", WINDOW)
    batches = skewed_batches(5)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
        is_inlined = {one.content is not None for one in files_of(query)}
        assert bool(query.checkpoint.runs.names()) == (False in is_inlined) == (number > 3)
        if number == 2:
            query.restart()
            query.jobs.stores = RunStores(world)
    query.finish(len(batches))
    check_results(query, batches, WINDOW)


def test_what_is_inlined_stays_within_bounds(world, monkeypatch):
    monkeypatch.setattr(step, "INLINED_BYTES", 20_000)
    query, sizes, kinds = query_of(world, "mnrt"), [], set()
    batches = [[[(n * 31 % 5000, n, 0) for n in range(k, k + 150)]] * 2 for k in range(0, 900, 150)]
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
        files = files_of(query)
        sizes.append(sum(one.size_bytes for one in files if one.content is not None))
        kinds |= {one.content is None for one in files}
    assert kinds == {False, True}
    assert 10_000 < max(sizes) <= 20_000
    query.finish(len(batches))
    check_results(query, batches, None)


def test_copies_in_a_store_are_of_what_is_written(world):
    """The manifest has the rest, so a lost instance finds it there."""
    losses = failing({3: (1,)}, recovery=Recovery.STORE)
    query = query_of(world, "hash", WINDOW, settings=losses)
    batches = skewed_batches(5)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
    assert any(join.lost.instances for record in query.records for join in record.joins)
    query.finish(len(batches))
    check_results(query, batches, WINDOW)


def test_each_batch_tells_what_tasks_have_found_in_their_caches(world, written):
    query = query_of(world, "mnrt")
    for number, (left, right) in enumerate(skewed_batches(6)):
        query.run_tuples(number, left, right)
        if number == 3:  # as on another machine
            query.jobs.stores = RunStores(world)
            shutil.rmtree(cache.file_cache().folder)
    read = [record.joins[0] for record in query.records]
    assert [one.reads.fetched_files for one in read[:4]] == [0] * 4
    cold, warm = read[4:6]
    assert (
        0 < cold.reads.fetched_files <= cold.reads.files
    )  # a file that two tasks read is found by one
    assert 0 < cold.reads.fetched_bytes <= cold.reads.size_bytes
    assert warm.reads.files and not warm.reads.fetched_files and not warm.reads.fetched_bytes
    stored = query.runner.manifest.operators[0].shelves.files
    assert max(one.size_bytes for one in stored.values()) < warm.reads.size_bytes


@pytest.mark.parametrize("layout", ["mnrt", pytest.param("mixed", marks=pytest.mark.slow)])
def test_slices_that_move_are_read_by_ranges(world, written, monkeypatch, layout):
    """Each task has an executor, and a cache, of its own."""
    monkeypatch.setattr(run, "SAVED_BYTES", 0)
    found = counted(monkeypatch)
    query = query_of(world, layout, WINDOW)
    batches = skewed_batches(4)
    for number, (left, right) in enumerate(batches):
        query.run_tuples(number, left, right)
        query.jobs.stores = RunStores(world)
        shutil.rmtree(cache.file_cache().folder)
    assert any(record.joins[0].moved.rows for record in query.records)
    assert found["get_ranges", "runs"]
    query.finish(len(batches))
    check_results(query, batches, WINDOW)


def test_over_a_folder_nothing_is_told_of_caches(tmp_path):
    query = LocalQuery(tmp_path, two_way(None, 4), "hash")
    for number, (left, right) in enumerate(skewed_batches(3)):
        query.run_tuples(number, left, right)
    assert [record.joins[0].reads.files for record in query.records] == [0] * 3


#: Rows of the table in docs/cluster.md: what a request asks for, and at which of our folders.
ROWS = {
    "runs written": {("put", "runs")},
    "manifest written": {("put", "manifest")},
    "looks at the fence": {
        ("list_with_delimiter", "generations"),
        ("list_with_delimiter", "boundary"),
    },
    "results written, copied and deleted": {("put", "out"), ("copy", "out"), ("delete", "out")},
    "blocks written, under exchange `files`": {("put", "exchange")},
    "blocks read, under exchange `files`": {("get", "exchange")},
}


def counted(monkeypatch):
    """Requests from now on, by what they ask for, and where."""
    found = Counter()
    for name in REQUESTS:
        asked = getattr(obstore, name)

        def ask(store, key=None, *args, name=name, asked=asked, **rest):
            if key is None:  # a list below a prefix
                return asked(store, **rest)
            first = key if isinstance(key, str) else key[0]
            found[name, re.search(r"query/(?:joinengine/)?(\w+)", first)[1]] += 1
            return asked(store, key, *args, **rest)

        monkeypatch.setattr(obstore, name, ask)
    return found


def stated(tasks):
    """What the table says of so many tasks."""
    lines = (ROOT / "docs/cluster.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    (head,) = [row for row in cells if f"{tasks} tasks" in row]
    return {row[0]: int(row[head.index(f"{tasks} tasks")]) for row in cells if row[0] in ROWS}


@pytest.mark.slow
@pytest.mark.parametrize(
    "tasks", [2, *(pytest.param(tasks, marks=pytest.mark.slow) for tasks in (4, 8))]
)
def test_requests_of_a_batch_are_those_of_the_documentation(world, tasks, monkeypatch):
    jobs = InlineJobs(parallelism=tasks, world=world)
    query = LocalQuery("/query", two_way(None, 8), "hash", jobs=jobs)
    # Enough keys for each map task to have some for each instance.
    batches = [[[(n, n, 0) for n in range(9000)]] * 2] * 6  # more than is inlined
    for number in range(5):
        query.run_tuples(number, *batches[number], map_tasks=tasks)
    found = counted(monkeypatch)
    frame = [
        [(side, rows(side, batches[5][side][task::tasks])) for side in PAIR]
        for task in range(tasks)
    ]
    query.runner.take(frame, Handed("q", 5, ""), dict)
    assert found.keys() <= set().union(*ROWS.values()), found
    assert {what: sum(found[one] for one in ROWS[what]) for what in ROWS} == stated(tasks)
