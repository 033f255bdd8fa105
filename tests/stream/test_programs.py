"""A program that waits for a query, as a user writes it: Ctrl-C, the page, and what it says."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine.spark.session import early

pytestmark = pytest.mark.spark

TRACES = ("Traceback", "Exception", "\tat ")

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


def write_sides(folder):
    for side in ("left", "right"):
        (folder / side).mkdir()
        pq.write_table(pa.table({"key": range(100)}), folder / side / "0.parquet")


@pytest.fixture
def folder(tmp_path):
    write_sides(tmp_path)
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
    for word in (*TRACES, "previously registered"):
        assert word not in errors
    pages = [line.split()[1] for line in said if line.startswith("page")]
    assert len(pages) == 1
    assert pages[0].rpartition(":")[0].endswith("0100007F")  # 127.0.0.1


def test_ctrl_c_ends_a_run_of_the_command_line_with_its_report(home, tmp_path):
    """The emulated work of the whole run would take many seconds more."""
    report, page = tmp_path / "run.json", tmp_path / "run.html"
    running = subprocess.Popen(
        [
            *(sys.executable, "-m", "joinengine", "run", "eq5", "--scale", "0.001", "--validate"),
            *("--interval-rows", "500", "--instances", "2", "--work-per-tuple", "3ms"),
            *("--out", str(tmp_path / "out"), "--json", str(report), "--report", str(page)),
            *("--master", "local[2]"),
        ],
        env=os.environ | {"JOINENGINE_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while running.poll() is None and not list((tmp_path / "out").glob("*.parquet")):
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)
    told, errors = running.communicate(timeout=240)
    assert running.returncode == 130, errors
    found = json.loads(report.read_text())
    batches = len(found["batches"])
    assert f"stopped on Ctrl-C after {batches:,} batches; the report covers them\n" in errors
    assert "go on" not in errors  # the state was temporary
    assert "Aborted" not in errors
    for word in TRACES:
        assert word not in errors
    assert batches
    assert found["valid"] is None
    assert found["story"]["ended"]["how"] == "stopped"
    assert sum(entry["input_rows"] for entry in found["story"]["batches"]) == found["input_rows"]
    assert told.splitlines()[-1] == f"report: {page}"
    assert page.read_text().startswith("<!doctype html>")


WATCHED = """
import sys, time
from pathlib import Path
from joinengine import StreamJoin, parquet_stream, session

root, trigger = Path(sys.argv[1]), {sys.argv[2]: {"true": True}.get(sys.argv[3], sys.argv[3])}
spark = session(master="local[1]")
left, right = (parquet_stream(spark, root / side) for side in ("left", "right"))
joined = StreamJoin(left, right, on="key", instances=2)
writer = joined.writeStream.format("noop").trigger(**trigger)
query = writer.option("checkpointLocation", str(root / "checkpoint")).start()
print(query.live(wait=True).url, flush=True)
if "availableNow" in trigger:
    query.awaitTermination()
else:
    while not query.done[1]:
        time.sleep(0.1)
    sys.stdin.readline()
print("at its end", flush=True)
"""


@pytest.mark.slow
def test_a_page_does_not_keep_a_program_and_says_that_it_has_ended(folder):
    """It is never closed, a tab is open, and the query runs."""
    running = subprocess.Popen(
        [sys.executable, "-c", WATCHED, str(folder), "processingTime", "100 milliseconds"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    page = running.stdout.readline().strip().replace("/?", "/events?")
    with urlopen(page, timeout=240) as tab:
        running.stdin.write("\n")
        rest, errors = running.communicate(timeout=240)
        told = tab.read().decode()
    assert (running.returncode, rest) == (0, "at its end\n"), errors
    for word in TRACES:
        assert word not in errors
    last = told.rpartition("event: ")[2]
    assert last.startswith("ended")
    assert '"words":"the process ended while the query was running"' in last


@pytest.mark.slow
def test_on_a_terminal_a_program_that_is_told_to_waits_for_a_key(folder):
    other, own = os.openpty()
    there = f"import os; os.login_tty({own})\n"
    running = subprocess.Popen(
        [sys.executable, "-c", there + WATCHED, str(folder), "availableNow", "true"],
        pass_fds=[own],
    )
    said = ""
    while "press a key to end" not in said:
        assert select.select([other], [], [], 240)[0], said
        said += os.read(other, 1000).decode()
    assert "at its end" not in said
    page = re.search(r"page: (http\S+); press a key to end", said)[1]
    with urlopen(page, timeout=240) as answer:
        assert answer.status == 200
    os.write(other, b"x")
    while "at its end" not in said:
        assert select.select([other], [], [], 240)[0], said
        said += os.read(other, 1000).decode()
    assert running.wait(240) == 0
    os.close(own)
    os.close(other)


@pytest.mark.slow
def test_in_a_pipe_no_key_is_waited_for(folder):
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(folder), "availableNow", "true"],
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("at its end\n")
    assert "press a key" not in done.stderr


FAILING = """
import os, sys
from pathlib import Path
from joinengine import JoinEngineError, StreamJoin, active, parquet_stream, session

def parent(_):
    yield os.getppid()
    with open(f"/proc/{os.getppid()}/cmdline") as said:
        yield said.read()

root = Path(sys.argv[1])
spark = session(master="local[1]")
context = spark.sparkContext
# The scheduler's own list: the status of jobs hears of their ends a moment later.
running = context._jsc.sc().dagScheduler().activeJobs().size()
print(len(context.statusTracker().getJobIdsForGroup("joinengine-warm")), running)
if sys.platform == "linux":
    print(*context.parallelize([1], 1).mapPartitions(parent).collect())
print("a query fails")
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
print("it ends while a query runs")
writer = StreamJoin(sides[1], sides[1], on="key", instances=2).writeStream.format("noop")
query = writer.option("checkpointLocation", str(root / "running")).start()
query.processAllAvailable()
print(len(active()), "runs")
raise SystemExit(3)
"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """A program whose query fails, and which ends while another one runs; and its TMPDIR.

    What it has printed comes in three parts: before the failure, then, and in the end.
    """
    root, own = (tmp_path_factory.mktemp(name) for name in ("failing", "tmp"))
    write_sides(root)
    done = subprocess.run(
        [sys.executable, "-c", FAILING, str(root)],
        env=os.environ | {"TMPDIR": str(own), "PS1": "(.venv) "},  # an active environment's prompt
        capture_output=True,
        text=True,
        check=False,
    )
    parts = re.split("a query fails\n|it ends while a query runs\n", done.stdout)
    assert len(parts) == 3, done.stderr
    return done, parts, own


def test_a_failure_is_one_sentence_without_sparks_traces(failed):
    done, (_, said, _), _ = failed
    assert "1.parquet is not a Parquet file" in said, done.stderr
    assert said.count("\n") == 1
    for word in TRACES:
        assert word not in done.stderr


def test_a_program_that_ends_while_a_query_runs_says_so_and_leaves_no_trace(failed):
    done, (_, _, said), _ = failed
    assert (done.returncode, said) == (3, "1 runs\n"), done.stderr
    told = "the program ends while a query runs, and the query with it: <JoinQuery"
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_workers_come_from_a_process_that_began_with_the_session(failed):
    """And it ends with the program. No job runs that a stop would cut off."""
    done, (begun, _, _), own = failed
    warmed, worker = begun.splitlines()
    assert warmed == "1 0", done.stderr
    number, said = worker.split(" ", 1)
    assert "--early" in said, done.stderr
    end = time.monotonic() + 20
    while os.path.exists(f"/proc/{number}"):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert not list(own.glob("joinengine-*"))


def test_of_a_process_that_has_ended_nothing_stays(tmp_path):
    """Python would warn of an open file."""
    ended = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    (tmp_path / "own").mkdir()
    early._clean_up(ended, str(tmp_path / "own"))
    assert ended.stdin.closed
    assert not (tmp_path / "own").exists()
