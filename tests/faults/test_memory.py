"""Memory follows the chunk, not the matches: 10^8 pairs of one key in one batch."""

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
from joinengine.driver.sinks import DiscardSink
from joinengine.layouts import choose
from tests.harness import LocalQuery, two_way

class Quiet(LocalQuery):
    def restart(self):
        self.runner = BatchRunner(
            self.jobs, self.query, [self.choice], self.checkpoint, "q", DiscardSink(), Settings()
        )
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
