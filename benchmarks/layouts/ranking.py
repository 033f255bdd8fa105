"""The ranking of layouts as a picture, and what the columns of its table mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joinengine.lab.comparison.pictures import colours_of, plt, save
from joinengine.lab.comparison.tables import LOAD

#: Columns of text that the table takes.
TABLE_WIDTH = 110


def ranking_legend(work_us: int) -> list[str]:
    """What the columns of `ranking_table` mean; `work_us`: emulated work for a tuple, or 0."""
    waited = (
        f"rows that it received, times {work_us:,} us of emulated work"
        if work_us
        else "time that it worked, measured; no work is emulated"
    )
    return [
        f"slowest s: time that batches waited for their slowest instance ({waited}). "
        "rows/s: measured, Spark's jobs included",
        "stored: rows held at the end, copies included. sent: rows delivered to instances, to be "
        "stored or compared. moved: stored rows that moved to another instance",
        f"skew: {LOAD}, in the second half of the run",
    ]


def draw_ranking(reports: Sequence[dict[str, Any]], path: Path) -> None:
    """Seconds for which batches wait for their slowest instance; a panel per Zipf exponent.

    A bar per layout, the shortest at the top; beside it the rows per second of the whole run. The
    colour of a layout is the same in all panels.
    """
    exponents = list(dict.fromkeys(report["zipf"] for report in reports))
    layouts = list(dict.fromkeys(report["layout"] for report in reports))
    colours = colours_of(layouts)
    size = (4.4 * len(exponents), 1.2 + 0.26 * len(layouts))
    figure, axes = plt.subplots(1, len(exponents), figsize=size, squeeze=False)
    for axis, z in zip(axes[0], exponents, strict=True):
        ours = [report for report in reports if report["zipf"] == z]
        ours.sort(key=lambda report: report["slowest_instance_s"])
        seconds = [report["slowest_instance_s"] for report in ours]
        names = [report["layout"] for report in ours]
        bars = axis.barh(names, seconds, color=[colours[name] for name in names])
        rates = [f"{s:.1f} s, {r['rows_per_s']:,.0f}/s" for s, r in zip(seconds, ours, strict=True)]
        axis.bar_label(bars, rates, padding=3, fontsize=7)
        axis.invert_yaxis()
        axis.set_xlim(0, max(seconds) * 1.45 or 1.0)
        axis.set_title(f"Zipf {z:g}")
        axis.set_xlabel("seconds of the slowest instance")
        axis.spines[["top", "right"]].set_visible(False)
    first = reports[0]
    figure.suptitle(
        f"{first['query']}, {first['instances']} instances, {first['work_per_tuple_us']:,} us of "
        "emulated work a tuple; rows/s of the whole run"
    )
    save(figure, path)
