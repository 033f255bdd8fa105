"""`python -m benchmarks.durability`: an executor is killed before batch 6 of EQ5, in three ways.

State lies in an object store (moto, on this machine) that answers each request after 50 ms, under
three executors of one core. What is measured: seconds from the kill to the next delivered batch,
less what a batch takes; and how long a batch takes while nothing fails.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from tests.objects import make_bucket, s3_server

#: How state is kept and comes back -> the options of the run.
WAYS = {
    "replicas": ("--durability", "replicas", "--recovery", "replicas"),
    "taskb": ("--durability", "replicas", "--recovery", "taskb"),
    "store": ("--durability", "batch", "--recovery", "store", "--store", "100 GB/s, 0 s"),
    "batch": ("--durability", "batch", "--recovery", "replicas"),
}
KILLED, BATCHES, LATENCY_S = 6, 10, 0.05
#: Lineitems at scale 1, of which a stream brings all.
_ROWS = 6_000_000
_TABLE = "{:>6} {:>9} {:>12} {:>12} {:>12} {:>9}"


@click.command()
@click.option("--scale", "scales", multiple=True, type=float, default=(0.05, 0.2))
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), default=tuple(WAYS))
def main(scales: tuple[float, ...], ways: tuple[str, ...]) -> None:
    """Run each way over streams of each scale, and print a table."""
    heads = "scale", "way", "held rows", "batch s", "recovery s", "downloads"
    print(_TABLE.format(*heads), flush=True)
    with s3_server(LATENCY_S) as values, tempfile.TemporaryDirectory() as folder:
        for scale in scales:
            for way in ways:
                outcome = _run(scale, way, values, Path(folder, f"{scale}-{way}.json"))
                batches = outcome["batches"]
                usual = [batch["elapsed_s"] for batch in batches[2:KILLED]]
                killed = batches[KILLED]
                held = sum(batch["input_rows"] for batch in batches[:KILLED])
                figures = (
                    *(scale, way, f"{held:,}", f"{statistics.median(usual):.2f}"),
                    *(f"{killed['recovery_s']:.2f}", killed["fetched_files"]),
                )
                print(_TABLE.format(*figures), flush=True)


def _run(scale: float, way: str, values: dict[str, str], report: Path) -> dict:
    """The report of a run, whose results were compared with DuckDB's."""
    command = [
        *(sys.executable, "-m", "joinengine", "run", "eq5", "--layout", "ftlb", "--zipf", "1.0"),
        *("--scale", str(scale), "--interval-rows", str(round(_ROWS * scale / BATCHES))),
        *("--instances", "8", "--kill", str(KILLED), "--validate", "--json", str(report)),
        *("--master", "local-cluster[3,1,2048]", "--state", f"{make_bucket(values)}/x"),
        *WAYS[way],
    ]
    done = subprocess.run(
        command, env=os.environ | values, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    outcome = json.loads(report.read_text())
    if outcome["valid"] is not True:
        sys.exit(f"{way}, scale {scale}: wrong results")
    return outcome


if __name__ == "__main__":
    main()
