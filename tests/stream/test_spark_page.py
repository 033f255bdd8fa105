"""Spark's own web page: what its jobs are called, who can reach it, and that it is off unasked."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark

START = """
import json, os, sys, time, urllib.request
from pathlib import Path
from joinengine import StreamJoin, parquet_stream, session

root, spark = Path(sys.argv[1]), session(master="local[1]", ui=sys.argv[2] == "ui")

def listening():
    '''Hexadecimal addresses on which the JVM listens.'''
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (jvm,) = [pid for pid in children if "java" in os.readlink(f"/proc/{pid}/exe")]
    inodes = set()
    for one in Path(f"/proc/{jvm}/fd").iterdir():
        try:
            inodes.add(os.readlink(one).removeprefix("socket:[").rstrip("]"))
        except OSError:
            pass  # closed since
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and parts[9] in inodes:
                yield parts[1]

ui = spark.sparkContext._jsc.sc().ui().isDefined()
said = {"url": spark.sparkContext.uiWebUrl, "ui": ui, "listens": list(listening())}
"""

QUERIES = """
left, right, third = (
    parquet_stream(spark, root / side, rows_per_interval=50) for side in ("left", "right", "third")
)
both = StreamJoin(left, right, on="key", instances=2)

def start(name, joined, writer):
    writer = writer.option("checkpointLocation", str(root / f"{name}.checkpoint"))
    writer = writer.option("tasks", "jobs")
    query = writer.trigger(availableNow=True).start(*[str(root / name)][: name == "files"])
    query.awaitTermination()
    return query.id

def count(frame, batch):
    frame.count()

chain = StreamJoin(both, third, on="key", instances=2, multiway=False)
start("chain", chain, chain.writeStream.format("noop").queryName("three"))
start("files", both, both.writeStream.format("parquet").option("compactEvery", 2).queryName("f"))
said["id"] = start("mine", both, both.writeStream.foreachBatch(count))

def get(path):
    with urllib.request.urlopen(f"{said['url']}/api/v1/applications{path}", timeout=30) as answer:
        return json.loads(answer.read())

(app,) = get("")
for _ in range(300):  # the page learns of jobs a moment later
    jobs = get(f"/{app['id']}/jobs")
    if all(job["status"] == "SUCCEEDED" for job in jobs) and any(
        said["id"] in job.get("description", "") for job in jobs
    ):
        break
    time.sleep(0.1)
said["jobs"] = [(job.get("description", ""), job.get("jobGroup", "")) for job in jobs]
"""

END = """
print(json.dumps(said))
"""


@pytest.fixture
def folder(tmp_path):
    for number, side in enumerate(("left", "right", "third")):
        (tmp_path / side).mkdir()
        table = pa.table({"key": range(50), f"value_{number}": range(50)})
        for file in range(2):  # two batches, so that there are files to merge
            pq.write_table(table, tmp_path / side / f"{file}.parquet")
    return tmp_path


def said_by(program, folder, *more):
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), *more],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def on_loopback(address):
    """Whether an address as /proc/net writes it is 127.x.x.x, that within IPv6, or ::1."""
    host = address.partition(":")[0]
    return host.endswith("7F") if len(host) == 8 else host.endswith(("01000000", "7F"))


@pytest.mark.slow
def test_the_page_names_query_batch_operator_and_step(folder):
    said = said_by(START + QUERIES + END, folder, "ui")
    assert said["ui"]
    assert said["url"].startswith(("http://127.0.0.1:", "http://localhost:"))
    port = int(said["url"].rpartition(":")[2])
    assert f"{port:04X}" in {one.partition(":")[2] for one in said["listens"]}
    assert all(map(on_loopback, said["listens"])), said["listens"]
    names = [name for name, _ in said["jobs"]]
    assert {
        "joinengine three, batch 0: route",
        "joinengine three, batch 0: join 0 on key = key",
        "joinengine three, batch 0: join 1 on key = key",
        "joinengine f, batch 0: route",
        "joinengine f, batch 0: join 0 on key = key",
        "joinengine f: merge result files",
        "joinengine, batch 0: route",
        "joinengine, batch 0: join 0 on key = key",
    } <= set(names)
    # Jobs of the user's sink are called after the query, and are not taken for those of the join.
    own = [name for name in names if not name.startswith("joinengine")]
    assert own
    assert all(said["id"] in name and "runId = " in name for name in own)
    # One group of jobs for each run of a query, so that queries without a name are told apart.
    ours = [group for name, group in said["jobs"] if name != "joinengine: start workers"]
    assert len(set(ours)) == 3


@pytest.mark.slow
def test_without_being_asked_there_is_no_page(folder):
    said = said_by(START + END, folder, "none")
    assert said["url"] is None
    assert not said["ui"]
    assert said["listens"]
    assert all(map(on_loopback, said["listens"])), said["listens"]
