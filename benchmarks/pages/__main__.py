"""Measures the cost of Spark's web page: pairs of runs with small batches, with it and without.

Each run is a process of its own, since a session keeps its page. The runs of a pair take turns at
being first, so that a machine that slows down meets both alike. Memory is the JVM's heap after a
full collection: at the end of the run, when the page holds as many jobs as it retains.

    python -m benchmarks.pages --pairs 3 --batches 300
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import click
import pyarrow as pa

from benchmarks.by_clock import ended, in_files

#: The first batches start the JVM's code and the workers.
_WARM = 20


def one_run(*, ui: bool, batches: int) -> dict[str, float]:
    """Seconds of a batch, median; CPU seconds of the JVM over the whole run; its memory in MB."""
    from joinengine import StreamJoin, parquet_stream, session  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for side in ("left", "right"):
            keys = pa.table({"key": range(100 * batches)})
            in_files(keys, root / side, 1, row_group_size=100)
        spark = session(master="local[2]", ui=ui)
        left, right = (
            parquet_stream(spark, root / side, rows_per_interval=100) for side in ("left", "right")
        )
        joined = StreamJoin(left, right, on="key", instances=4)
        query = ended(joined, root / "checkpoint")
        taken = [record.trigger_s for record in query.batches()][_WARM:]
        java = spark._jvm.java.lang
        java.System.gc()
        memory = java.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
        (pid,) = (
            pid
            for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            if "java" in os.readlink(f"/proc/{pid}/exe")
        )
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        measures = {
            "batches": float(len(taken)),
            "batch_s": median(taken),
            "jvm_cpu_s": sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
            "heap_mb": memory.getUsed() / 1e6,
            "resident_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        }
        spark.stop()
        return measures


def in_a_process(*, ui: bool, batches: int) -> dict[str, float]:
    """`one_run` in a fresh interpreter."""
    code = (
        f"import json; from benchmarks.pages.__main__ import one_run; "
        f"print(json.dumps(one_run(ui={ui}, batches={batches})))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measures


@click.command()
@click.option("--pairs", default=3, show_default=True, help="How many pairs of runs.")
@click.option(
    "--batches", default=300, type=click.IntRange(_WARM + 1), show_default=True, help="Of a run."
)
def main(pairs: int, batches: int) -> None:
    """Print what `session(ui=True)` costs."""
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for pair in range(pairs):
        for ui in (False, True) if pair % 2 == 0 else (True, False):
            measures = in_a_process(ui=ui, batches=batches)
            runs[ui].append(measures)
            figures = ", ".join(f"{name} {value:,.4g}" for name, value in measures.items())
            print(f"pair {pair}, page {'on' if ui else 'off'}: {figures}", flush=True)
    for name in ("batch_s", "jvm_cpu_s", "heap_mb", "resident_mb"):
        off, on = (median(run[name] for run in runs[ui]) for ui in (False, True))
        print(f"{name}: {off:,.4g} without the page, {on:,.4g} with it, ratio {on / off:.3f}")


if __name__ == "__main__":
    main()
