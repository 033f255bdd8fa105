"""Summarises the runs of cells: medians and spreads, as table, CSV, and one HTML page."""

from __future__ import annotations

import base64
import csv
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.layouts.running import Line, is_bad, words
from joinengine.lab.comparison.tables import figures_table
from joinengine.lab.comparison.verdicts import waited_s

Report = Mapping[str, Any]


class Column(NamedTuple):
    """A figure of a report, and how it is shown."""

    of: Callable[[Report], float | None]
    form: str


#: Seconds are those of the whole run, of the busiest instance of each batch, of latency, and of
#: what losses cost. Rows: copies in the state at the end, deliveries, and moved copies.
COLUMNS: Mapping[str, Column] = {
    "rows/s": Column(lambda report: report["rows_per_s"], "{:,.0f}"),
    "run s": Column(lambda report: report["elapsed_s"], "{:.2f}"),
    "busiest s": Column(waited_s, "{:.2f}"),
    "p50 s": Column(lambda report: report["latency_s"]["p50"], "{:.3f}"),
    "p99 s": Column(lambda report: report["latency_s"]["p99"], "{:.3f}"),
    "skew": Column(lambda report: report["load_skew"]["received"]["last_half"], "{:.2f}"),
    "stored": Column(lambda report: sum(report["stored_per_instance"]), "{:,.0f}"),
    "sent": Column(lambda report: sum(report["received_per_instance"]), "{:,.0f}"),
    "moved": Column(lambda report: report["moved_rows"], "{:,.0f}"),
    "recovery s": Column(
        lambda report: sum(batch["recovery_s"] for batch in report["batches"]), "{:.2f}"
    ),
}
#: The column that ranks the layouts of a case: the clock cannot show balance on few cores.
RANK = "busiest s"


class Row(NamedTuple):
    """A cell. `medians`, `spreads` (greatest less least): of COLUMNS, as far as runs tell them."""

    part: str
    case: str
    layout: str
    runs: int
    valid: str
    is_bad: bool
    medians: Mapping[str, float]
    spreads: Mapping[str, float]

    def text(self, name: str) -> str:
        """A median, with its spread if there are several runs."""
        if name not in self.medians:
            return ""
        form = COLUMNS[name].form
        told = form.format(self.medians[name])
        return told if self.runs < 2 else f"{told} ±{form.format(self.spreads[name] / 2)}"


def rows_of(lines: Sequence[Line]) -> list[Row]:
    """A row for each cell, by part and case; in these the layout with the least RANK is first."""
    cells = dict[tuple[str, str, str], list[Line]]()
    for line in lines:
        cells.setdefault((line["part"], line["case"], line["layout"]), []).append(line)
    rows = [_row(cell, some) for cell, some in cells.items()]
    cases = list(dict.fromkeys((row.part, row.case) for row in rows))
    order = {case: number for number, case in enumerate(cases)}
    return sorted(
        rows, key=lambda row: (order[row.part, row.case], row.medians.get(RANK, float("inf")))
    )


def _row(cell: tuple[str, str, str], some: Sequence[Line]) -> Row:
    reports = [line["report"] for line in some if "report" in line]
    medians, spreads = dict[str, float](), dict[str, float]()
    for name, column in COLUMNS.items():
        found = [told for report in reports if (told := column.of(report)) is not None]
        if found:
            medians[name], spreads[name] = median(found), max(found) - min(found)
    bad = [line for line in some if is_bad(line)]
    told = (bad or [line for line in some if "report" not in line] or [None])[0]
    return Row(*cell, len(reports), words(told) if told else "yes", bool(bad), medians, spreads)


def table_of(title: str, rows: Sequence[Row]) -> Table:
    """The rows of a case for the terminal; what is not valid is red."""
    table = figures_table(("layout", *COLUMNS, "valid"), title)
    for row in rows:
        figures = (row.text(name) for name in COLUMNS)
        table.add_row(row.layout, *figures, row.valid, style="red" if row.is_bad else "")
    return table


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """A line for each cell: median and spread of each figure."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        figures = [f"{name}{kind}" for name in COLUMNS for kind in ("", " spread")]
        writer.writerow(["part", "case", "layout", "runs", "valid", *figures])
        for row in rows:
            found = [some.get(name, "") for name in COLUMNS for some in (row.medians, row.spreads)]
            writer.writerow([row.part, row.case, row.layout, row.runs, row.valid, *found])


def write_summary(
    rows: Sequence[Row], pictures: Sequence[Path], made_by: Mapping[str, Any], path: Path
) -> None:
    """One HTML page without network: the pictures, and a table for each case."""
    parts = [_HEAD.format(title=escape(f"{path.parent.name}: {path.stem}"))]
    bad = [f"{row.part}, {row.case}, {row.layout}" for row in rows if row.is_bad]
    if bad:
        parts.append(f"<p class=bad>Not valid: {escape('; '.join(bad))}</p>")
    for picture in pictures:
        coded = base64.b64encode(picture.read_bytes()).decode()
        parts.append(f'<p><img alt="{escape(picture.stem)}" src="data:image/png;base64,{coded}">')
    for part, case in dict.fromkeys((row.part, row.case) for row in rows):
        parts.append(f"<h2>{escape(f'{part}, {case}')}</h2><table><tr>")
        parts += [f"<th>{name}" for name in ("layout", *COLUMNS, "runs", "valid")]
        for row in rows:
            if (row.part, row.case) == (part, case):
                told = [row.layout, *(row.text(name) for name in COLUMNS), str(row.runs), row.valid]
                parts.append("<tr class=bad>" if row.is_bad else "<tr>")
                parts += [f"<td>{escape(one)}" for one in told]
        parts.append("</table>")
    made = "".join(f"<li>{escape(f'{name}: {value}')}" for name, value in made_by.items())
    path.write_text("\n".join([*parts, f"<h2>Made by</h2><ul>{made}</ul>"]))


_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px/1.4 sans-serif; margin: 2em; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: 2px 10px; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child {{ text-align: left; }}
.bad, .bad td {{ color: #b00020; font-weight: bold; }}
img {{ max-width: 100%; }}
</style>
<h1>{title}</h1>
<p>Medians of the runs of a cell; behind ± stands half of the distance from the least to the
greatest. busiest s: seconds for which batches waited for their busiest instance; it ranks the
layouts. p50 s, p99 s: time until half, or 99 %, of all results had left the tasks.</p>"""
