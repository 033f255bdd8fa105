"""The tasks of a join as instances grow, with the same rows, on one core: `make bench-kernels`.

Each benchmark carries out the two join tasks of one batch, after some batches of state, and gives
in `extra_info` the milliseconds for each instance.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from joinengine.api import column_checks as columns
from joinengine.driver.batch import BatchRunner
from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import choose
from joinengine.model.conditions import equi
from joinengine.model.query import FromSource, JoinType
from joinengine.operators import Join
from joinengine.operators.base import QuerySpec
from joinengine.results.delivery import Delivery
from joinengine.results.sinks import DiscardSink
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Handed

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


@pytest.mark.parametrize("instances", [8, 64, 512])
def test_join_tasks(benchmark, tmp_path, instances):
    schemas, on = sides(), equi("lk", "rk")
    join = Join(
        index=0,
        condition=on,
        window=None,
        how=JoinType.INNER,
        inputs=(FromSource(0), FromSource(1)),
        schemas=schemas,
        output=columns.output_columns(schemas, on, None, JoinType.INNER, None),
        instances=instances,
    )
    checkpoint = Checkpoint.below(tmp_path)
    checkpoint.create()
    query = QuerySpec((join,), ("left", "right"))
    delivery = Delivery(checkpoint, DiscardSink())
    runner = BatchRunner(
        TimedJobs(benchmark), query, [choose("hash")], checkpoint, "q", delivery, Settings()
    )
    runner.recover()
    draws = np.random.default_rng(0)
    for batch in range(BATCHES):
        keys = np.arange(SMALL) + SMALL * batch, draws.integers(0, KEYS, LARGE)
        batches = [rows(schema, some) for schema, some in zip(schemas, keys, strict=True)]
        frame = [list(enumerate(batches))]  # one map task
        runner.take(frame, Handed("", batch, ""), dict)
    benchmark.extra_info["ms_per_instance"] = 1e3 * benchmark.stats.stats.median / instances
