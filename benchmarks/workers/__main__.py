"""`make bench-workers`: seconds of a batch on 1, 2, 4 and 8 executors, for a hot key and work.

Executors are processes of one core each; the work is emulated, so that they work side by side on a
machine of fewer cores. `linear` is the summed work of a batch over the executors: no system can be
faster. Only joinengine can have work for each tuple that an instance receives; work for each result
runs in Spark's own join, too.

One executor waits so long for a batch's work that the time of Spark's jobs hardly counts. So with
fewer tuples, or less work, the ratios are lower.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.workers.picture import draw_workers
from benchmarks.workers.runs import SPARK, beside, cluster, joined, median_s, options
from joinengine.lab.comparison.provenance import made_by
from joinengine.lab.comparison.tables import figures_table
from joinengine.lab.queries import Options, find

LAYOUTS = ("hash", "mnrt")
#: Work is for each tuple or each result -> the systems that do it.
KINDS = {"tuple": LAYOUTS, "result": (*LAYOUTS, SPARK)}
#: With one instance all layouts are the same, and each tuple has one result.
ALONE = (("tuple", "hash"), ("result", SPARK))
Rows = list[dict[str, Any]]
console = Console(soft_wrap=True, width=160)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/workers"))
@click.option("--executors", default="1,2,4,8", show_default=True, help="Of one core each.")
@click.option("--work-ms", default=2.5, show_default=True, help="Of a tuple, and of a result.")
@click.option("--zipf", default=1.2, show_default=True, help="Skew of foreign keys.")
@click.option("--scale", default=0.0105, show_default=True, help="TPC-H scale.")
@click.option("--interval-rows", default=20_000, show_default=True, help="Rows of a batch.")
def main(
    out: Path, executors: str, work_ms: float, zipf: float, scale: float, interval_rows: int
) -> None:
    """Run, and write table, JSON and picture.

    What an earlier call with the same settings has found for other numbers of executors stays in
    the report, so the whole can be measured in pieces.
    """
    settings = {"work_ms": work_ms, "zipf": zipf, "scale": scale, "interval_rows": interval_rows}
    path = out / "workers.json"
    rows = _kept(path, settings)
    out.mkdir(parents=True, exist_ok=True)
    for number in map(int, executors.split(",")):
        rows = [row for row in rows if row["executors"] != number]
        for row in _measured(number, round(work_ms * 1000), zipf, scale, interval_rows):
            console.print(_line(row))
            rows.append(row | {"made_by": made_by()})  # kept rows are of other calls
            rows.sort(key=lambda row: row["executors"])
            content = {"settings": settings, "runs": rows}
            path.write_text(json.dumps(content, indent=1))
    console.print(_table(rows))
    draw_workers(rows, out / "workers.png")
    console.print(f"report: {path}, picture: {out / 'workers.png'}")


def _kept(path: Path, settings: dict[str, Any]) -> Rows:
    if not path.exists():
        return []
    content = json.loads(path.read_text())
    return list(content["runs"]) if content["settings"] == settings else []


def _measured(
    executors: int, work_us: int, zipf: float, scale: float, interval_rows: int
) -> Iterator[dict[str, Any]]:
    """All runs on so many executors; before them one warms up, and one has no work."""
    base = options(scale, zipf, interval_rows, executors)
    batches = _rows(base) // interval_rows  # the last one has fewer rows
    with cluster(executors) as spark:
        for _ in range(2):
            fixed_s = median_s(joined(spark, base, "hash", batches)["seconds"])
        for kind, systems in KINDS.items():
            asked = base.under(**{f"workPer{kind.capitalize()}": f"{work_us} us"})
            for name in systems:
                if executors == 1 and (kind, name) not in ALONE:
                    continue
                if name == SPARK:
                    run = beside(spark, asked, batches)
                else:
                    run = joined(spark, asked, name, batches)
                row = {"executors": executors, "work": kind, "system": name}
                row |= {"layout": name != SPARK, "fixed_s": fixed_s}
                yield row | _figures(run, executors)


def _rows(base: Options) -> int:
    """How many rows the stream has."""
    return sum(find("eq5").stream(base).record(console.print).rows.values())


def _figures(run: dict[str, Any], executors: int) -> dict[str, Any]:
    batch_s = median_s(run["seconds"])
    linear_s = median_s(run["work_s"]) / executors
    busiest = run["busiest_s"]
    return run | {
        "batch_s": batch_s,
        "linear_s": linear_s,
        "of_linear": linear_s / batch_s,
        "hottest_s": None if busiest is None else median_s(busiest),
    }


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['executors']} executors, work per {row['work']}, {row['system']}: "
        f"{row['batch_s']:.2f} s a batch, linear {row['linear_s']:.2f} s, "
        f"{row['of_linear']:.2f} of it; without work {row['fixed_s']:.2f} s"
    )


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    title = "seconds of a batch (median); of linear: the summed work over the executors, over it"
    heads = ("work per", "system", "executors", "a batch", "linear", "of linear", "busiest")
    table = figures_table((*heads, "without work"), title, words=heads[:2])
    for row in sorted(rows, key=lambda row: (row["work"] != "tuple", row["system"])):
        busiest = row["hottest_s"]
        table.add_row(
            *(row["work"], row["system"], f"{row['executors']}"),
            *(f"{row['batch_s']:.2f}", f"{row['linear_s']:.2f}", f"{row['of_linear']:.2f}"),
            *("" if busiest is None else f"{busiest:.2f}", f"{row['fixed_s']:.2f}"),
        )
    return table


if __name__ == "__main__":
    main()
