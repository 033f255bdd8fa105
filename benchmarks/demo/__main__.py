"""`make demo`: times a stream join with a hot key on both sides, beside the alternatives.

The same stream goes through Spark's own join, Spark's join with the hot key salted by hand, the
layout `hash`, which places rows by key as Spark does, and the default, which divides the hot key.
No work is emulated. Spark would take an hour, so it gets only the first file. joinengine's results
are compared with DuckDB's, those of Spark's two joins with each other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from rich.console import Console
from rich.table import Table

from benchmarks.demo.stream import FILES, PART, PRICES, ROWS, WINDOW_S, answer, record
from benchmarks.keeping import printed
from joinengine.lab.comparison.pictures import colours_of
from joinengine.lab.comparison.tables import figures_table
from joinengine.lab.queries.answers import oracle_checksum
from joinengine.lab.queries.named_query import Oracle

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

console = Console(soft_wrap=True)
#: Files that Spark gets, of FILES; joinengine reads all of them in BATCHES batches.
SPARK_FILES, BATCHES = 1, 25
LAYOUTS = ("hash", "auto")
_PEERS = {"spark": "Spark's join", "salted": "Spark's join, salted by hand"}
_GREY, _COLOURS = "#555555", colours_of(LAYOUTS)
_ON = ["--on", "v_product=p_product", "--delay", "1s"]


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/demo"))
@click.option("--instances", default=8, show_default=True)
def main(out: Path, instances: int) -> None:
    """Run all, one after another; write the table, the JSON, the picture and the page."""
    console.print(f"writing views and purchases: {ROWS:,} rows, {PART:.0%} of both of one product")
    record(out / "stream")
    lines = [_peer(name, out / "stream") for name in ("spark", "salted")]
    reports = _compared(out, instances)
    lines += [_ours(report) for report in reports]
    _check(lines)
    _check_answers(reports, out / "stream")
    console.print(_table(lines))
    console.print(
        "seconds: by the clock; Spark's from the start of its second query, joinengine's from its "
        "first trigger; Spark gets the first part alone, in which least state is held"
    )
    _draw(lines, reports, out / "demo.png")
    (out / "seconds.json").write_text(json.dumps(lines, indent=1))
    console.print(f"picture of all of them: {out / 'demo.png'}")


def _peer(name: str, folder: Path) -> dict[str, Any]:
    """One of `benchmarks.demo.peers`, in a process of its own."""
    console.print(f"{_PEERS[name]}: the first {SPARK_FILES} of {FILES} files")
    command = "benchmarks.demo.peers", name, str(folder), str(SPARK_FILES)
    figures: dict[str, Any] = printed(name, *command)
    return figures | {"name": _PEERS[name], "files": SPARK_FILES}


def _compared(out: Path, instances: int) -> list[dict[str, Any]]:
    """The reports of `joinengine compare`.

    It shows its own table, and says where its picture and the page are.
    """
    near, rows = f"v_time,p_time,0s,{WINDOW_S}s", ROWS // BATCHES
    command = [str(Path(sys.executable).with_name("joinengine")), "compare"]
    command += ["--left", str(out / "stream/views"), "--right", str(out / "stream/purchases")]
    where = PRICES.replace("v_price", "left.v_price").replace("p_price", "right.p_price")
    command += [*_ON, "--within", near, "--where", where, "--layouts", ",".join(LAYOUTS)]
    command += ["--instances", str(instances), "--interval-rows", str(rows), "--no-validate"]
    command += ["--json", str(out / "demo.json"), "--report", str(out / "demo.html")]
    command += ["--figure", str(out / "loads.png")]  # demo.png is the picture of all
    if subprocess.run(command, check=False).returncode:
        raise click.ClickException("joinengine compare failed; its message is above")
    runs: list[dict[str, Any]] = json.loads((out / "demo.json").read_text())["runs"]
    return runs


def _ours(report: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": f"joinengine, {report['layout']}",
        "files": FILES,
        "seconds": report["elapsed_s"],
        "results": report["output_rows"],
    }


def _check(lines: list[dict[str, Any]]) -> None:
    """Check that all who joined the same number of files have the same number of results."""
    for files in {line["files"] for line in lines}:
        if len({line["results"] for line in lines if line["files"] == files}) > 1:
            raise click.ClickException(f"the results differ: {lines}")


def _check_answers(reports: list[dict[str, Any]], folder: Path) -> None:
    """Fail if a run has other results than DuckDB, by their checksums."""
    console.print("comparing joinengine's results with DuckDB's")
    tables = {name: ds.dataset(folder / name).to_table() for name in ("views", "purchases")}
    schema = pa.schema([field for table in tables.values() for field in table.schema])
    expected = oracle_checksum(schema, Oracle(answer(), tables=tables))
    for report in reports:
        if report["result_checksum"] != expected:
            raise click.ClickException(f"layout {report['layout']} differs from DuckDB")
    console.print("they are the same")


def _rate(line: dict[str, Any]) -> float:
    return ROWS * int(line["files"]) / FILES / float(line["seconds"])


def _table(lines: list[dict[str, Any]]) -> Table:
    table = figures_table(("", "seconds", "of the stream", "rows/s", "results"))
    for line in lines:
        of = "all" if line["files"] == FILES else f"{line['files']}/{FILES}"
        cells = f"{line['seconds']:.1f}", of, f"{_rate(line):,.0f}", f"{line['results']:,}"
        table.add_row(line["name"], *cells)
    return table


def _draw(lines: list[dict[str, Any]], reports: list[dict[str, Any]], path: Path) -> None:
    """Rows per second of all, and the busy seconds of each instance under both layouts."""
    figure, (rates, busy) = plt.subplots(1, 2, figsize=(12.4, 3.8), layout="constrained")
    names = [line["name"] for line in lines]
    colours = [_COLOURS.get(name.rpartition(" ")[2], _GREY) for name in names]
    values = [_rate(line) for line in lines]
    bars = rates.barh(names, values, color=colours)
    rates.bar_label(bars, [f"{value:,.0f}" for value in values], padding=3, fontsize=8)
    rates.invert_yaxis()
    rates.set_xscale("log")
    rates.set_xlim(10 ** np.floor(np.log10(min(values))), max(values) * 4)
    rates.set_xlabel("rows per second, by the clock")
    _busy(busy, reports)
    for axis in (rates, busy):
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"one product has {PART:.0%} of {ROWS:,} views and purchases")
    figure.savefig(path, dpi=120)


def _busy(axis: Axes, reports: list[dict[str, Any]]) -> None:
    width = 0.8 / len(reports)
    for number, report in enumerate(reports):
        seconds = np.array(report["busy_s_per_instance"])
        places = np.arange(len(seconds)) + number * width
        axis.bar(places, seconds, width, label=report["layout"], color=_COLOURS[report["layout"]])
    axis.set_xlabel("instance")
    axis.set_ylabel("seconds that it worked")
    axis.legend(frameon=False)


if __name__ == "__main__":
    main()
