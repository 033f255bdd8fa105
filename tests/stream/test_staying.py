"""Tasks that stay: they take orders batch after batch, and give the session's slots back."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import InvalidRequest, JoinEngineError, StreamJoin, parquet_stream
from joinengine.spark.jobs import slots as staying
from joinengine.spark.jobs.file_jobs import FileJobs
from joinengine.spark.jobs.slots import SparkSlots, pool_of
from joinengine.staying import pool as pools
from joinengine.staying.pool import _LEFT_S
from joinengine.staying.wire import Secret, connected
from tests.stream.cases import pairs
from tests.stream.conftest import same
from tests.waiting import soon

pytestmark = pytest.mark.spark


@pytest.fixture
def pool(spark):
    """The pool of the session, which leaves its slots to nobody yet."""
    found = pool_of(spark.sparkContext)
    found.release()
    found._left_until_s, found._left_s = 0.0, _LEFT_S
    yield found
    found.release()
    found._left_until_s = 0.0


@pytest.fixture
def orders(pool, monkeypatch):
    """How many orders tasks that stay have carried out; a text: why a job was to do it."""
    told, carry_out = [], pool.carry_out

    def counted(owner, name, function, given, places=None):
        found = carry_out(owner, name, function, given, places)
        told.append(found if isinstance(found, str) else len(given))
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
    return [task.who.pid for task in pool._tasks]


def runs(pid):
    """Whether a process is there, and not only its remains."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_all_steps_of_a_batch_are_orders(writer, folders, tmp_path, orders, pool):
    query = writer(compactEvery=2).start(str(tmp_path / "out"))
    query.processAllAvailable()
    assert "tasks: resident: they run from batch to batch" in query.explain()
    assert pool.holds
    folders.add()
    query.processAllAvailable()
    query.stop()
    assert all(isinstance(one, int) for one in orders)
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
    assert "a resident task was lost; a job does its work" in caplog.text
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
    def fail(jobs, step, function, given, locations=None):
        if step != "route":
            return stayed(jobs, step, function, given, locations)
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


def test_the_next_batch_is_read_while_this_one_is_committed(spark, tmp_path, pool, monkeypatch):
    """What is hinted after a batch is what the next one orders; its file is not read again."""
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        for file in range(4):
            values = pa.table({"key": range(file, 100), side: range(file, 100)})
            pq.write_table(values, tmp_path / side / f"{file}.parquet")
    given, hint, carry_out = [], pool.hint, pool.carry_out

    def hinted(name, function, orders):
        given.append(("hint", [portion for portion, _ in orders]))
        hint(name, function, orders)

    def ordered(owner, name, function, orders, places=None):
        if name.endswith("-route"):
            given.append(("order", [portion for portion, *_ in orders]))
        return carry_out(owner, name, function, orders, places)

    monkeypatch.setattr(pool, "hint", hinted)
    monkeypatch.setattr(pool, "carry_out", ordered)
    streams = [parquet_stream(spark, tmp_path / s, rows_per_interval=1) for s in ("left", "right")]
    writer = StreamJoin(*streams, on="key", instances=2).writeStream.format("parquet")
    writer = writer.trigger(availableNow=True).option("checkpointLocation", tmp_path / "c")
    query = writer.start(str(tmp_path / "out"))
    query.awaitTermination()
    routed = [portions for kind, portions in given if kind == "order"]
    assert len(routed) == 4
    hints = [portions for kind, portions in given if kind == "hint"]
    assert hints[:4] == [*routed[1:], []]
    found = pq.read_table(tmp_path / "out").num_rows
    assert found == sum(100 - max(one, other) for one in range(4) for other in range(4))


def test_jobs_do_it_if_they_are_asked_to(writer, folders, tmp_path, orders):
    query = writer(tasks="jobs").trigger(availableNow=True).start(str(tmp_path / "out"))
    query.awaitTermination()
    assert orders == []
    assert "tasks: each step is a Spark job, because option 'tasks' is 'jobs'" in query.explain()
    same(tmp_path / "out", pairs(folders, "id = order_id"))


def test_tasks_that_cannot_stay_are_refused_if_they_are_asked_to(writer, tmp_path):
    with pytest.raises(
        InvalidRequest, match=r"tasks: 'resident' .* exchange 'shuffle' runs in jobs"
    ):
        writer(exchange="shuffle").start(str(tmp_path / "out"))
    with pytest.raises(InvalidRequest, match=r"tasks: 'resident' .* takes a DataFrame"):
        writer().foreachBatch(lambda frame, batch: None).start()
    with pytest.raises(InvalidRequest, match=r"tasks: 'forever'"):
        writer(tasks="forever").start(str(tmp_path / "out"))
    assert not (tmp_path / "checkpoint").exists()


def sockets():
    links = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return sum(one.startswith("socket:") for one in links)


def below(pid):
    """The processes that a process has started, and those of these."""
    found = set()
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for one in map(int, tasks.read_text().split()):
            found |= {one} | below(one) if runs(one) else set()
    return found


@pytest.mark.slow
def test_fifty_queries_leave_no_process_no_socket_and_no_thread(spark, tmp_path, pool, monkeypatch):
    """Each with tasks of its own, whose slots it gives back."""
    monkeypatch.setattr(pools, "_CONNECT_S", 30.0)  # on a busy machine slots are given back late
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        pq.write_table(pa.table({"key": [1], side: [1]}), tmp_path / side / "0.parquet")
    streams = [parquet_stream(spark, tmp_path / side) for side in ("left", "right")]
    writer = StreamJoin(*streams, on="key", instances=1).writeStream.format("noop")

    def run(number):
        query = writer.option("checkpointLocation", tmp_path / f"c{number}").start()
        query.processAllAvailable()
        query.stop()
        assert [row["tasks"] for row in query.metrics().to_pylist()] == ["stay"]
        folder = Path(pool._door.address).parent
        assert folder.exists()
        pool.release()
        assert not folder.exists()

    run("first")
    before = sockets(), threading.active_count(), len(below(os.getpid()))
    for number in range(50):
        run(number)
    soon(lambda: (sockets(), threading.active_count()) <= before[:2])
    assert len(below(os.getpid())) <= before[2]


def test_who_does_not_know_the_token_gets_no_order(writer, tmp_path, pool, monkeypatch):
    intruders, begin = [], pool._begun

    def begun():
        job = begin()
        there = connected(pool._door.address, 5)
        there.sendall(Secret.fresh().of_task)
        intruders.append(there)
        return job

    monkeypatch.setattr(pool, "_begun", begun)
    query = writer().trigger(availableNow=True).start(str(tmp_path / "out"))
    query.awaitTermination()
    (there,) = intruders
    assert there.recv(1) == b""
    assert query.done[1] == 4


@pytest.mark.parametrize(
    ("master", "cpus", "count"),
    [
        ("local", 1, 1),
        ("local[3]", 1, 3),
        ("local[5]", 2, 2),
        ("local[2, 4]", 1, 2),
        ("local[*]", 1, os.cpu_count()),
    ],
)
def test_slots_of_a_local_master(spark, monkeypatch, master, cpus, count):
    class Context:
        _jvm = spark.sparkContext._jvm
        accumulator = spark.sparkContext.accumulator

    Context.master = master
    monkeypatch.setattr(staying, "_setting", lambda context, name: str(cpus))
    assert SparkSlots(Context).count() == count
    assert SparkSlots(Context).hosts is None
    assert staying.obstacle(Context) is None


@pytest.fixture
def elsewhere(spark, monkeypatch):
    """Makes contexts of another master, with settings; two executors, of three and two cores."""
    monkeypatch.setattr(staying, "executor_cores", lambda context: {"a": 3, "b": 2})
    monkeypatch.setattr(staying, "_setting", lambda context, name: context.settings.get(name, ""))

    def make(master, **settings):
        context = SimpleNamespace(master=master, accumulator=spark.sparkContext.accumulator)
        context.settings = {name.replace("__", "."): value for name, value in settings.items()}
        return context

    return make


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://one:7077,two:7077"])
def test_slots_of_a_cluster(elsewhere, master):
    assert staying.obstacle(elsewhere(master)) is None
    assert SparkSlots(elsewhere(master)).count() == 5
    assert SparkSlots(elsewhere(master, spark__task__cpus="2")).count() == 2
    assert SparkSlots(elsewhere(master, spark__task__cpus="8")).count() == 1


def test_where_tasks_call_the_driver(elsewhere):
    told = {"spark__driver__host": "driver.example"}
    here = SparkSlots(elsewhere("local-cluster[2,1,1024]", **told)).hosts
    assert here == ("127.0.0.1", "127.0.0.1")
    there = SparkSlots(elsewhere("spark://one:7077", **told)).hosts
    assert there == ("driver.example", "driver.example")
    bound = told | {"spark__driver__bindAddress": "[::]"}
    assert SparkSlots(elsewhere("spark://one:7077", **bound)).hosts == ("::", "driver.example")


@pytest.mark.parametrize("name", list(staying._SETTINGS))
def test_settings_under_which_steps_are_jobs(elsewhere, name):
    given = {name: "true"}
    assert staying.obstacle(elsewhere("spark://one:7077", **given)).startswith(f"{name} is true: ")
    assert staying.obstacle(elsewhere("local[2]", **given)) is None
    assert staying.obstacle(elsewhere("spark://one:7077", **{name: "false"})) is None


@pytest.mark.parametrize("master", ["yarn", "k8s://https://host:6443", "mesos://host"])
def test_masters_under_which_steps_are_jobs(elsewhere, master):
    assert f"the master is {master}" in staying.obstacle(elsewhere(master))
