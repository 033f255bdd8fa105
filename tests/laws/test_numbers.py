"""Tuples that are watched or told apart by number: no two that live together share one."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.driver.settings import Settings
from joinengine.kernels.watch_numbers import ROW_BITS, number_tuples
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import Ftlb
from joinengine.model.errors import InvalidRequest
from joinengine.model.recovery import Durability
from joinengine.model.windows import within
from joinengine.state import manifests
from joinengine.world.memory import MemoryWorld
from tests.executors import ClusterJobs
from tests.harness import LocalQuery, two_way

#: What versions that numbered tuples by their batch told batches apart by.
OLD_BATCH_BITS, OLD_TASK_BITS = 24, 12


def start():
    window = within("lt", "rt", lower="-1 hour", upper="1 hour", delay="1 hour")
    jobs = InlineJobs(world=MemoryWorld())
    return LocalQuery("/nowhere/query", two_way(window, how="left"), "hash", jobs=jobs)


@given(
    tasks=st.lists(st.integers(0, (1 << 36) - 1), min_size=2, max_size=4, unique=True),
    before=st.integers(0, 9),
    n=st.integers(1, 9),
    windows_each=st.integers(1, 5),
)
def test_no_two_tasks_give_one_number(tasks, before, n, windows_each):
    taken = Counter()
    for serial in tasks:
        for number in number_tuples(n, before, windows_each, serial).tolist():
            taken.update(range(number, number + windows_each))
    assert len(taken) == len(tasks) * n * windows_each
    assert set(taken.values()) == {1}


def test_a_task_with_more_rows_than_numbers_is_refused():
    assert len(number_tuples(1, (1 << ROW_BITS) - 1, 1, serial=5)) == 1
    with pytest.raises(InvalidRequest, match="at most 268435456 entries of a task"):
        number_tuples(1, 1 << ROW_BITS - 1, 2, serial=5)


def test_a_row_is_not_taken_for_one_of_many_batches_ago():
    """An old row without a partner, and 2^24 batches later one that has one, of the same task."""
    query = start()
    query.run_tuples(0, [(1, 10, 0)], [], map_tasks=1)
    much_later = replace(query.runner.manifest, batch=(1 << OLD_BATCH_BITS) - 1)
    query.runner.manifest = much_later
    query.run_tuples(1, [(2, 20, 1)], [(2, 21, 2)], map_tasks=1)
    query.finish(2)
    assert query.output() == Counter({(1, 10, 0, None, None, None): 1, (2, 20, 1, 2, 21, 2): 1})


@pytest.mark.parametrize("map_tasks", [1, 3])
def test_serial_numbers_go_on_behind_those_of_all_tasks(map_tasks):
    query = start()
    taken = [query.runner.manifest.serials]
    for batch in range(3):
        query.run_tuples(batch, [(batch, 1, batch)] * 3, [(batch, 2, batch)] * 3, map_tasks)
        taken.append(query.runner.manifest.serials)
        query.restart()
        assert query.runner.manifest.serials == taken[-1]
    assert taken[0] == 0
    assert all(after - before >= map_tasks for before, after in itertools.pairwise(taken))


def test_a_checkpoint_without_serial_numbers_goes_on_behind_its_batches():
    query = start()
    query.run_tuples(0, [(1, 10, 0)], [])
    query.run_tuples(1, [(1, 10, 0)], [])
    plain = manifests._to_json(query.runner.manifest)
    plain = {name: value for name, value in plain.items() if name != "serials"}
    older = manifests._from_json(manifests._Written(json.loads(json.dumps(plain)), 0, 0), None)
    last = 1 << OLD_TASK_BITS | (1 << OLD_TASK_BITS) - 1  # the last that batch 1 could have taken
    assert older.serials == last + 1


def test_what_more_tasks_compute_again_takes_more_numbers():
    """What the executors took along is theirs; the next batch goes on behind these tasks."""
    jobs = ClusterJobs()
    choice = Ftlb(domains=3, refill_rows=60, imbalance=9.0)
    settings = Settings(durability=Durability.REPLICAS)
    query = LocalQuery("/q", two_way(None, 7), "ftlb", choice=choice, settings=settings, jobs=jobs)
    query.check_state = lambda: None  # it looks in the store, where the newest files are not
    for batch in range(5):
        query.run_tuples(batch, [(key, batch, 0) for key in range(40)], [(1, batch, 0)], 3)
    before, lost = query.runner.manifest.serials, query.runner.manifest.batch
    assert query.runner.manifest.restorable < lost
    jobs.parallelism = 7
    jobs.restart()
    query.restart()
    assert query.runner.manifest.batch == lost
    assert query.runner.manifest.serials > before
