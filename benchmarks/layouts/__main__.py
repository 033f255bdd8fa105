"""`make bench` and `make bench-full`: what skew costs under each layout; all cells validated.

A cell is a part of the benchmark, a case of it (a skew, mostly) and a layout. `make bench` has
small streams. Each tuple that an instance receives costs it emulated work there, and the instances
work side by side; the work is such that under `hash`, at the greatest skew, the batches of a query
wait some WAIT_S seconds for their slowest instance. Without that work a small cell measures what
Spark's jobs cost, which is the same for every layout. Then come streams whose pairs dominate
(`benchmarks.layouts.pairs`), where nothing is emulated.

`make bench-full` has large streams, hot keys that change, growth and a loss
(`benchmarks.layouts.cells`), and emulates no work.

Layouts are ranked by the seconds for which batches wait for their busiest instance: where work is
emulated, these do not depend on the machine. Rows per second are by the clock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console

from benchmarks.keeping import commit, folder
from benchmarks.layouts import pairs
from benchmarks.layouts.cells import QUICK, QUICK_SCALE, SKEWS, SMALL, Cell, full, scale_for, small
from benchmarks.layouts.drawing import draw_part
from benchmarks.layouts.running import Line, Plan, run_all
from benchmarks.layouts.summary import Row, rows_of, table_of, write_csv, write_summary
from joinengine import session
from joinengine.lab.commands.pages import write_page
from joinengine.lab.comparison.batch_loads import received_by_batch
from joinengine.lab.comparison.provenance import made_by
from joinengine.lab.comparison.verdicts import verdict
from joinengine.lab.queries import Options, find
from joinengine.lab.queries.runs import Followers, Places, run
from joinengine.lab.tpch.generate import home
from joinengine.layouts import LAYOUTS
from joinengine.reporting.run_report import FORMAT

WAIT_S = 6.0
console = Console(soft_wrap=True, width=200)


class Bench(NamedTuple):
    """What differs between the two benchmarks: the cells, and what is kept of their runs."""

    name: str
    cells: Sequence[Cell]
    repeat: int
    has_runs: bool


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/bench"))
@click.option("--instances", default=8, show_default=True)
@click.option("--quick", is_flag=True, help=f"Few layouts: {', '.join(QUICK)}, or fewer.")
@click.option("--full", "is_full", is_flag=True, help="Large streams; hours.")
@click.option("--repeat", type=int, help="Runs of each cell. [default: 1; with --full 3]")
@click.option("--seed", default=0, show_default=True, help="Of the order of the runs.")
def main(
    out: Path, instances: int, quick: bool, is_full: bool, repeat: int | None, seed: int
) -> None:
    """Run all cells in one session; write lines, CSV, pictures and a page; go on where it ended."""
    here = folder(out, commit())
    spark = session()
    make = _full if is_full else _small
    bench = make(spark, out, instances, quick=quick)
    plan = Plan(repeat or bench.repeat, seed)
    path = here / f"{bench.name}.jsonl"
    found = run_all(spark, bench.cells, path, plan, console)
    spark.stop()
    rows = rows_of(found)
    _show(rows, here, bench.name)
    if bench.has_runs:
        _write_runs(found, here, bench.name)
    console.print(f"figures: {path}, {path.with_suffix('.csv')}; page: {path.with_suffix('.html')}")
    wrong = [f"{row.part}, {row.case}, {row.layout}" for row in rows if row.is_bad]
    if wrong:
        raise click.ClickException(f"{len(wrong)} cells are not valid: {'; '.join(wrong)}")


def _small(spark: Any, out: Path, instances: int, *, quick: bool) -> Bench:
    found = list[Cell]()
    for name, (scale, rows) in SMALL.items():
        base = Options(scale=scale, interval_rows=rows, instances=instances)
        work_us = _calibrated(spark, name, base)
        console.print(f"{name}: {work_us} us of emulated work for each tuple")
        base = base.under(workPerTuple=f"{work_us} us")
        found += small(name, base, quick=quick, say=console.print)
    found += pairs.cells(out, quick=quick, say=console.print)
    return Bench(_named("bench", quick=quick), found, 1, has_runs=True)


def _full(spark: Any, out: Path, instances: int, *, quick: bool) -> Bench:
    scale = QUICK_SCALE if quick else scale_for(home(), console.print)
    found = full(scale, instances, quick=quick, say=console.print)
    run(spark, find("eq5"), Options(scale=QUICK_SCALE), Places())  # warms the session up
    return Bench(_named("full", quick=quick), found, 2 if quick else 3, has_runs=False)


def _named(name: str, *, quick: bool) -> str:
    return f"{name}-quick" if quick else name


def _calibrated(spark: Any, name: str, base: Options) -> int:
    """The work for a tuple, in microseconds: see above. The run also warms the session up."""
    options = replace(base, zipf=max(SKEWS), layout=LAYOUTS["hash"]())
    loads = received_by_batch(
        run(spark, find(name), options, Places(), followers=Followers(console.print))
    )
    return max(1, round(WAIT_S * 1e6 / float(loads.max(axis=1).sum())))


def _show(rows: Sequence[Row], here: Path, name: str) -> None:
    """Tables on the terminal; CSV, a picture for each part, and the page."""
    for part, case in dict.fromkeys((row.part, row.case) for row in rows):
        ours = [row for row in rows if (row.part, row.case) == (part, case)]
        console.print(table_of(f"\n{part}, {case}", ours))
    pictures = list[Path]()
    for part in dict.fromkeys(row.part for row in rows):
        pictures.append(here / f"{name}-{part}.png")
        draw_part([row for row in rows if row.part == part], pictures[-1])
    write_csv(rows, here / f"{name}.csv")
    write_summary(rows, pictures, made_by(), here / f"{name}.html")


def _write_runs(found: Sequence[Line], here: Path, name: str) -> None:
    """The first run of each cell of a query as JSON and as one page, and the verdicts."""
    ours = [line for line in found if line["part"] in SMALL and line["repeat"] == 0]
    reports = [line["report"] for line in ours if "report" in line]
    told = [
        f"{query}, {sentence}"
        for query in SMALL
        for sentence in verdict([report for report in reports if report["query"] == query])
    ]
    for sentence in told:
        console.print(sentence)
    content = {"format": FORMAT, "runs": reports, "verdict": told}
    (here / f"{name}.json").write_text(json.dumps(content | {"made_by": made_by()}, indent=1))
    write_page(here / f"{name}-runs.html", content)
    console.print(f"each run: {here / f'{name}-runs.html'}")


if __name__ == "__main__":
    main()
