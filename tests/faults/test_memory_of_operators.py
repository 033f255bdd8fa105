"""A hot key of wide tuples: operators beside the join keep to what a task may hold, too."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

#: What a task may hold, in bytes.
BUDGET = 200 << 20
#: Tuples of each stream and batch, all of one key, and the bytes of each: more than the budget.
ROWS, WIDTH = 30_000, 8_000
SCRIPT = f"""
import json, sys, tempfile
import numpy as np
import pyarrow as pa
from joinengine import StreamAggregate, StreamJoin, asof, equi, last, within
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from tests.faults.budgeted import Budgeted, Watch
from tests.harness import TIME

def schema(name):
    return pa.schema([(name + "k", pa.int64()), (name + "v", pa.string()), (name + "t", TIME)])

def stream(name):
    return Stream(None, {{"kind": "recorded", "path": name}}, Reading(schema(name)))

class Query(Budgeted):
    budget = {BUDGET}

def tuples(name, batch):
    texts = [f"{{i:08}}" * ({WIDTH} // 8) for i in range({ROWS})]
    times = np.arange({ROWS}) + batch * {ROWS}
    columns = [np.zeros({ROWS}, int), texts, times]
    arrays = [pa.array(c).cast(f.type) for c, f in zip(columns, schema(name), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema(name))

many = {{"layout": "hash", "instances": 2}}
names = "abc"
if sys.argv[1] == "multiway":
    plan = stream("a")
    for other in "bc":
        near = within("at", other + "t", lower="0 us", upper="2 us", delay="0 us")
        on = equi("ak", other + "k")
        plan = StreamJoin(plan, stream(other), on=on, within=near, **many)
elif sys.argv[1] == "as-of":
    names = "ab"
    on = asof("at", "bt", by=equi("ak", "bk"), delay="0 us")
    plan = StreamJoin(stream("a"), stream("b"), on=on, **many)
else:
    names = "a"
    longest = {{"n": "max(length(av))"}}
    plan = StreamAggregate(
        stream("a"), by="ak", aggregates=longest, window=last("at", 3, delay="0 us"), **many
    )
planned = plan._planned()
watch, over = Watch(), 0
with tempfile.TemporaryDirectory() as folder:
    query = Query(folder, planned.query, "hash", choices=planned.choices)
    for batch in range(2):
        frame = [[(number, tuples(name, batch)) for number, name in enumerate(names)]]
        over = max(over, watch.risen(lambda: query.run(batch, frame)))
rows = sum(record.joins[0].output_rows for record in query.records)
print(json.dumps([rows, over]))
"""


@pytest.mark.parametrize(
    ("operator", "rows"),
    [("as-of", ROWS - 1), ("multiway", 2 * 9 * ROWS - 13), ("last", ROWS - 1)],
)
def test_a_hot_key_of_wide_tuples(operator, rows):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, operator], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr[-2000:]
    found, over = json.loads(done.stdout)
    assert found == rows
    assert over < BUDGET * 3 // 2  # DuckDB takes some for itself
