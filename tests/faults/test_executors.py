"""Real executors in processes of their own; one is killed in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = """
import json, os, signal, sys
from joinengine import session
from joinengine.lab.queries import Options, find
from joinengine.lab.queries.runs import Followers, Places, run
from pathlib import Path

def executors():
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_text().split("\\0")
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
        ours = spark.sparkContext.applicationId in arguments
        if ours and any("CoarseGrainedExecutorBackend" in a for a in arguments):
            found[int(process.name)] = parent
    # What an executor starts looks like it until it has become the other program.
    return [number for number, parent in found.items() if parent not in found]

killed = []
def watch(rows, total, batches):
    if batches >= 4 and not killed:
        killed.append(executors()[0])
        os.kill(killed[0], signal.SIGKILL)

spark = session(master="local-cluster[2,1,2048]", spark__executor__memory="1g")
options = Options(scale=0.01, zipf=1.0, instances=6, interval_rows=5000)
places = Places(out=Path(sys.argv[1]))
before = executors()
report = run(spark, find("eq5"), options, places, validate=True, followers=Followers(watch=watch))
report["executors"], report["killed"] = before, killed
Path(sys.argv[2]).write_text(json.dumps(report))
spark.stop()
"""


def test_a_killed_executor_loses_nothing(tmp_path):
    environment = os.environ | {"JOINENGINE_HOME": str(tmp_path.parent / "home")}
    report_path = tmp_path / "report.json"
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "out"), str(report_path)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert report_path.exists(), done.stderr[-3000:]
    report = json.loads(report_path.read_text())
    assert len(report["executors"]) == 2
    assert report["killed"]
    assert report["valid"] is True
    assert report["output_rows"] > 0
