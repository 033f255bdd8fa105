"""Which run files a worker keeps open, if each of its tasks is told of its own alone."""

from __future__ import annotations

import pytest

from joinengine.state.run import IDLE, RunStore
from joinengine.world.memory import MemoryWorld


@pytest.fixture
def store():
    """A process that has the files a and b open."""
    store = RunStore(MemoryWorld().storage("runs"))
    store._open.update(a=None, b=None)
    store.see(["a", "b"], 10)
    return store


def test_a_file_stays_open_while_other_tasks_run(store):
    for batch in range(11, 10 + IDLE):
        store.see(["a"], batch)
        assert store._open.keys() == {"a", "b"}
    store.see(["a"], 10 + IDLE)
    assert store._open.keys() == {"a"}


def test_a_file_that_this_process_wrote_is_trusted_until_its_task_comes(store):
    store.trust("c")
    store.see(["a"], 11)  # another task of the process
    assert "c" in store._verified
    store.see(["a"], 10 + IDLE)
    assert "c" not in store._verified
