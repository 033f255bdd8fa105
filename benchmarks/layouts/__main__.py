"""`make bench`: all layouts on all queries over three skews, every cell validated.

A new layout or query appears here by itself: the cells are the tables LAYOUTS and QUERIES times
SKEWS.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from joinengine import session
from joinengine.layouts import LAYOUTS
from joinengine.queries import QUERIES, Options
from joinengine.queries.running import Places, run
from joinengine.reporting.figures import draw_comparison
from joinengine.reporting.reports import made_by
from joinengine.reporting.tables import summary_table

SKEWS = (0.0, 0.8, 1.5)
console = Console(soft_wrap=True)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/bench"))
@click.option("--scale", default=0.02, show_default=True, help="TPC-H scale.")
@click.option("--instances", default=16, show_default=True)
def main(out: Path, scale: float, instances: int) -> None:
    """Run all cells in one session, after a warm-up, and write table, JSON and one PNG a query."""
    out.mkdir(parents=True, exist_ok=True)
    spark = session()
    cells = [
        (query, Options(scale=scale, zipf=z, layout=choice(), instances=instances))
        for query in QUERIES.values()
        for z in SKEWS
        for choice in LAYOUTS.values()
    ]
    run(spark, cells[0][0], Options(scale=0.001, interval_rows=1500), Places())
    reports = list[dict[str, Any]]()
    for query, options in cells:
        reports.append(run(spark, query, options, Places(), validate=True, say=console.print))
        rate = reports[-1]["rows_per_s"]
        console.print(f"{query.name} {options.layout.name} z={options.zipf:g}: {rate:,.0f} rows/s")
    spark.stop()
    for name in QUERIES:
        ours = [report for report in reports if report["query"] == name]
        console.print(summary_table(ours))
        draw_comparison(ours, out / f"{name}.png")
    content = {"runs": reports, "made_by": made_by()}
    (out / "bench.json").write_text(json.dumps(content, indent=1))
    console.print(f"report: {out / 'bench.json'}, pictures: {out}/*.png")
    wrong = [r for r in reports if r["valid"] is not True]
    if wrong:
        raise click.ClickException(f"{len(wrong)} cells differ from DuckDB")


if __name__ == "__main__":
    main()
