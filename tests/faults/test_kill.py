"""kill -9 of the whole process, again and again: after the restarts nothing is lost or twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from joinengine.state import manifests
from joinengine.state.checkpoint import Checkpoint

pytestmark = pytest.mark.spark


def start(tmp_path, rows, *more):
    command = [
        *(sys.executable, "-m", "joinengine", "run", "eq5", "--layout", "mnrt", "--zipf", "1.0"),
        *("--scale", "0.01", "--instances", "6", "--interval-rows", str(rows)),
        *("--work-per-tuple", "500 us"),  # else all batches are over before the knife falls
        *("--out", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "checkpoint")),
        *more,
    ]
    home = {"JOINENGINE_HOME": str(tmp_path.parent / "home")}
    # What is killed leaves its own temporary files behind.
    environment = os.environ | home | {"TMPDIR": str(tmp_path)}
    with (tmp_path / "log").open("ab") as log:
        return subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def batches_done(tmp_path):
    found = manifests.newest(Checkpoint.below(tmp_path / "checkpoint").manifests)
    return -1 if found is None else found.batch


def kill(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_with_kills(tmp_path, kills, seed):
    """Kill at a random moment after a random batch of each attempt, then let it end."""
    rng = random.Random(seed)
    rows = 2000 if kills > 3 else 6000  # enough batches for as many kills
    at = []
    for _ in range(kills):
        process = start(tmp_path, rows)
        goal = batches_done(tmp_path) + rng.choice([0, 1, 1, 2])
        deadline = time.monotonic() + 90
        while process.poll() is None and batches_done(tmp_path) < goal:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.01)
        if process.poll() is not None:
            break  # it was faster than the knife
        time.sleep(rng.uniform(0, 0.6))
        kill(process)
        at.append(batches_done(tmp_path))
    final = start(tmp_path, rows, "--validate", "--json", str(tmp_path / "report.json"))
    assert final.wait(timeout=180) == 0, (tmp_path / "log").read_text()
    return at, json.loads((tmp_path / "report.json").read_text())


def check(tmp_path, kills, seed):
    at, report = run_with_kills(tmp_path, kills, seed)
    assert len(at) == kills, f"ended after {at}, seed {seed}"
    assert report["valid"] is True, f"killed after batches {at}, seed {seed}"
    # It continued from its checkpoint: no batch of an earlier attempt was computed again.
    assert all(batch["batch"] > at[-1] for batch in report["batches"])
    assert not list((tmp_path / "out" / "_joinengine").rglob("*.parquet"))
    # What the manifest counts over all attempts is what is there.
    last = manifests.newest(Checkpoint.below(tmp_path / "checkpoint").manifests)
    files = (tmp_path / "out").glob("*.parquet")
    assert last.totals.batches == last.batch + 1
    assert last.totals.output_rows == sum(pq.read_metadata(file).num_rows for file in files) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "seed"), [(1, 11), (2, 11), (12, 1), (12, 2)])
def test_killed_again_and_again(tmp_path, kills, seed):
    check(tmp_path, kills, seed)
