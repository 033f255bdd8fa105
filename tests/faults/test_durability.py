"""State on the disks of real executors: one is killed, or all end with their driver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter

import pyarrow.parquet as pq
import pytest

from tests.faults import disks

pytestmark = pytest.mark.spark

FILES, ROWS = 10, 3_000
#: Run by each Python of an executor: its uploads fail as long as a file is there.
STALLED = """
import os
from joinengine.world.behind import Behind
upload = Behind.upload

def stalled(self, name):
    if os.path.exists({flag!r}):
        raise OSError("no store today")
    upload(self, name)

Behind.upload = stalled
"""
#: A query that says which batches are done.
SCRIPT = """
import sys
from pathlib import Path
from joinengine import StreamJoin, equi, parquet_stream, session, within
from joinengine.layouts import Ftlb

folder, rows, python_path = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
spark = session(
    master="local-cluster[3,1,1024]",
    spark__executor__memory="700m",
    spark__executorEnv__PYTHONPATH=python_path,
)
sides = [parquet_stream(spark, folder / "in" / side, rows_per_interval=rows) for side in "lr"]
window = within("lt", "rt", lower="0 s", upper="1 hour", delay="0 s")
joined = StreamJoin(
    *sides, on=equi("lk", "rk"), within=window, layout=Ftlb(imbalance=9.0), instances=7
)
writer = joined.writeStream.format("parquet").option("durability", "replicas")
writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
query = writer.trigger(availableNow=True).start(str(folder / "out"))

def done(progress):
    if progress.batchId == 2:
        (folder / "stalled").touch()  # from here on: whoever reads this output may be late
    print("batch", progress.batchId, "is done", flush=True)

query.add_listener(done)
query.awaitTermination()
print("all is done", flush=True)
"""


@pytest.fixture
def called(tmp_path):
    environment = os.environ | {"JOINENGINE_HOME": str(tmp_path.parent / "home")}

    def call(*command):
        done = subprocess.run(
            [sys.executable, *command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return call


@pytest.mark.slow
def test_an_executor_that_is_killed_takes_its_disk_along_and_nothing_is_lost(called, tmp_path):
    report_path = tmp_path / "report.json"
    code, said = called(
        *("-m", "joinengine", "run", "eq5", "--layout", "ftlb", "--zipf", "1.0"),
        *("--scale", "0.01", "--interval-rows", "6000", "--instances", "7", "--validate"),
        *("--durability", "replicas", "--kill", "5", "--json", str(report_path)),
        *("--master", "local-cluster[2,1,1024]"),
    )
    assert code == 0, said[:2000] + said[-1000:]
    report = json.loads(report_path.read_text())
    assert report["valid"] is True
    assert report["durability"] == "replicas"
    assert re.search(r"killed executor \d+ on \S+ before batch 5", said)
    assert "lost its state (its executor is gone); its keys go on at their backups" in said
    # On a busy machine Spark says a batch later that the executor is gone.
    assert any(batch["recovery_s"] > 0 for batch in report["batches"][5:])
    assert not any(batch["recovery_s"] for batch in report["batches"][:5])
    # On a busy machine the first batches come before all executors have free slots, and the last
    # ones before another executor is there.
    assert "stay" in [batch["tasks"] for batch in report["batches"]]


@pytest.mark.slow
def test_a_driver_that_is_started_again_computes_again_what_its_executors_had(tmp_path):
    """Executors do not reach the store before they end, so their last files are lost."""
    for number in range(FILES):
        disks.write(tmp_path / "in", number, rows=ROWS)
    flag, site = tmp_path / "stalled", tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(STALLED.format(flag=str(flag)))
    python_path = os.pathsep.join([str(site), *sys.path])

    def start():
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path), str(ROWS), python_path],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with start() as first:
        for line in first.stdout:
            if line == "batch 6 is done\n":
                break
        first.kill()
    flag.unlink()
    with start() as second:
        said = second.stdout.read()
    assert second.returncode == 0, said[:2000] + said[-1000:]
    assert re.search(
        r"executors that are gone held state of batches [3-6] to \d+ of checkpoint \S+", said
    )
    assert "all is done" in said
    found = Counter(pq.read_table(tmp_path / "out", columns=["lk"])["lk"].to_pylist())
    assert found == Counter(range(FILES * ROWS))
