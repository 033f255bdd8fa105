"""Second copies of run files in a place that the user names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joinengine.model.errors import DamagedState
from joinengine.model.recovery import Recovery
from tests.harness import two_way
from tests.laws import cases
from tests.laws.storing import (
    STORE,
    WINDOW,
    Clocked,
    alter,
    files_of,
    harm,
    in_memory,
    noticed,
    timed_batches,
)


def test_copies_may_lie_elsewhere():
    """Nothing is emulated then; two queries in one place do not see each other's copies."""
    batches, world = timed_batches(6, 1), Clocked()
    settings = replace(STORE, store_location="/elsewhere", recovery=Recovery.REPLICAS)
    plain = in_memory(two_way(WINDOW, 4), "mnrt")
    query = in_memory(two_way(WINDOW, 4), "mnrt", settings, world=world)
    cases.feed(plain, batches)
    world.files["/elsewhere/other/g1-run-other.arrow"] = b"of another query"

    def harm_then(name):
        if name == "routed" and query.runner.manifest.batch == 3:
            assert harm(query, {0, 1}, "altered")

    cases.feed(query, batches, before=harm_then)
    assert query.output() == plain.output() and query.output()
    assert any(any(lost) for number in range(6) for lost in noticed(query, number))
    assert not getattr(world, "slept", [])
    copies = query.runner._store.copies
    assert copies.folder == "/elsewhere/q" and set(copies.names()) == {
        stored.name for stored in files_of(query) if stored.content is None
    }
    assert not query.checkpoint.store.names()
    assert "/elsewhere/other/g1-run-other.arrow" in world.files


def test_a_copy_elsewhere_that_is_damaged_too_is_named():
    query = in_memory(two_way(None, 3), "hash", replace(STORE, store_location="/elsewhere"))
    batches = timed_batches(3, 1)
    cases.feed(query, batches[:2])
    for stored in files_of(query):
        alter(query.runner._store.copies, stored.name)
    assert harm(query, range(3), "altered")
    with pytest.raises(DamagedState, match="its copy in the store /elsewhere/q/g1-run-"):
        query.run_tuples(2, *batches[2])
