"""Reports as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from joinengine.balancing.statistics import skew
from joinengine.reporting.reports import received_by_batch

#: (title of a column, its field in a report, its format)
_COLUMNS = (
    ("layout", "layout", "{}"),
    ("zipf", "zipf", "{:g}"),
    ("rows/s", "rows_per_s", "{:,.0f}"),
    ("skew before", "before", "{:.2f}"),
    ("after", "after", "{:.2f}"),
    ("re-plans", "replans", "{}"),
    ("moved rows", "moved_rows", "{:,}"),
    ("results", "output_rows", "{:,}"),
    ("late", "late_rows", "{:,}"),
    ("valid", "valid", "{}"),
)


def summary_table(reports: Sequence[dict[str, Any]]) -> Table:
    """One line per run; `skew` is of received tuples: in the first batch, and in the last half."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for title, _, _ in _COLUMNS:
        table.add_column(title, justify="left" if title == "layout" else "right", no_wrap=True)
    for report in reports:
        loads = received_by_batch(report)
        after = report["load_skew"]["received"]["last_half"]
        values = report | {"before": skew(loads[0]) if len(loads) else 1.0, "after": after}
        values["valid"] = {True: "yes", False: "NO", None: "not asked"}[report["valid"]]
        table.add_row(*(form.format(values[key]) for _, key, form in _COLUMNS))
    return table
