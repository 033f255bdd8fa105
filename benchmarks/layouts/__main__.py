"""`make bench`: what skew costs under each layout, ranked; every cell is compared with DuckDB.

A cell is a query, a skew and a layout. Each tuple that an instance receives costs it emulated work,
and the instances work side by side; the work is such that under `hash`, at the greatest skew, the
batches of a query wait some WAIT_S seconds for their slowest instance. Without that work a cell
measures what Spark's jobs cost, which is the same for every layout.

The rank is by tuples received, times work: so it does not depend on the machine. Rows per second
are by the clock.

Then come streams whose pairs dominate (`benchmarks.layouts.pairs`): there nothing is emulated, and
the rank is by the measured seconds of the busiest instance.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.layouts import pairs
from benchmarks.layouts.ranking import TABLE_WIDTH, draw_ranking, ranking_legend
from joinengine import session
from joinengine.lab.commands.pages import write_page
from joinengine.lab.comparison.tables import ranking_table
from joinengine.lab.comparison.verdicts import verdict
from joinengine.lab.queries import Options, Query, find
from joinengine.lab.queries.named_query import check
from joinengine.lab.queries.runs import Followers, Places, run
from joinengine.layouts import LAYOUTS
from joinengine.model.errors import InvalidRequest
from joinengine.reporting.run_report import FORMAT, made_by, received_by_batch

#: Query -> TPC-H scale, and rows of each of its eight batches.
QUERIES = {"eq5": (0.02, 15_200), "bnci": (0.02, 15_100)}
SKEWS = (0.0, 0.8, 1.5)
#: The baseline, and one layout of each kind.
QUICK = ("hash", "mixed", "mnrt", "w-choices", "dynamic", "bi-k", "auto")
WAIT_S = 6.0
console = Console(soft_wrap=True)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/bench"))
@click.option("--instances", default=8, show_default=True)
@click.option("--quick", is_flag=True, help=f"Seven layouts: {', '.join(QUICK)}.")
def main(out: Path, instances: int, quick: bool) -> None:
    """Run all cells in one session; write tables, JSON, a picture for each query, and the page."""
    out.mkdir(parents=True, exist_ok=True)
    spark = session()
    reports = list[dict[str, Any]]()
    for name, (scale, rows) in QUERIES.items():
        query = find(name)
        base = Options(scale=scale, interval_rows=rows, instances=instances)
        work_us = _calibrated(spark, query, base)
        base = base.under(workPerTuple=f"{work_us} us")
        ours = [_cell(spark, query, options) for options in _cells(query, base, quick=quick)]
        console.print(ranking_table(ours), width=max(console.width, TABLE_WIDTH))
        for line in ranking_legend(work_us):
            console.print(line)
        draw_ranking(ours, out / f"{name}.png")
        reports += ours
    dominated = _dominated_by_pairs(spark, out, quick=quick)
    spark.stop()
    content = {"format": FORMAT, "runs": reports, "verdict": _verdict(reports)}
    (out / "bench.json").write_text(json.dumps(content | {"made_by": made_by()}, indent=1))
    write_page(out / "bench.html", content)
    console.print(f"figures: {out / 'bench.json'}, pictures: {out}/*.png")
    console.print(f"report: {out / 'bench.html'}")
    wrong = [r for r in [*reports, *dominated] if r["valid"] is not True]
    if wrong:
        raise click.ClickException(f"{len(wrong)} cells differ from DuckDB")


def _dominated_by_pairs(spark: Any, out: Path, *, quick: bool) -> list[dict[str, Any]]:
    """The reports of the cells of `pairs`, for the layouts of QUICK; a table and words for each."""
    found = list[dict[str, Any]]()
    for cell in pairs.cells(quick=quick):
        ours = pairs.measured(spark, cell, QUICK, out, console.print)
        console.print(f"\n{cell}: {2 * cell.stream.rows:,} rows; nothing is emulated")
        console.print(ranking_table(ours), width=max(console.width, TABLE_WIDTH))
        for line in verdict(ours):
            console.print(line)
        found += ours
        (out / "pairs.json").write_text(json.dumps(found, indent=1))
    for line in ranking_legend(0):
        console.print(line)
    return found


def _verdict(reports: list[dict[str, Any]]) -> list[str]:
    """What the best layout saves, for each query and skew."""
    return [
        f"{name}, {sentence}"
        for name in QUERIES
        for sentence in verdict([report for report in reports if report["query"] == name])
    ]


def _calibrated(spark: Any, query: Query, base: Options) -> int:
    """The work for a tuple, in microseconds: see above. The run also warms the session up."""
    options = replace(base, zipf=max(SKEWS), layout=LAYOUTS["hash"]())
    loads = received_by_batch(
        run(spark, query, options, Places(), followers=Followers(console.print))
    )
    return max(1, round(WAIT_S * 1e6 / float(loads.max(axis=1).sum())))


def _cells(query: Query, base: Options, *, quick: bool) -> list[Options]:
    """The cells of a query: `hash` first, then the other layouts that serve it."""
    cells = list[Options]()
    for z in SKEWS:
        for name in QUICK if quick else LAYOUTS:
            try:
                options = replace(base, zipf=z, layout=LAYOUTS[name]())
                check(query, options)
            except InvalidRequest as error:
                console.print(f"{query.name} {name}: left out: {error}")
            else:
                cells.append(options)
    return cells


def _cell(spark: Any, query: Query, options: Options) -> dict[str, Any]:
    report = run(spark, query, options, Places(), validate=True)
    console.print(
        f"{query.name} z={options.zipf:g} {report['layout']}: slowest instance "
        f"{report['slowest_instance_s']:.2f} s, run {report['elapsed_s']:.1f} s, "
        f"valid: {report['valid']}"
    )
    return report


if __name__ == "__main__":
    main()
