"""`make bench-scale`: what the driver's part of a batch costs as instances, tasks and keys grow.

The driver is the engine's own; the tasks are simulated
(`joinengine.lab.simulation.simulated_tasks`), so nothing but the driver's work is measured:
processor time, medians over batches. Layout mnrt, one join within an interval of WINDOW batches.
"""

from __future__ import annotations

import statistics
import tracemalloc
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.keeping import write_report
from joinengine.lab.comparison.tables import figures_table
from joinengine.lab.simulation.driven import PARTS, WINDOW, driver_of
from joinengine.lab.simulation.simulated_tasks import SimulatedJobs
from joinengine.layouts import Mnrt

#: Instances, tasks, keys in the routing table.
CASES = (
    *((8, 2, 1000), (64, 16, 10_000)),
    *((512, 128, 100_000), (1024, 128, 100_000), (1024, 1024, 100_000), (4096, 1024, 100_000)),
)
console = Console(soft_wrap=True, width=200)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/scale"))
@click.option("--batches", default=8, show_default=True, help="Batches that are measured.")
@click.option("--warm", default=WINDOW + 8, show_default=True, help="Batches before these.")
@click.option("--cases", default="", help="Only these: INSTANCES:TASKS:KEYS,..")
def main(out: Path, batches: int, warm: int, cases: str) -> None:
    """Run batches, and write table and JSON."""
    wanted = [tuple(map(int, case.split(":"))) for case in cases.split(",") if case] or CASES
    rows = list[dict[str, Any]]()
    for instances, tasks, keys in wanted:
        rows.append(_measure(instances, tasks, keys, warm, batches))
        last = rows[-1]
        console.print(
            f"{instances} instances, {tasks} tasks, {keys:,} keys: "
            f"{last['whole_s']:.3f} s a batch, {last['replan_s']:.3f} s with a re-plan"
        )
    write_report(out / "scale.json", {"batches": rows})
    console.print(_table(rows))
    console.print(f"report: {out / 'scale.json'}")


def _measure(instances: int, tasks: int, keys: int, warm: int, batches: int) -> dict[str, Any]:
    jobs = SimulatedJobs(tasks, instances)
    with driver_of(jobs, Mnrt(imbalance=0.2)) as driver:
        driver.with_table(keys)
        spent = [driver.batch(number) for number in range(warm + batches)]
        quiet = spent[warm:]
        plans = list[dict[str, Any]]()
        for number in range(warm + batches, warm + batches + 4):
            jobs.hot = {number % instances: 40.0}
            plans.append(driver.batch(number))
        jobs.hot = {}
        tracemalloc.start()
        driver.batch(warm + batches + 4)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        (state,) = driver.runner.manifest.operators
    changes = [one for one in quiet if not one["full"]] or quiet
    found: dict[str, Any] = {
        "instances": instances,
        "tasks": tasks,
        "keys": keys,
        "runs": len(state.shelves.state),
        "files": len(state.shelves.files),
        "peak_bytes": peak,
        "full_s": max((one["commit_s"] for one in spent if one["full"]), default=None),
        "full_bytes": max(one["manifest_bytes"] for one in spent),
        "replan_s": statistics.median(one["whole_s"] for one in plans if one["replans"]),
        "replans": sum(one["replans"] for one in plans),
    }
    names = [f"{part}_s" for part in PARTS]
    for name in [*names, "instructions_bytes", "reports_bytes", "manifest_bytes"]:
        found[name] = statistics.median(one[name] for one in changes)
    return found


def _table(rows: list[dict[str, Any]]) -> Table:
    heads = ("instances", "tasks", "keys", "runs", *PARTS, "re-plan", "full")
    columns = (*heads, "told MB", "heard MB", "manifest KB", "full MB", "peak MB")
    table = figures_table(columns, "seconds of the driver's processor time for a batch")
    for row in rows:
        table.add_row(
            *(f"{row[name]:,}" for name in heads[:4]),
            *(f"{row[f'{part}_s']:.3f}" for part in PARTS),
            f"{row['replan_s']:.3f}",
            f"{row['full_s']:.3f}" if row["full_s"] is not None else "",
            f"{row['instructions_bytes'] / 1e6:.1f}",
            f"{row['reports_bytes'] / 1e6:.1f}",
            f"{row['manifest_bytes'] / 1e3:.0f}",
            f"{row['full_bytes'] / 1e6:.1f}",
            f"{row['peak_bytes'] / 1e6:.0f}",
        )
    return table


if __name__ == "__main__":
    main()
