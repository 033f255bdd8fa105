"""`make bench-peers`: rows per second beside Spark's own stream join, with the ratios.

Systems take turns, so that a slow minute of the machine hits all; each run is a process of its
own; the figure of a system is the median of its runs. The rate is input rows / seconds of whole
triggers, after 3 warm batches. Spark's own join drops its state as late as it must, as does ours.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.peers.stream import PART, record
from benchmarks.peers.systems import BANDS, OUTER, SYSTEMS
from joinengine.reporting.reports import made_by

console = Console(soft_wrap=True)
#: Three warm batches of half a million rows, then batches of the size that is measured.
SIZES = {"0.5 M": (500_000,) * 4, "2 M": (500_000, 500_000, 500_000, 2_000_000)}
OURS = "joinengine"
MEMORY = "Spark, in memory"
ROCKSDB = ("Spark, RocksDB 2", "Spark, RocksDB 4")


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/peers"))
@click.option("--runs", default=3, show_default=True, help="Runs of each system; odd.")
@click.option("--scale", default=1.0, show_default=True, help="TPC-H scale.")
@click.option("--systems", "chosen", default="", help="Only those that contain one of a,b.")
def main(out: Path, runs: int, scale: float, chosen: str) -> None:
    """Run every system `runs` times, at both batch sizes, and other joins at the smaller one."""
    names = [name for name in SYSTEMS if any(part in name for part in chosen.split(","))]
    figures = dict[str, Any]()
    for size, batch_rows in SIZES.items():
        stream = record(scale, batch_rows, console.print)
        figures[size] = _in_turns("equi", size, names, stream.folder, runs)
        if OURS in names and size == "0.5 M":
            figures["window x 20"] = _wide_window(stream.folder, runs)
        if size == "0.5 M":
            bands = [name for name in BANDS if name in names]
            figures["band"] = _in_turns("band", "band", bands, stream.folder, runs)
            outer = [name for name in OUTER if any(part in name for part in chosen.split(","))]
            figures["full outer"] = _in_turns("outer", "full outer", outer, stream.folder, runs)
    out.mkdir(parents=True, exist_ok=True)
    report = {"scale": scale, "figures": figures, "made_by": made_by()}
    (out / "peers.json").write_text(json.dumps(report, indent=1))
    for size in SIZES:
        console.print(_table(f"{size} rows a batch", figures[size]))
    for job in ("band", "full outer"):
        console.print(_table(f"{job}, 0.5 M rows a batch", figures[job]))
    if "window x 20" in figures:
        wide = figures["window x 20"]
        console.print(f"window x 20, 0.5 M: {wide['ratio']:.2f} of the rate at the plain window")
    if OURS in names:
        console.print(_split_table({size: figures[size][OURS]["split"] for size in SIZES}))
    console.print(f"report: {out / 'peers.json'}")


def _in_turns(
    job: str, title: str, names: list[str], folder: Path, runs: int
) -> dict[str, dict[str, Any]]:
    """The figures of some systems that take turns."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(runs):
        for name in names:
            found[name].append(_run(job, name, folder, PART))
            rate = _rate(found[name][-1])
            console.print(f"{title}, run {turn + 1}: {name}: {rate / 1e6:.3f} M rows/s")
    return {name: _summary(results) for name, results in found.items()}


def _wide_window(folder: Path, runs: int) -> dict[str, Any]:
    """The whole stream in the window, in turns with the plain one."""
    pairs = [
        (_run("equi", OURS, folder, PART), _run("equi", OURS, folder, 20 * PART))
        for _ in range(runs)
    ]
    ratios = [_rate(wide) / _rate(plain) for plain, wide in pairs]
    return {"ratio": statistics.median(ratios), "ratios": ratios}


def _run(job: str, name: str, folder: Path, part: float) -> dict[str, Any]:
    where = [job, name, str(folder), str(part)]
    command = [sys.executable, "-m", "benchmarks.peers.systems", *where]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{name} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _rate(result: dict[str, Any]) -> float:
    return float(sum(result["rows"]) / sum(result["seconds"]))


def _summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    rates = [_rate(result) for result in results]
    parts = results[0]["split"]
    return {
        "rows_per_s": statistics.median(rates),
        "runs": rates,
        "results": results[0]["results"],
        "split": {
            part: statistics.median(r["split"].get(part, 0) for r in results) for part in parts
        },
    }


def _table(title: str, figures: dict[str, Any]) -> Table:
    table = Table(title=title, box=None, title_justify="left")
    for column in ("system", "M rows/s", "results", "x in memory", "x RocksDB (best)"):
        table.add_column(column, justify="left" if column == "system" else "right", no_wrap=True)
    memory = figures.get(MEMORY, {}).get("rows_per_s")
    rocks = max((figures[name]["rows_per_s"] for name in ROCKSDB if name in figures), default=None)
    for name, found in figures.items():
        rate = found["rows_per_s"]
        ratios = [f"{rate / base:.1f}" if base else "" for base in (memory, rocks)]
        table.add_row(name, f"{rate / 1e6:.3f}", f"{found['results']:,}", *ratios)
    return table


def _split_table(splits: dict[str, dict[str, float]]) -> Table:
    table = Table(title="where a batch's time goes (own source)", box=None, title_justify="left")
    table.add_column("part")
    for size in splits:
        table.add_column(size, justify="right")
    names = dict.fromkeys(name for split in splits.values() for name in split)
    for name in names:
        table.add_row(name, *(f"{split.get(name, 0):.1%}" for split in splits.values()))
    return table


if __name__ == "__main__":
    main()
