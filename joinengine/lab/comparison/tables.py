"""Reports as tables for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from joinengine.balancing.statistics import skew
from joinengine.lab.comparison.batch_loads import received_by_batch
from joinengine.lab.comparison.verdicts import busiest_s

#: (title of a column, its field in a report, its format)
_Columns = tuple[tuple[str, str, str], ...]
_NAMES: _Columns = (("layout", "layout", "{}"), ("zipf", "zipf", "{:g}"))
#: The columns if work is emulated, and if it is not.
_WAITED: _Columns = (
    ("slowest s", "slowest_instance_s", "{:.1f}"),
    ("run s", "elapsed_s", "{:.1f}"),
)
_WORKED: _Columns = (("busiest s", "busiest", "{:.1f}"), ("busy", "busy", "{:.2f}"))
_FIGURES: _Columns = (
    ("rows/s", "rows_per_s", "{:,.0f}"),
    ("skew", "first", "{:.2f}"),
    ("later", "later", "{:.2f}"),
    ("re-plans", "replans", "{}"),
    ("moved", "moved_rows", "{:,}"),
    ("results", "output_rows", "{:,}"),
    ("late", "late_rows", "{:,}"),
    ("valid", "valid", "{}"),
)
_SKEW = (
    "skew: rows that the busiest instance received, divided by the mean, in the first batch. "
    "later: the same in the second half of the run"
)
_BUSY = (
    "busiest s: time that the busiest instance of each batch worked, summed over the batches. "
    "busy: the busiest instance's working time divided by the mean, in the second half of the run"
)


def figures_table(
    columns: Iterable[str],
    title: str | None = None,
    words: Collection[str] = ("", "layout"),
    **style: Any,
) -> Table:
    """A table without rows, whose columns of `words` stand to the left, and those of numbers right.

    `style`: arguments of `rich.table.Table`.
    """
    table = Table(title=title, box=None, title_justify="left", **style)
    for column in columns:
        table.add_column(column, justify="left" if column in words else "right", no_wrap=True)
    return table


def summary_table(reports: Sequence[dict[str, Any]]) -> Table:
    """One line per run; with the seconds that batches have waited for their busiest instance."""
    waited = _WAITED if any(report["work_per_tuple_us"] for report in reports) else _WORKED
    return _table(_NAMES + waited + _FIGURES, [_values(report) for report in reports])


def summary_legend(reports: Sequence[dict[str, Any]]) -> list[str]:
    """What the columns of `summary_table` mean."""
    works = {report["work_per_tuple_us"] for report in reports} - {0}
    if not works:
        return [_BUSY, _SKEW]
    emulated = ", ".join(f"{work:,} us" for work in sorted(works))
    return [
        f"work is emulated: an instance waits {emulated} for each row it receives; instances wait "
        "in parallel",
        "slowest s: time that batches waited for their slowest instance (rows times work). "
        "run s: time of the whole run, measured. moved: stored rows that moved to another instance",
        _SKEW,
    ]


def _values(report: dict[str, Any]) -> dict[str, Any]:
    loads = received_by_batch(report)
    return report | {
        "first": skew(loads[0]) if len(loads) else 1.0,
        "later": report["load_skew"]["received"]["last_half"],
        "busiest": busiest_s(report),
        "busy": report["load_skew"].get("busy", {}).get("last_half"),
        "valid": {True: "yes", False: "NO", None: "not checked"}[report["valid"]],
    }


def _table(columns: _Columns, lines: Sequence[Mapping[str, Any]]) -> Table:
    """A table, without the column of Zipf exponents if no run has one, as for your own folders."""
    if lines and all(line["zipf"] is None for line in lines):
        columns = tuple(column for column in columns if column[1] != "zipf")
    table = figures_table((title for title, _, _ in columns), pad_edge=False, padding=(0, 1, 0, 0))
    for line in lines:
        cells = ((line[field], form) for _, field, form in columns)
        table.add_row(*("-" if value is None else form.format(value) for value, form in cells))
    return table
