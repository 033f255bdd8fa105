"""Commands whose streams, tables and state lie in an object store, below `--state`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine.world import buckets
from joinengine.world.world import MACHINE
from tests.objects import environment, make_bucket, s3_server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: The command lines of the argument in turn, in one session; a task may not open what is generated.
PROGRAM = """
import json, os, sys
from contextlib import contextmanager
from joinengine import session
from joinengine.lab.cli import cli
from joinengine.lab.commands import sessions

spark = session(master="local[2]")
spark.sparkContext.setLogLevel("ERROR")

@contextmanager
def shared(master):
    yield spark

sessions.started = shared
for line in json.loads(sys.argv[1]):
    cli(line, standalone_mode=False)
"""
#: Comes before all else in a worker's Python: a task that opens a generated file by its path ends.
GUARD = """
import os, sys

def see(event, arguments):
    path = arguments[0] if event == "open" and arguments else None
    if isinstance(path, str) and path.startswith(os.environ["JOINENGINE_HOME"]):
        if "spark.daemon" in " ".join(sys.orig_argv):  # PySpark's, or ours
            raise RuntimeError("a task has opened " + path)

sys.addaudithook(see)
"""


def below(place):
    return [one[0][len(place) + 1 :] for one in buckets.files_below(place)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The reports of the commands, and the bucket after them."""
    root = tmp_path_factory.mktemp("reach")
    with s3_server() as values, environment(values):
        bucket = make_bucket(values)
        storage = MACHINE.storage(bucket)
        for side, other in (("left", "l"), ("right", "r")):
            for number in range(2):
                keys = [n % 7 for n in range(50)]
                table = pa.table({"key": keys, other: list(range(number * 50, number * 50 + 50))})
                with storage.output(f"in/{side}/{number}.parquet") as sink:
                    pq.write_table(table, sink)
        state, own = f"{bucket}/x", ["--left", f"{bucket}/in/left", "--right", f"{bucket}/in/right"]
        small = ["--scale", "0.001", "--instances", "3", "--state", state]
        lines = {
            "compared": ["compare", "eq5", "--layouts", "hash,mnrt", "--zipf", "1.2", *small],
            "q5": ["run", "q5", *small, "--scale", "0.005", "--validate"],  # fewer: no results
            "own": ["run", *own, "--on", "key", "--instances", "3", "--validate"],
            "both": ["compare", *own, "--on", "key", "--layouts", "mnrt", "--state", f"{bucket}/y"],
        }
        for name, line in lines.items():
            line += ["--json", str(root / f"{name}.json")]
        (root / "first").mkdir()
        (root / "first" / "sitecustomize.py").write_text(GUARD)
        paths = os.pathsep.join([str(root / "first"), os.environ.get("PYTHONPATH", "")])
        ours = {"JOINENGINE_HOME": str(root / "home"), "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(list(lines.values()))],
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
            env=os.environ | values | ours,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        reports = {name: json.loads((root / f"{name}.json").read_text()) for name in lines}
        yield reports, bucket
    buckets.store_of.cache_clear()


def test_layouts_are_compared_over_a_store(ran):
    reports, bucket = ran
    runs = reports["compared"]["runs"]
    assert [(run["layout"], run["valid"]) for run in runs] == [("hash", True), ("mnrt", True)]
    assert all(run["batches"][0]["batch"] == 0 for run in runs), "each begins anew"
    assert {run["exchange"] for run in runs} == {"shuffle"}
    names = below(f"{bucket}/x")
    assert any(name.startswith("streams/region-nation-supplier-lineitem-sf0.001") for name in names)


def test_the_state_of_compared_runs_goes(ran):
    _, bucket = ran
    left = [name for place in ("x", "y") for name in below(f"{bucket}/{place}")]
    assert [name for name in left if name.startswith("run-")] == []
    assert [name for name in left if name.startswith("joinengine/")], "of `run`, which keeps it"


def test_the_tables_of_q5_are_beside_its_streams(ran):
    reports, bucket = ran
    assert reports["q5"]["valid"] is True
    assert reports["q5"]["output_rows"] > 0
    names = {name for name in below(f"{bucket}/x/streams") if name.startswith("tables/")}
    assert names == {
        f"tables/sf0.005-{n}.parquet" for n in ("customer", "supplier", "nation", "region")
    }


def test_sides_in_a_store_are_joined(ran):
    reports, _ = ran
    assert reports["own"]["valid"] is True
    assert reports["own"]["query"] == "left join right"
    assert reports["own"]["output_rows"] == sum((14 + 2 * (k < 1)) ** 2 for k in range(7))


def test_sides_in_a_store_are_compared_over_a_store(ran):
    reports, _ = ran
    (run,) = reports["both"]["runs"]
    assert run["valid"] is True
    assert run["output_rows"] == reports["own"]["output_rows"]
