"""`make bench-planners`: seconds for one plan over K keys on N instances, and its growth drawn.

A Zipf(0.85) interval under an empty table, at each planner's own tolerance; one core. The loads are
gathered before the clock starts, as the engine does for all planners alike.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.keeping import write_report
from joinengine.balancing.loads import gather_loads
from joinengine.balancing.statistics import Interval, skew
from joinengine.lab.simulation.workload import Workload
from joinengine.layouts import LAYOUTS, Mixed
from joinengine.layouts.key_based import Planned
from joinengine.routing.base_functions import Modulo
from joinengine.routing.table import RoutingTable

mpl.use("Agg")
from matplotlib import pyplot as plt

KEYS = (10_000, 100_000, 1_000_000)
INSTANCES = (8, 64)
#: Planners left out: mixed-bf tries every number of keys of the table, which is empty here.
LEFT_OUT = {"mixed-bf"}
#: Planners over records of like keys, rounded by R = 16; the time includes gathering them.
RECORDS = {"mixed-compact": Mixed(degree=4)}
console = Console(soft_wrap=True)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/planners"))
@click.option("--runs", default=3, show_default=True)
@click.option("--planners", "chosen", default="", help="Only these: a,b.")
def main(out: Path, runs: int, chosen: str) -> None:
    """Plan, and write table, JSON and picture."""
    choices = {
        name: choice()
        for name, choice in LAYOUTS.items()
        if issubclass(choice, Planned) and name not in LEFT_OUT
    } | RECORDS
    choices = {name: choices[name] for name in choices if name in chosen.split(",") or not chosen}
    names = list(choices)
    rows = list[dict[str, Any]]()
    for n_keys in KEYS:
        for instances in INSTANCES:
            loads = _loads(n_keys, instances)
            for name in names:
                rows.append(
                    _time(name, choices[name], loads, runs)
                    | {"keys": n_keys, "instances": instances}
                )
                console.print(
                    f"{name}: {n_keys:,} keys on {instances}: {rows[-1]['seconds']:.3f} s, "
                    f"skew {rows[-1]['before']:.2f} -> {rows[-1]['after']:.2f}"
                )
    write_report(out / "planners.json", {"plans": rows})
    console.print(_table(rows, names))
    _draw(rows, names, out / "planners.png")
    console.print(f"report: {out / 'planners.json'}, picture: {out / 'planners.png'}")


def _loads(n_keys: int, instances: int) -> Any:
    base = Modulo(instances)
    hashes, counts = next(Workload(keys=n_keys, rows=100 * n_keys).intervals(base))
    both = np.vstack([counts, counts]) / 2
    interval = Interval(hashes, both, both, np.zeros(instances))
    return gather_loads([interval], RoutingTable(), base)


def _time(name: str, choice: Planned, loads: Any, runs: int) -> dict[str, Any]:
    seconds = list[float]()
    for _ in range(runs):
        start = time.perf_counter()
        changed = choice.changes(loads)
        seconds.append(time.perf_counter() - start)
    before = loads.per_instance()
    after = before.copy()
    for key, shares in changed.items():
        after[loads.homes[key]] -= loads.spread[key]
        for instance, share in shares.items():
            after[instance] += share * loads.spread[key]
    return {
        "planner": name,
        "seconds": statistics.median(seconds),
        "before": skew(before),
        "after": skew(after),
        "changed": len(changed),
    }


def _table(rows: list[dict[str, Any]], names: list[str]) -> Table:
    table = Table(title="seconds for one plan", box=None, title_justify="left")
    table.add_column("planner", no_wrap=True, min_width=13)
    for n_keys in KEYS:
        for instances in INSTANCES:
            table.add_column(f"{n_keys:,} x {instances}", justify="right")
    for name in names:
        table.add_row(name, *(f"{r['seconds']:.3f}" for r in rows if r["planner"] == name))
    return table


def _draw(rows: list[dict[str, Any]], names: list[str], path: Path) -> None:
    figure, axes = plt.subplots(1, len(INSTANCES), figsize=(10.4, 4), sharey=True)
    for axis, instances in zip(axes, INSTANCES, strict=True):
        for number, name in enumerate(names):
            ours = [r for r in rows if (r["planner"], r["instances"]) == (name, instances)]
            style = ("-", "--")[number // 6]
            axis.loglog(
                [r["keys"] for r in ours], [r["seconds"] for r in ours], f"o{style}", label=name
            )
        axis.set_title(f"{instances} instances")
        axis.set_xlabel("keys")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("seconds for one plan")
    axes[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
