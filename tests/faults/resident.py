"""A driver for test_resident: tasks that stay on executors of their own, to which harm is done.

Arguments: an empty folder, and the file for what was seen. No task is tried twice by Spark.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from joinengine import StreamJoin, parquet_stream, session
from joinengine.spark.jobs import slots as staying
from joinengine.spark.jobs.slots import SparkSlots, pool_of
from joinengine.staying.door import Hosts
from joinengine.staying.pool import Pool

MASTER = "local-cluster[2,1,1024]"
N_ROWS = 10
HERE = "127.0.0.1"
#: Of this machine too, and nobody listens there.
ELSEWHERE = "127.0.0.77"


class Query:
    """A join of two folders that files come to; each brings N_ROWS results."""

    def __init__(self, spark, root):
        self.root, self.files = root, 0
        root.mkdir()
        self.add()
        sides = [parquet_stream(spark, root / side) for side in ("left", "right")]
        self._writer = (
            StreamJoin(*sides, on="key", instances=4, layout="hash")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(root / "checkpoint"))
        )
        self.start()

    def start(self):
        self.query = self._writer.start(str(self.root / "out"))
        self.query.processAllAvailable()

    def add(self):
        keys = range(N_ROWS * self.files, N_ROWS * (self.files + 1))
        for side in ("left", "right"):
            folder = self.root / side
            folder.mkdir(exist_ok=True)
            pq.write_table(pa.table({"key": keys, side: keys}), folder / ".next")
            (folder / ".next").rename(folder / f"{self.files:04d}.parquet")
        self.files += 1

    def more(self):
        self.add()
        self.query.processAllAvailable()

    def seen(self):
        """How the batches were done, and whether every result is there once; it has ended."""
        by = [row["tasks"] for row in self.query.metrics().to_pylist()]
        self.query.stop()
        found = pq.read_table(self.root / "out")["key"].to_pylist()
        return {"by": by, "right": sorted(found) == list(range(N_ROWS * self.files))}


def staying_again(pool):
    """Forget to whom slots were left: the next order is for tasks that stay."""
    pool._left_until_s, pool._left_s = 0.0, 1.0


def wait_until(holds, seconds=60.0):
    end_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end_s, "it takes too long"
        time.sleep(0.02)


def status_of(pid):
    """Its state and parent; None: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None


def runs(pid):
    status = status_of(pid)
    return status is not None and status[0] != "Z"


def below(pid):
    """The processes that a process has started, and those of these."""
    pids = [int(one.name) for one in Path("/proc").glob("[0-9]*")]
    parents = {one: int(status[1]) for one in pids if (status := status_of(one)) is not None}
    found, new = set(), {pid}
    while new:
        new = {one for one, parent in parents.items() if parent in new and runs(one)}
        found |= new
    return found


def sockets():
    links = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return sum(one.startswith("socket:") for one in links)


def executor_of(pid):
    """The process of the executor that a worker is of."""
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(status_of(pid)[1])
    return pid


class Drill:
    """The scenes, each in the same session."""

    def __init__(self, spark, root):
        self.spark, self.root = spark, root
        self.pool = pool_of(spark.sparkContext)
        self.said = []
        handler = logging.Handler()
        handler.emit = lambda record: self.said.append(record.getMessage())
        logging.getLogger("joinengine").addHandler(handler)

    def begun(self, name):
        """A query whose tasks stay."""
        staying_again(self.pool)
        made = Query(self.spark, self.root / name)
        self._wait_for_both(made)
        return made

    def _wait_for_both(self, query):
        """Batch after batch, until there is a task in each slot."""
        wait_until(lambda: query.more() or len(self.pool._tasks) == 2 or time.sleep(0.3))

    @contextmanager
    def paused(self, *pids):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in filter(runs, pids):
                os.kill(pid, signal.SIGKILL)

    def stay(self):
        query = self.begun("stay")
        query.more()
        words, tasks = str(query.query.explain()), [one.who for one in self.pool._tasks]
        told = {"explain": words, "executors": sorted({one.location for one in tasks})}
        address, count = self.pool._door.address, SparkSlots(self.spark.sparkContext).count()
        return query.seen() | told | {"host": address[0], "slots": count}

    def others(self):
        """A job of the session's beside a query."""
        self.spark.range(10).count()  # the first one waits for compilers
        query, begun = self.begun("others"), time.monotonic()
        given = threading.Event()
        asked = threading.Thread(target=lambda: self.spark.range(10).count() and given.set())
        asked.start()
        wait_until(lambda: not self.pool.holds)
        waited_s = time.monotonic() - begun
        asked.join(60)
        query.more()
        return query.seen() | {"waited_s": waited_s, "counted": given.is_set()}

    def worker(self):
        """A Python worker is killed while it has nothing to do."""
        query = self.begun("worker")
        os.kill(self.pool._tasks[0].who.pid, signal.SIGKILL)
        query.more()
        staying_again(self.pool)
        query.more()
        return query.seen()

    def executor(self):
        """It is gone, and no word comes from its task, as if its machine had lost its power."""
        query = self.begun("executor")
        pid = self.pool._tasks[0].who.pid
        process = executor_of(pid)
        with self.paused(pid):
            query.add()
            wait_until(lambda: query.query.status["isTriggerActive"])
            time.sleep(0.5)
            os.kill(process, signal.SIGKILL)
            query.query.processAllAvailable()
        wait_until(lambda: SparkSlots(self.spark.sparkContext).count() == 2)
        staying_again(self.pool)
        self._wait_for_both(query)
        return query.seen()

    def pause(self):
        """A worker that is paused is waited for, until the query is stopped."""
        query = self.begun("pause")
        with self.paused(*(one.who.pid for one in self.pool._tasks)):
            query.add()
            wait_until(lambda: query.query.status["isTriggerActive"])
            time.sleep(1.0)
            told = {"waits": query.query.isActive and query.query.status["isTriggerActive"]}
            begun = time.monotonic()
            query.query.stop()
            told["stopped_s"] = time.monotonic() - begun
        staying_again(self.pool)
        query.start()
        return query.seen() | told

    def many(self):
        """Query after query: what is left behind."""
        self.pool.release()
        before, counts = sockets(), list[tuple[int, int]]()
        for number in range(12):
            query = self.begun(f"many-{number}")
            assert query.seen()["right"]
            counts.append((sockets(), len(below(os.getpid()))))
        self.pool.release()
        with suppress(AssertionError):  # tasks that end may still be closing theirs
            wait_until(lambda: sockets() == before, 20.0)
        return {"counts": counts[2:], "sockets": [before, sockets()]}

    def unreached(self):
        """Executors cannot reach the driver's address."""
        slots = type("Closed", (SparkSlots,), {"hosts": Hosts(HERE, ELSEWHERE)})
        context = self.spark.sparkContext
        staying._pools[str(context.applicationId)] = pool = Pool(slots(context))
        before = len(self.said)
        query = Query(self.spark, self.root / "unreached")
        query.more()
        words = str(query.query.explain())
        staying._pools[str(context.applicationId)] = self.pool
        return query.seen() | {
            "said": self.said[before:],
            "explain": words,
            "holds": pool.holds,
        }


def seen_by(spark, root):
    drill = Drill(spark, root)
    scenes = ("stay", "others", "worker", "executor", "pause", "many", "unreached")
    return {scene: getattr(drill, scene)() for scene in scenes}


if __name__ == "__main__":
    spark = session(master=MASTER, spark__executor__memory="1g", spark__task__maxFailures="1")
    try:
        seen = seen_by(spark, Path(sys.argv[1]))
    except BaseException:
        seen = {"error": traceback.format_exc()}
    Path(sys.argv[2]).write_text(json.dumps(seen))
    spark.stop()
