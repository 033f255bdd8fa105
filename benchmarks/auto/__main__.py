"""`make bench-auto`: seconds of the busiest instance under `auto`, beside eight single layouts.

Each cell of a fixed sample runs without Spark and without emulated work, one task after another,
each instance in a task of its own (`joinengine.lab.inline`). The figure is what a cluster would
wait for: the seconds of the busiest instance, summed over the batches. They are seconds of the
processor, which other programs hardly disturb. Among many instances, one is always slow by chance:
so layouts run `--repeat` times in turn, and the least time of each instance and batch counts.
A layout that has taken FAR times as long as another does not run again, and one that takes LONGER
times as much work as `hash` is stopped. Cells that are done do not run again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.auto.cells import Cell, Floats, batches, condition, sample, window
from benchmarks.keeping import append, commit, folder, lines
from joinengine.driver.records import BatchRecord
from joinengine.lab.comparison.tables import figures_table
from joinengine.lab.inline import inline_runs
from joinengine.lab.inline.two_way import Input, two_way
from joinengine.layouts import choose

AUTO = "auto"
SINGLE = ("hash", "mixed", "dlb-h", "mnrt", "qmmp", "pkg", "dynamic", "bi-k")
#: The time limit of a layout for a cell: LONGER times the seconds of `hash`, and GRACE_S more.
LONGER, GRACE_S = 10.0, 2.0
#: A layout that takes this many times as long as another is certainly not the best.
FAR = 2.0
#: The goals of `auto` over the best layout: MOST in every cell, and NEAR in NEAR_PART of the cells.
MOST, NEAR, NEAR_PART = 1.1, 1.02, 0.9
console = Console(soft_wrap=True)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/auto"))
@click.option("--repeat", default=3, show_default=True, help="Runs of each layout.")
@click.option("--rows", default=None, type=int, help="Only cells whose batches have so many rows.")
def main(out: Path, repeat: int, rows: int | None) -> None:
    """Run the cells; write the table and the JSON lines."""
    place = folder(out, commit())
    path = place / "cells.jsonl"
    known = {line["cell"]: line for line in lines(path) if line.get("repeat") == repeat}
    cells = [cell for cell in sample() if rows in (None, cell.rows)]
    if not cells:
        sizes = ", ".join(str(size) for size in sorted({cell.rows for cell in sample()}))
        raise click.UsageError(f"--rows: expected one of {sizes}, found {rows}")
    if repeat < 1:
        raise click.UsageError(f"--repeat: expected at least 1, found {repeat}")
    for cell in cells:
        if str(cell) not in known:
            known[str(cell)] = measured(cell, repeat) | {"repeat": repeat}
            append(path, known[str(cell)])
        console.print(_line(known[str(cell)]))
    outcomes = [known[str(cell)] for cell in cells]
    table = _table(outcomes)
    for line in _verdict(outcomes):
        console.print(line)
    with (place / "cells.txt").open("w") as file:
        printed = Console(file=file, width=200)
        printed.print(table)
        for line in _verdict(outcomes):
            printed.print(line)


def measured(cell: Cell, repeat: int) -> dict[str, Any]:
    """A cell: per layout the seconds of the busiest instance, and how `auto` has planned."""
    frames = list(batches(cell))
    busy, whole = dict[str, list[Floats]](), dict[str, list[float]]()
    plans, results = list[str](), set[int]()
    start = time.process_time()
    _run(cell, "hash", frames)  # the first run pays for caches
    most_s = LONGER * (time.process_time() - start) + GRACE_S
    for _ in range(repeat):
        least = {name: _least(runs) for name, runs in busy.items()}
        far = FAR * min(least.values(), default=np.inf)
        for name in (AUTO, *SINGLE):
            if least.get(name, 0.0) > far and name not in {AUTO, "hash"}:
                continue
            start = time.process_time()
            try:
                records = _run(cell, name, frames, most_s)
            except inline_runs.TimeUp:
                busy[name] = []
                continue
            whole.setdefault(name, []).append(time.process_time() - start)
            busy.setdefault(name, []).append(_busy(records, cell.instances))
            results.add(sum(sum(record.joins[-1].work.made) for record in records))
            plans = _plans(records) if name == AUTO else plans
    if len(results) > 1:
        raise click.ClickException(f"{cell}: layouts differ in their results: {results}")
    least = {name: _least(some) for name, some in busy.items()}
    best = min(SINGLE, key=least.__getitem__)
    return {
        "cell": str(cell),
        **cell._asdict(),
        "seconds": least,
        "whole_s": {name: min(some) for name, some in whole.items()},
        "best": best,
        "ratio": least[AUTO] / least[best],
        "results": results.pop(),
        "plans": plans,
    }


def _run(
    cell: Cell, name: str, frames: Sequence[inline_runs.Frame], most_s: float = np.inf
) -> list[BatchRecord]:
    """The records of all batches; raises TimeUp if they take more than `most_s`."""
    inputs = Input(frames[0][0].schema), Input(frames[0][1].schema)
    query = two_way(inputs, condition(cell), window(cell), cell.instances)
    on = inline_runs.On(inline_runs.OnProcessor(), most_s=most_s)
    return inline_runs.run(query, choose(name), frames, on=on)


def _busy(records: Sequence[BatchRecord], instances: int) -> Floats:
    """(B, N) seconds of each instance in each batch; a matrix may have fewer instances."""
    busy_s = np.zeros((len(records), instances))
    for row, record in zip(busy_s, records, strict=True):
        row[: len(record.joins[-1].work.busy_s)] = record.joins[-1].work.busy_s
    return busy_s


def _least(runs: Sequence[Floats]) -> float:
    """Seconds of the busiest instance, summed over the batches; infinite without runs."""
    return float(np.min(runs, axis=0).max(axis=1).sum()) if len(runs) else np.inf


def _plans(records: Sequence[BatchRecord]) -> list[str]:
    """The plans that `auto` made or declined, and why."""
    reasons = ((record.batch, record.joins[-1].reason) for record in records)
    return [f"batch {batch}: {reason}" for batch, reason in reasons if reason is not None]


def _line(outcome: dict[str, Any]) -> str:
    least = outcome["seconds"]
    return (
        f"{outcome['cell']}: auto {least[AUTO]:.3f} s, "
        f"best {outcome['best']} {least[outcome['best']]:.3f} s, "
        f"hash {least['hash']:.3f} s, ratio {outcome['ratio']:.2f}"
    )


def _table(outcomes: Sequence[dict[str, Any]]) -> Table:
    columns = "cell", AUTO, *SINGLE, "best", "ratio"
    table = figures_table(columns, words=columns)
    for outcome in sorted(outcomes, key=lambda outcome: -outcome["ratio"]):
        seconds = [f"{outcome['seconds'][name]:.3f}" for name in (AUTO, *SINGLE)]
        table.add_row(outcome["cell"], *seconds, outcome["best"], f"{outcome['ratio']:.2f}")
    return table


def _verdict(outcomes: Sequence[dict[str, Any]]) -> list[str]:
    ratios = np.array([outcome["ratio"] for outcome in outcomes])
    total = {n: sum(outcome["seconds"][n] for outcome in outcomes) for n in (AUTO, *SINGLE)}
    lines = [
        f"auto: at most {MOST} times the best single layout in {(ratios <= MOST).sum()} of "
        f"{len(ratios)} cells, within {NEAR - 1:.0%} of it or better in {(ratios <= NEAR).sum()}; "
        f"median {np.median(ratios):.2f}, worst {ratios.max():.2f}",
        "all cells, seconds: " + ", ".join(f"{n} {s:.2f}" for n, s in total.items()),
    ]
    even = [outcome for outcome in outcomes if outcome["zipf"] == 0]
    if even:
        whole = [outcome["whole_s"][AUTO] / outcome["whole_s"]["hash"] for outcome in even]
        lines.append(f"even streams: all tasks and the driver {np.median(whole):.2f} times hash")
    short = (outcome for outcome in outcomes if outcome["ratio"] > MOST)
    return lines + [
        f"short: {outcome['cell']}: {outcome['ratio']:.2f}; {outcome['plans'] or 'no plan'}"
        for outcome in short
    ]


if __name__ == "__main__":
    main()
