"""A whole query in a world of its own: it asks nothing else, and does the same again."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.windows import within
from joinengine.state.wished import Relayout
from joinengine.world.memory import MemoryWorld
from joinengine.world.world import MACHINE
from tests.harness import LocalQuery, two_way
from tests.laws.cases import (
    CHOICES,
    EACH_ROUTER,
    enough,
    feed,
    kills,
    relaxed,
    skewed_batches,
    streams,
)

# No other test names this folder: only these queries could have made it.
NOWHERE = "/nowhere-but-in-memory/query"
WINDOW = within("lt", "rt", lower="-300 us", upper="300 us", delay="1000 us")


def run(folder, world, layout, batches, killed, how):
    query = LocalQuery(
        folder,
        two_way(window=WINDOW, instances=enough(layout, 2), how=how),
        layout,
        jobs=InlineJobs(world=world),
        choice=CHOICES[layout],
        settings=Settings(schedule={2: (Relayout(instances=3),)}),
    )
    feed(query, batches, killed)
    return query


@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@given(batches=streams(max_rows=12), killed=kills, how=st.sampled_from(["inner", "full"]))
@example(batches=skewed_batches(3), killed={(1, "routed"), (2, "committed")}, how="full")
def test_a_query_in_memory_does_the_same_again(layout, batches, killed, how):
    worlds = [MemoryWorld(), MemoryWorld()]
    first, second = (run(NOWHERE, one, layout, batches, killed, how) for one in worlds)
    assert worlds[0].files == worlds[1].files
    assert not Path(NOWHERE).parent.exists()
    assert first.output() == second.output()
    if batches == skewed_batches(3):
        with tempfile.TemporaryDirectory() as folder:
            on_disk = run(folder, MACHINE, layout, batches, killed, how)
            assert first.output() == on_disk.output()
        assert first.output()
        assert any("/joinengine/runs/g" in path for path in worlds[0].files)
