"""A program that waits for a query, as a user writes it: Ctrl-C, the page, and what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
import sys, threading, time
from pathlib import Path
from joinengine import StreamJoin, parquet_stream, session

root = Path(sys.argv[1])
spark = session(master="local[1]", ui=True)
spark.sparkContext.setLogLevel("WARN")
left, right = (parquet_stream(spark, root / side) for side in ("left", "right"))
left.to_df()
spark.sparkContext.setLogLevel("ERROR")
page = spark.sparkContext.uiWebUrl
port = f":{int(page.rpartition(':')[2]):04X}"
for table in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        local = line.split()[1]
        if local.endswith(port) and line.split()[3] == "0A":
            print("page", local, flush=True)

joined = StreamJoin(left, right, on="key", instances=2)
writer = joined.writeStream.format("noop").trigger(processingTime="100 milliseconds")
query = writer.option("checkpointLocation", str(root / "checkpoint")).start()

def tell():
    while not query.done[1]:
        time.sleep(0.1)
    print("ready", flush=True)

threading.Thread(target=tell, daemon=True).start()
query.awaitTermination()
print("went on", flush=True)
"""


@pytest.fixture
def folder(tmp_path):
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        pq.write_table(pa.table({"key": range(100)}), tmp_path / side / "0.parquet")
    return tmp_path


def test_ctrl_c_stops_the_query_and_ends_a_script(folder):
    """The signal goes to the whole group of processes, as from a terminal."""
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    said = []
    for line in running.stdout:
        said.append(line.strip())
        if line == "ready\n":
            break
    os.killpg(running.pid, signal.SIGINT)
    rest, errors = running.communicate(timeout=240)
    assert said[-1] == "ready", errors
    assert running.returncode == 130
    assert "went on" not in rest
    assert "joinengine: stopped on Ctrl-C; nothing is lost" in errors
    for word in ("Traceback", "Exception", "\tat ", "previously registered"):
        assert word not in errors
    pages = [line.split()[1] for line in said if line.startswith("page")]
    assert len(pages) == 1
    assert pages[0].rpartition(":")[0].endswith("0100007F")  # 127.0.0.1


FAILING = """
import sys
from pathlib import Path
from joinengine import JoinEngineError, StreamJoin, parquet_stream, session

root = Path(sys.argv[1])
spark = session(master="local[1]")
sides = [spark.readStream.schema("key long").parquet(str(root / "left"))]
sides.append(parquet_stream(spark, root / "right"))
(root / "left" / "1.parquet").write_bytes(b"half")
query = (
    StreamJoin(*sides, on="key", instances=2)
    .writeStream.format("noop")
    .trigger(availableNow=True)
    .option("checkpointLocation", str(root / "checkpoint"))
    .start()
)
try:
    query.awaitTermination()
except JoinEngineError as error:
    print(error)
"""


def test_a_failure_is_one_sentence_without_sparks_traces(folder):
    done = subprocess.run(
        [sys.executable, "-c", FAILING, str(folder)], capture_output=True, text=True, check=False
    )
    assert "1.parquet is not a Parquet file" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1
    for word in ("Traceback", "Exception", "\tat "):
        assert word not in done.stderr
