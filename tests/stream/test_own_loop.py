"""A query on the engine's own loop: how it ends, who may start another, and who else uses Spark."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from joinengine import (
    CheckpointMismatch,
    InvalidRequest,
    JoinEngineError,
    StreamJoin,
    active,
    awaitAnyTermination,
    equi,
    parquet_stream,
)
from joinengine.driver.batch import BatchRunner
from tests.stream.cases import pairs
from tests.stream.conftest import same
from tests.waiting import soon

pytestmark = pytest.mark.spark

PROGRAM = """
import sys, threading, time
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from joinengine import StreamJoin, active, awaitAnyTermination, parquet_stream, session

root, spark = Path(sys.argv[1]), session(master="local[1]")
for side in ("left", "right"):
    (root / side).mkdir()
    pq.write_table(pa.table({"key": range(50), side: range(50)}), root / side / "0.parquet")
streams = [parquet_stream(spark, root / side) for side in ("left", "right")]
writer = StreamJoin(*streams, on="key", instances=2).writeStream.format("noop")
query = writer.option("checkpointLocation", str(root / "checkpoint")).start()
query.processAllAvailable()
"""


def test_a_batch_is_cut_short_and_done_by_the_next_start(writer, folders, tmp_path):
    out = str(tmp_path / "out")
    slow = writer(workPerTuple="200 ms").start(out)  # a batch of some seconds
    soon(lambda: slow.status["isTriggerActive"])
    time.sleep(0.5)
    began = time.monotonic()
    slow.stop()
    assert time.monotonic() - began < 20
    assert slow.exception() is None
    assert slow.done[1] < 4
    assert slow.awaitTermination(0.1)
    again = writer().trigger(availableNow=True).start(out)
    again.awaitTermination()
    assert again.done[1] > 0
    same(tmp_path / "out", pairs(folders, "id = order_id"))


def test_a_query_is_stopped_that_is_started_once_more(writer, folders, tmp_path, caplog):
    first = writer().start(str(tmp_path / "out"))
    first.processAllAvailable()
    (tmp_path / "link").symlink_to(tmp_path)
    linked = writer().option("checkpointLocation", str(tmp_path / "link/checkpoint"))
    second = linked.start(str(tmp_path / "out"))
    assert not first.isActive
    assert first.exception() is None
    assert "is stopped, because it was started again" in caplog.text
    assert [one for one in active() if one in (first, second)] == [second]
    folders.add()
    second.processAllAvailable()
    second.stop()
    assert second.id == first.id
    assert second.runId != first.runId
    same(tmp_path / "out", pairs(folders, "id = order_id"))


def test_a_start_that_is_refused_leaves_the_query_running(writer, spark, folders, tmp_path):
    out = str(tmp_path / "out")
    first = writer().start(out)
    first.processAllAvailable()
    streams = [parquet_stream(spark, path) for path in (folders.orders, folders.items)]

    def start_other(**given):
        other = StreamJoin(*streams, on=equi("id", "order_id"), **given).writeStream
        other.option("checkpointLocation", tmp_path / "checkpoint").format("parquet").start(out)

    starts = [
        ("path: checkpoint", lambda: writer().start(str(tmp_path / "or_other"))),
        ("belongs to another query", lambda: start_other(where="id > 3")),
        ("exchange: 'pigeon' is unknown", lambda: writer(exchange="pigeon").start(out)),
        ("layout ftlb", lambda: start_other(layout="ftlb", instances=1)),
        ("instance", lambda: writer(durability="replicas").start(out)),
        ("staged for the sink", lambda: writer().foreachBatch(print).start()),
        ("staged for the sink", lambda: writer().foreach_batch_arrow(print).start()),
        ("staged for the sink", lambda: writer().format("csv").start(str(tmp_path / "csv"))),
        ("for another sink", lambda: writer().format("delta").start(str(tmp_path / "delta"))),
    ]
    for why, start in starts:
        with pytest.raises(JoinEngineError, match=why):
            start()
        assert first.isActive
    folders.add()
    first.processAllAvailable()
    first.stop()
    same(tmp_path / "out", pairs(folders, "id = order_id"))


def test_the_folder_of_a_query_counts_before_its_first_batch(writer, tmp_path):
    first = writer(workPerTuple="500 ms").start(str(tmp_path / "out"))
    for more in ({}, {"overwrite": True}):
        with pytest.raises(CheckpointMismatch, match="path: checkpoint"):
            writer(**more).start(str(tmp_path / "or_other"))
    assert first.isActive
    assert first.done[1] == 0
    first.stop()
    second = writer().start(str(tmp_path / "or_other"))  # nothing was written
    second.stop()


def test_a_name_is_had_once(writer, spark, tmp_path):
    first = writer().queryName("mine").start(str(tmp_path / "out"))
    try:
        with pytest.raises(InvalidRequest, match="a query named 'mine' is already running"):
            writer("other").queryName("mine").start(str(tmp_path / "others"))
        assert not (tmp_path / "other").exists()
    finally:
        first.stop()
    again = writer("other").queryName("mine").start(str(tmp_path / "others"))
    again.stop()


def test_whoever_waits_for_any_is_told_of_the_first_and_of_its_error(writer, tmp_path):
    def fail(frame, batch):
        raise ValueError("no room at the inn")

    running = writer().start(str(tmp_path / "out"))
    assert awaitAnyTermination(0.1) is False
    failing = writer("failing").foreachBatch(fail).start()
    with pytest.raises(
        JoinEngineError, match=r"^the query failed: ValueError: no room at the inn$"
    ):
        awaitAnyTermination()
    assert type(failing.exception()) is JoinEngineError
    with pytest.raises(JoinEngineError, match="no room at the inn"):
        failing.processAllAvailable()
    assert running.isActive
    running.stop()
    if not active():
        assert awaitAnyTermination(0.1) is True  # none runs


def test_others_use_spark_beside_a_query_and_in_its_listeners(writer, spark, tmp_path):
    counted = []
    query = writer().start(str(tmp_path / "out"))
    query.add_listener(lambda progress: counted.append(spark.range(7).count()))
    query.processAllAvailable()
    began = time.monotonic()
    assert spark.range(10).count() == 10
    assert time.monotonic() - began < 15
    soon(lambda: query.done[1] == 4)
    query.stop()
    assert counted and set(counted) == {7}


def test_two_threads_may_stop_a_query(writer, tmp_path):
    query = writer().start(str(tmp_path / "out"))
    threads = [threading.Thread(target=query.stop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not query.isActive
    assert query.exception() is None


@pytest.mark.slow  # the last row is tried by test_programs.py, too
@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("print(len(active()), 'runs')", 0, "1 runs"),
        (
            *("query.stop(); awaitAnyTermination(); print(active(), query)", 0),
            "[] <JoinQuery ended",
        ),
        ("spark.stop(); query.awaitTermination(); print(query.exception())", 0, "None"),
        ("print(len(active()), 'runs'); raise SystemExit(3)", 3, "1 runs"),
    ],
)
def test_a_program_that_ends_leaves_no_trace(end, code, said, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + end, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stdout
    assert "Traceback" not in done.stderr
    told = "the program ends while a query runs, and the query with it: <JoinQuery" in done.stderr
    assert told is ("active()), 'runs')" in end), "who stops the query knows"
    errors = [line for line in done.stderr.splitlines() if "Error" in line]
    if "spark.stop" in end:  # Spark may print an error of its own if it is stopped under its tasks
        own = ("Error in TaskCompletionListener", "SparkException")
        errors = [line for line in errors if not any(word in line for word in own)]
    assert not errors, done.stderr


@pytest.mark.slow
def test_a_session_of_the_users_stops_without_an_error_of_its_tasks(tmp_path):
    own = 'SparkSession.builder.master("local[1]").getOrCreate()'
    program = PROGRAM.replace('session(master="local[1]")', own)
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            f"from pyspark.sql import SparkSession{program}query.stop(); spark.stop()",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "ERROR" not in done.stderr


def test_a_start_beats_before_it_recovers(writer, tmp_path, monkeypatch):
    """To recover may take long, and a second start must not find nobody meanwhile."""
    beats = tmp_path / "checkpoint" / "joinengine" / "heartbeats"
    recover, seen = BatchRunner.recover, list[list[str]]()

    def recovering(runner, generation=None):
        seen.append([one.name for one in beats.iterdir()])
        recover(runner, generation)

    monkeypatch.setattr(BatchRunner, "recover", recovering)
    writer().start(str(tmp_path / "out")).stop()
    assert seen == [["00000001"]]


@pytest.mark.slow
def test_a_program_that_is_started_twice_ends_nobody(writer, folders, tmp_path):
    """Until it says so; and one that was killed is in nobody's way."""
    code = f"""
import sys
from joinengine import StreamJoin, TakenOver, equi, parquet_stream, session
spark = session(master="local[1]")
left = parquet_stream(spark, {str(folders.orders)!r}, rows_per_interval=40)
right = parquet_stream(spark, {str(folders.items)!r}, rows_per_interval=120)
joined = StreamJoin(left, right, on=equi("id", "order_id"), instances=3)
writer = joined.writeStream.format("parquet")
writer = writer.option("checkpointLocation", {str(tmp_path / "checkpoint")!r})
for line in sys.stdin:
    query = writer.option("takeover", line.strip()).start({str(tmp_path / "out")!r})
    query.processAllAvailable()
    print("runs", flush=True)
    try:
        query.awaitTermination()
    except TakenOver:
        print("taken over", flush=True)
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None and other.stdout is not None

    def answer(asked):
        if asked:
            other.stdin.write(f"{asked}\n")
            other.stdin.flush()
        return other.stdout.readline().strip()

    assert answer("wait") == "runs"
    soon(lambda: list((tmp_path / "checkpoint/joinengine/heartbeats").iterdir()))
    with pytest.raises(InvalidRequest, match=rf"process {other.pid}\) is running on checkpoint"):
        writer().start(str(tmp_path / "out"))
    folders.add()
    assert not (tmp_path / "checkpoint/joinengine/generations/00000002").exists()
    taking = writer(takeover="take").start(str(tmp_path / "out"))
    taking.processAllAvailable()
    assert answer("") == "taken over"
    taking.stop()
    assert answer("wait") == "runs"  # who has ended is in nobody's way
    other.kill()
    other.wait()
    folders.add()
    again = writer().start(str(tmp_path / "out"))  # nor is who was killed
    again.processAllAvailable()
    again.stop()
    same(tmp_path / "out", pairs(folders, "id = order_id"))
