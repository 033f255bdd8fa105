"""Tasks that stay: they take orders batch after batch, and give the session's slots back."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from joinengine import InvalidRequest, JoinEngineError
from joinengine.spark import staying
from joinengine.spark.jobs import FileJobs
from joinengine.spark.staying import pool_of
from tests.stream.cases import pairs
from tests.stream.conftest import same, soon

pytestmark = pytest.mark.spark


@pytest.fixture
def pool(spark):
    """The pool of the session, which leaves its slots to nobody yet."""
    found = pool_of(spark.sparkContext)
    found.release()
    found._left_until_s, found._left_s = 0.0, staying._LEFT_S
    yield found
    found.release()
    found._left_until_s = 0.0


@pytest.fixture
def orders(pool, monkeypatch):
    """How many orders tasks that stay have carried out; None: a job was to do it."""
    told, carry_out = [], pool.carry_out

    def counted(owner, name, function, given):
        found = carry_out(owner, name, function, given)
        told.append(None if found is None else len(given))
        return found

    monkeypatch.setattr(pool, "carry_out", counted)
    return told


@pytest.fixture
def writer(writer):
    """The same, whose tasks have to stay."""

    def make(name="checkpoint", **options):
        return writer(name, **{"tasks": "resident"} | options)

    return make


def processes(pool):
    return [task.pid for task in pool._tasks]


def runs(pid):
    """Whether a process is there, and not only its remains."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_all_steps_of_a_batch_are_orders(writer, folders, tmp_path, orders, pool):
    query = writer(compactEvery=2).start(str(tmp_path / "out"))
    query.processAllAvailable()
    assert "tasks: stay from batch to batch" in query.explain()
    assert pool.holds
    folders.add()
    query.processAllAvailable()
    query.stop()
    assert None not in orders[2:]  # the first batch of a session may not wait for its workers
    assert len(orders) >= 2 * query.done[1]  # routing, the join, and merging
    same(tmp_path / "out", pairs(folders, "id = order_id"))
    pool.release()
    assert not pool.holds


def test_others_of_the_session_get_the_slots_within_a_moment(writer, spark, tmp_path, pool):
    spark.range(10).count()  # the first one waits for compilers
    pool._left_until_s = 0.0
    query = writer().start(str(tmp_path / "out"))
    query.processAllAvailable()
    assert pool.holds
    began = time.monotonic()
    assert spark.range(10).count() == 10
    assert time.monotonic() - began < 15  # a quarter of a second, and the job itself
    assert not pool.holds
    assert pool._left_until_s > 0.0
    query.stop()


def test_whoever_keeps_coming_is_left_the_slots_for_longer(writer, spark, folders, tmp_path, pool):
    query, lefts = writer().start(str(tmp_path / "out")), []
    for _ in range(3):
        pool._left_until_s = 0.0
        folders.add()
        query.processAllAvailable()
        spark.range(10).count()
        lefts.append(pool._left_s)
    query.stop()
    assert lefts == sorted(lefts)
    assert lefts[-1] > lefts[0]
    same(tmp_path / "out", pairs(folders, "id = order_id"))


def test_a_worker_that_is_killed_is_replaced_by_a_job(writer, folders, tmp_path, pool, caplog):
    query = writer().start(str(tmp_path / "out"))
    query.processAllAvailable()
    killed = processes(pool)
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    folders.add()
    query.processAllAvailable()
    assert "a task that stays was lost; a job does its work" in caplog.text
    pool._left_until_s = 0.0
    folders.add()
    query.processAllAvailable()
    query.stop()
    assert query.exception() is None
    assert not any(map(runs, killed))
    same(tmp_path / "out", pairs(folders, "id = order_id"))


def test_a_worker_that_is_paused_is_waited_for_and_a_stop_cuts_it_short(
    writer, folders, tmp_path, pool
):
    query = writer().start(str(tmp_path / "out"))
    query.processAllAvailable()
    paused = processes(pool)
    assert paused
    for pid in paused:
        os.kill(pid, signal.SIGSTOP)
    try:
        folders.add()
        soon(lambda: query.status["isTriggerActive"])
        time.sleep(0.5)
        assert query.isActive
        began = time.monotonic()
        query.stop()
        assert time.monotonic() - began < 20
    finally:
        for pid in paused:
            os.kill(pid, signal.SIGKILL)  # what became of it
    assert query.exception() is None
    again = writer().trigger(availableNow=True).start(str(tmp_path / "out"))
    again.awaitTermination()
    same(tmp_path / "out", pairs(folders, "id = order_id"))


def test_an_error_of_a_task_is_told_in_its_own_sentence(writer, folders, tmp_path, monkeypatch):
    def fail(jobs, step, function, given):
        if step != "route":
            return stayed(jobs, step, function, given)
        return stayed(jobs, step, _failing, [(b"1",)])

    stayed = FileJobs._stayed
    monkeypatch.setattr(FileJobs, "_stayed", fail)
    query = writer().start(str(tmp_path / "out"))
    with pytest.raises(InvalidRequest, match=r"^source file x is not what it was$"):
        query.awaitTermination()
    assert type(query.exception()) is InvalidRequest
    assert isinstance(query.exception(), JoinEngineError)


def _failing(number):
    from joinengine.model.errors import InvalidRequest  # noqa: PLC0415 (another process)

    raise InvalidRequest("source file x is not what it was")


def test_two_queries_share_the_tasks(writer, folders, tmp_path, orders):
    queries = [writer(name).start(str(tmp_path / f"{name}-out")) for name in ("a", "b")]
    for _ in range(2):
        folders.add()
    for query in queries:
        query.processAllAvailable()
        query.stop()
    assert any(orders)
    for name in ("a", "b"):
        same(tmp_path / f"{name}-out", pairs(folders, "id = order_id"))


def test_jobs_do_it_if_they_are_asked_to(writer, folders, tmp_path, orders):
    query = writer(tasks="jobs").trigger(availableNow=True).start(str(tmp_path / "out"))
    query.awaitTermination()
    assert orders == []
    assert "tasks: jobs of Spark: the option 'tasks' asks for them" in query.explain()
    same(tmp_path / "out", pairs(folders, "id = order_id"))


def test_tasks_that_cannot_stay_are_refused_if_they_are_asked_to(writer, tmp_path):
    with pytest.raises(InvalidRequest, match=r"tasks: 'resident' .* exchange 'shuffle' needs jobs"):
        writer(exchange="shuffle").start(str(tmp_path / "out"))
    with pytest.raises(InvalidRequest, match=r"tasks: 'resident' .* is handed a DataFrame"):
        writer().foreachBatch(lambda frame, batch: None).start()
    with pytest.raises(InvalidRequest, match=r"tasks: 'forever'"):
        writer(tasks="forever").start(str(tmp_path / "out"))
    assert not (tmp_path / "checkpoint").exists()


def test_nothing_is_left_behind(writer, tmp_path, pool):
    before = {thread.name for thread in threading.enumerate()}
    for number in range(5):
        query = writer(f"c{number}").start(str(tmp_path / f"out{number}"))
        query.processAllAvailable()
        query.stop()
    folder = Path(pool._listener.getsockname()).parent
    assert folder.exists()
    pool.release()
    assert not folder.exists()
    soon(lambda: {one.name for one in threading.enumerate()} <= before | {"joinengine-warm"})


def test_who_does_not_know_the_token_gets_no_order(writer, tmp_path, pool, monkeypatch):
    import socket  # noqa: PLC0415

    intruders, begin = [], pool._begin

    def begun():
        begin()
        there = socket.socket(socket.AF_UNIX)
        there.connect(pool._listener.getsockname())
        there.sendall(b"x" * staying._TOKEN_BYTES)
        intruders.append(there)

    monkeypatch.setattr(pool, "_begin", begun)
    query = writer().trigger(availableNow=True).start(str(tmp_path / "out"))
    query.awaitTermination()
    (there,) = intruders
    there.settimeout(5)
    assert there.recv(1) == b""
    assert query.done[1] == 4


@pytest.mark.parametrize(
    ("master", "slots"), [("local", 1), ("local[3]", 3), ("local[2, 4]", 2), ("local[*]", None)]
)
def test_slots_of_a_local_master(spark, master, slots):
    class Context:
        _jvm = spark.sparkContext._jvm
        getConf = spark.sparkContext.getConf

    Context.master = master
    assert staying.slots_of(Context) == (slots or os.cpu_count())
    assert staying.obstacle(Context) is None
    Context.master = "local-cluster[2,1,1024]"
    assert "local-cluster" in staying.obstacle(Context)
