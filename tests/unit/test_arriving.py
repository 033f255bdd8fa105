"""What a task is told of the blocks that arrive, against their reports."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joinengine.exchange.arrivals import Arriving
from joinengine.model.keys import Side
from joinengine.operators.base import hosts
from joinengine.wire.codec import decode, encode
from joinengine.wire.reports import Block

INSTANCES = 7
#: How many rows each instance has in a record batch.
sizes = st.lists(st.integers(0, 3), min_size=INSTANCES, max_size=INSTANCES)
chunks = st.lists(sizes, min_size=0, max_size=3)


def block(number, rows):
    bounds = tuple(np.concatenate([[0], np.cumsum(one)]) for one in rows)
    return Block(1, Side.RIGHT, f"block-{number}.arrow", bounds)


@settings(max_examples=60, deadline=None)
@given(st.lists(chunks, max_size=4), st.integers(1, 5), st.integers(INSTANCES, INSTANCES + 3))
def test_a_task_finds_the_tuples_of_its_instances(rows, tasks, instances):
    """There may be more instances than bounds: after a shrink some only watch."""
    blocks = [block(number, some) for number, some in enumerate(rows)]
    hosted = hosts(instances, tasks)
    told = [decode(encode(one), Arriving) for one in Arriving.by_task(blocks, Side.RIGHT, hosted)]
    assert len(told) == tasks
    for ours, one in zip(hosted, told, strict=True):
        assert [found.file for found in one.blocks] == [real.file for real in blocks]
        for found, real in zip(one.blocks, blocks, strict=True):
            assert (found.operator, found.side) == (1, Side.RIGHT)
            assert len(found.bounds) == len(real.bounds)
            for mine, true in zip(found.bounds, real.bounds, strict=True):
                assert len(mine) == len(true)
                assert (np.diff(mine) >= 0).all()
                for instance in (i for i in ours if i < INSTANCES):
                    assert mine[instance : instance + 2].tolist() == (
                        true[instance : instance + 2].tolist()
                    )


@pytest.mark.parametrize("tasks", [4, 16])
def test_what_is_told_does_not_grow_with_the_tasks(tasks):
    """Each number is told once, to the task that needs it."""
    blocks = [block(number, [[2] * 64]) for number in range(50)]
    told = Arriving.by_task(blocks, Side.LEFT, hosts(64, tasks))
    assert sum(one.spans.size for one in told) == 2 * 64 * 50
    assert sum(len(encode(one)) for one in told) < 2 * 64 * 50 * 8 + tasks * 3000
