"""`make bench-peers`: joinengine beside Spark's own stream join and DuckDB, with the ratios.

The comparison has parts (`benchmarks.peers.parts`). Systems take turns, so that a slow minute of
the machine hits all; each run is a process of its own; a figure of a system is the median of its
runs. A rate is input rows / seconds of whole triggers, after warm batches. Spark's own join drops
its state as late as it must, as does ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.keeping import named, printed
from benchmarks.peers.parts import PARTS, SPLIT, Column, Command, Figures, Part, medians
from benchmarks.peers.systems import OURS
from joinengine.lab.comparison.provenance import made_by
from joinengine.lab.comparison.tables import figures_table

console = Console(soft_wrap=True, width=200)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/peers"))
@click.option("--repeat", default=3, show_default=True, help="Runs of each system; odd.")
@click.option("--only", default="", help=f"Only parts of a,b: {', '.join(PARTS)}.")
@click.option("--systems", default="", help="Only those that contain one of a,b.")
@click.option("--quick", is_flag=True, help="A tenth of the size, to see that it runs.")
def main(out: Path, repeat: int, only: str, systems: str, quick: bool) -> None:
    """Run the parts one after another; each is in the table and the JSON as soon as it is over.

    The JSON keeps the parts that are not run this time as they were.
    """
    size = 0.1 if quick else 1.0
    for name in named(only, PARTS):
        part = PARTS[name]
        commands = part.commands(size, console.print)
        some = {label: c for label, c in commands.items() if is_meant(label, systems)}
        if not some:
            console.print(f"{name}: none of its systems is chosen")
            continue
        runs = _in_turns(name, part, some, repeat)
        _keep(out / "peers.json", name, {"size": size, "runs": runs, "made_by": made_by()})
        by_label = {label: medians(figures) for label, figures in runs.items()}
        console.print(_table(f"{part.title} (size {size:g})", part, by_label))
        if any(figure.startswith(SPLIT) for figure in by_label.get(OURS, ())):
            console.print(_split_table(part, by_label[OURS]))
    console.print(f"report: {out / 'peers.json'}")


def is_meant(label: str, systems: str) -> bool:
    """Whether a label contains one of the texts.

    >>> [is_meant("Spark, in memory", texts) for texts in ("", "Duck, memory", "Duck")]
    [True, True, False]
    """
    return any(text.strip() in label for text in systems.split(","))


def _in_turns(
    name: str, part: Part, commands: Mapping[str, Command], repeat: int
) -> dict[str, list[Figures]]:
    """Label -> the figures of each run."""
    runs: dict[str, list[Figures]] = {label: [] for label in commands}
    for turn in range(repeat):
        for label, command in commands.items():
            figures = part.figures(printed(label, *command))
            runs[label].append(figures)
            text = ", ".join(
                f"{column.header} {column.text(label, {label: figures})}"
                for column in part.columns
                if isinstance(column, Column)
            )
            console.print(f"{name}, run {turn + 1}: {label}: {text}")
    return runs


def _keep(path: Path, name: str, part: dict[str, Any]) -> None:
    """Put a part in the report, in place of an earlier run of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    report = json.loads(path.read_text()) if path.exists() else {}
    parts = report.get("parts", {}) | {name: part}
    path.write_text(json.dumps({"parts": parts}, indent=1))


def _table(title: str, part: Part, by_label: Mapping[str, Figures]) -> Table:
    columns = "system", *(column.header for column in part.columns)
    table = figures_table(columns, title, words=("system",))
    for label in by_label:
        table.add_row(label, *(column.text(label, by_label) for column in part.columns))
    return table


def _split_table(part: Part, figures: Figures) -> Table:
    title = f"where a batch's time goes under {OURS}: {part.title}"
    table = Table(title=title, box=None, title_justify="left", show_header=False)
    for name, portion in figures.items():
        if name.startswith(SPLIT):
            table.add_row(name.removeprefix(SPLIT), f"{portion:.1%}")
    return table


if __name__ == "__main__":
    main()
