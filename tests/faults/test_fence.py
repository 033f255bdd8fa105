"""Two drivers in processes of their own on one checkpoint, the first one asleep for a while.

Source files arrive all the time. Whenever the first driver falls asleep and wakes up, each pair is
in the results exactly once, every file that the newest manifest names is there, and the first
driver ends with one line.
"""

from __future__ import annotations

import os
import random
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine.state import manifests
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.storage import verify

pytestmark = pytest.mark.spark
PATIENCE_S = 120


class Driver:
    """A process with a Spark session, which runs a query when it is told to."""

    def __init__(self, log):
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.driving"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    def start(self, root):
        self.process.stdin.write(f"{root}\n".encode())
        self.process.stdin.flush()

    def line(self):
        """The driver's next line."""
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert ready, f"silence; {self.log.read_text()[-3000:]}"
        return self.process.stdout.readline().decode().strip()

    def signal(self, number, *, workers):
        """Signal the driver, its JVM and, if `workers`, all processes that they have started."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                stat = (process / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            group, session = int(stat[2]), int(stat[3])
            if session == self.process.pid and (workers or group == session):
                os.kill(int(process.name), number)

    def end(self):
        self.signal(signal.SIGKILL, workers=True)
        self.process.wait()


@pytest.fixture(scope="module")
def drivers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drivers")
    both = [Driver(folder / name) for name in ("one.log", "two.log")]
    try:
        assert [driver.line() for driver in both] == ["ready", "ready"]
        yield both
    finally:
        for driver in both:
            driver.end()


class Arrivals(threading.Thread):
    """Writes a file into one of two folders every now and then, until `close`."""

    def __init__(self, root, rng):
        super().__init__()
        self.root, self.rng, self.closing = root, rng, threading.Event()
        self.rows = {"left": [], "right": []}
        for side in self.rows:
            (root / side).mkdir(parents=True)
            self._write(side, 0)

    def run(self):
        number = 1
        while not self.closing.wait(self.rng.uniform(0.05, 0.3)):
            self._write(self.rng.choice(["left", "right"]), number)
            number += 1

    def close(self):
        self.closing.set()
        self.join()

    def _write(self, side, number):
        keys = [self.rng.choice([0, self.rng.randrange(30)]) for _ in range(15)]
        rows = [(key, 1000 * number + i) for i, key in enumerate(keys)]
        self.rows[side] += rows
        names = (f"{side[0]}_key", f"{side[0]}_id")
        table = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
        draft = self.root / side / f".{number:04d}"
        pq.write_table(table, draft)
        draft.rename(self.root / side / f"{number:04d}.parquet")

    def pairs(self):
        right = {}
        for key, ident in self.rows["right"]:
            right.setdefault(key, []).append(ident)
        return Counter((i, r) for key, i in self.rows["left"] for r in right.get(key, ()))


def batches_done(root):
    found = manifests.newest(Checkpoint.below(root / "checkpoint").manifests)
    return -1 if found is None else found.batch


def wait_for(root, batch):
    deadline = time.monotonic() + PATIENCE_S
    while batches_done(root) < batch:
        assert time.monotonic() < deadline, f"batch {batch} never came"
        time.sleep(0.005)


def play(first, second, root, rng):
    """Run one round; returns the last line of `first`, and the pairs that should be found."""
    arrivals = Arrivals(root, rng)
    arrivals.start()
    try:
        first.start(root)
        wait_for(root, rng.choice([0, 1, 3]))
        time.sleep(rng.uniform(0, 0.8))
        workers = rng.random() < 0.5
        first.signal(signal.SIGSTOP, workers=workers)
        slept_at = batches_done(root)
        second.start(root)
        # From "while the second starts" to "long after the names of its batches are gone".
        wait_for(root, slept_at + rng.choice([0, 1, 2, 5]))
        time.sleep(rng.uniform(0, 0.8))
        first.signal(signal.SIGCONT, workers=workers)
        said = first.line()
        wait_for(root, batches_done(root) + 2)
    finally:
        arrivals.close()
    (root / "stop").touch()
    assert second.line() == "done"
    return said, arrivals.pairs()


def check(root, said, pairs):
    assert re.search(r"another driver .*has taken .*over", said), said
    tables = [pq.read_table(file) for file in (root / "out").glob("*.parquet")]
    found = Counter()
    for table in tables:
        ids = (table.column(name).to_pylist() for name in ("l_id", "r_id"))
        found.update(zip(*ids, strict=True))
    assert pairs
    assert found == pairs
    checkpoint = Checkpoint.below(root / "checkpoint")
    newest = manifests.newest(checkpoint.manifests)
    for state in newest.operators:
        for stored in (*state.shelves.files.values(), *state.layouts.history):
            verify(checkpoint.runs, stored, "file")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_driver_that_slept_does_no_harm(drivers, tmp_path, seed):
    first, second = drivers if seed % 2 else drivers[::-1]
    check(tmp_path, *play(first, second, tmp_path, random.Random(100 + seed)))
