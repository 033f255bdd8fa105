"""Memory follows the chunk, not the matches, and wide tuples go on in pieces that fit."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ROWS = 10_000
#: What a worker may take, in bytes.
LIMIT = 2 << 30

SCRIPT = f"""
import json, resource, sys, tempfile
from joinengine.model.windows import within
from joinengine.driver.batch import BatchRunner
from joinengine.driver.settings import Settings
from joinengine.results.delivery import Delivery
from joinengine.results.sinks import DiscardSink
from joinengine.layouts import choose
from tests.harness import LocalQuery, two_way

class Quiet(LocalQuery):
    def restart(self):
        told = self.checkpoint, "q", Delivery(self.checkpoint, DiscardSink()), Settings()
        self.runner = BatchRunner(self.jobs, self.query, [self.choice], *told)
        self.runner.observe(self.records.append)

    def check_state(self):
        pass  # ten thousand tuples of a key that a semi join keeps without their values are alike

how, layout = sys.argv[1:]
window = within("lt", "rt", lower="-1 hour", upper="1 hour", delay="0 s")
with tempfile.TemporaryDirectory() as folder:
    query = Quiet(folder, two_way(window, 4, how=how), layout)
    one_key = [(7, n, 0) for n in range({ROWS})]
    query.run_tuples(0, one_key, one_key)
    query.finish(1)
rows = sum(record.joins[0].output_rows for record in query.records)
print(json.dumps([rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


#: What a task may hold, in bytes.
BUDGET = 300 << 20
WIDE = f"""
import json, sys, tempfile
import numpy as np
import pyarrow as pa
from joinengine.model.windows import sliding
from tests import harness
from tests.faults.budgeted import Budgeted, Watch

TIME = pa.timestamp("us", "UTC")
for side, key in (("LEFT", "lk"), ("RIGHT", "rk")):
    names = [(key, pa.int64()), (key[0] + "v", pa.string()), (key[0] + "t", TIME)]
    setattr(harness, side, pa.schema(names))

class Query(Budgeted):
    budget = {BUDGET}

def tuples(schema, n, width, keys, first=0):
    texts = [f"{{i:08}}" * (width // 8) for i in range(n)]
    columns = [np.arange(n) % keys + first, texts, np.zeros(n, int)]
    arrays = [pa.array(c).cast(f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

watch, over = Watch(), 0
n, width, keys, batches = map(int, sys.argv[1:5])
join = harness.two_way(None, 4)
apart = sys.argv[5:6] == ["apart"]
if apart:  # no row meets another one, and all close together
    day = sliding("lt", "rt", "1 day", sys.argv[6], delay="2 days")
    join = harness.two_way(day, 1, how="full")
with tempfile.TemporaryDirectory() as folder:
    query = Query(folder, join, "hash")
    for batch in range(batches):
        right = tuples(harness.RIGHT, n, width, keys, keys if apart else 0)
        frame = [[(0, tuples(harness.LEFT, n, width, keys)), (1, right)]]
        over = max(over, watch.risen(lambda: query.run(batch, frame)))
rows = sum(record.joins[0].output_rows for record in query.records)
print(json.dumps([rows, over]))
"""


@pytest.mark.parametrize(
    ("n", "width", "keys", "batches", "rows"),
    [
        (1_000, 2_000, 1, 1, 1_000_000),
        (30_000, 8_000, 15_000, 1, 60_000),
        (6_000, 8_000, 6_000, 5, 150_000),
    ],
    ids=["a key that matches a million times", "wide arrivals", "merges of wide runs"],
)
def test_a_task_keeps_its_budget(n, width, keys, batches, rows):
    """Results, arrivals and merges are each more than the budget, by a factor of two and more."""
    assert rows_under_watch(n, width, keys, batches) == rows


@pytest.mark.parametrize(("n", "batches", "slide"), [(6_000, 6, "1 day"), (700, 1, "15 minutes")])
def test_rows_that_wait_for_one_moment_are_kept_within_the_budget(n, batches, slide):
    """Unmatched rows of both sides wait until their windows end: one of them, or each of 96."""
    assert rows_under_watch(n, 8_000, n, batches, "apart", slide) == 0


def rows_under_watch(*arguments):
    """The results of such a program, which holds no more than its budget."""
    arguments = [str(argument) for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-c", WIDE, *arguments], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr[-2000:]
    rows, over = json.loads(done.stdout)
    assert over < BUDGET
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["hash", "dynamic"])
@pytest.mark.parametrize("how", ["inner", "full", "left_semi"])
def test_a_hot_key_with_a_hundred_million_matches(how, layout):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how, layout], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr[-2000:]
    rows, peak = json.loads(done.stdout)
    assert rows == (ROWS if how == "left_semi" else ROWS * ROWS)
    assert peak < LIMIT
