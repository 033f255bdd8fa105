"""The tasks of a join as instances grow, with the same rows, on one core: `make bench-kernels`.

Each benchmark carries out the two join tasks of one batch, after some batches of state, and gives
in `extra_info` the milliseconds for each instance.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.lab.inline.inline_runs import run_on
from joinengine.lab.inline.two_way import Input, two_way
from joinengine.layouts import choose
from joinengine.model.conditions import equi

#: Rows of a batch: a small side and a large one, as in the last join of EQ5.
SMALL, LARGE = 100, 60_000
KEYS = 1_000
BATCHES = 6


class TimedJobs(InlineJobs):
    """Runs tasks here; those of the last batch are repeated, which no task may notice."""

    def __init__(self, benchmark):
        super().__init__()
        self._benchmark = benchmark

    def run(self, operator, tasks):
        """The reports of the tasks."""
        run = super().run
        if tasks[0].header.batch == BATCHES - 1:
            self._benchmark.pedantic(run, args=(operator, tasks), rounds=7)
        return run(operator, tasks)


def sides():
    """The schemas of a side of 5 columns and of one of 16."""
    left = [("lk", pa.int64()), *((f"l{n}", pa.int64()) for n in range(4))]
    right = [("rk", pa.int64()), *((f"r{n}", pa.int64()) for n in range(12))]
    return pa.schema(left), pa.schema([*right, *((f"t{n}", pa.string()) for n in range(3))])


def rows(schema, keys):
    """Tuples with these keys."""
    texts = pa.array([f"text {key}" for key in keys])
    kinds = [texts if pa.types.is_string(field.type) else pa.array(keys) for field in schema]
    return pa.RecordBatch.from_arrays(kinds, schema=schema)


def frames(schemas):
    """The batches of both sides."""
    draws = np.random.default_rng(0)
    for batch in range(BATCHES):
        keys = np.arange(SMALL) + SMALL * batch, draws.integers(0, KEYS, LARGE)
        yield [rows(schema, some) for schema, some in zip(schemas, keys, strict=True)]


@pytest.mark.parametrize("instances", [8, 64, 512])
def test_join_tasks(benchmark, instances):
    left, right = sides()
    query = two_way((Input(left), Input(right)), equi("lk", "rk"), instances=instances)
    run_on(TimedJobs(benchmark), query, [choose("hash")], frames((left, right)))
    benchmark.extra_info["ms_per_instance"] = 1e3 * benchmark.stats.stats.median / instances
