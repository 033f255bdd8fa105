"""The picture of a part: seconds of the busiest instance under each layout, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from benchmarks.layouts.summary import RANK, Row
from joinengine.lab.comparison.pictures import colours_of


def draw_part(rows: Sequence[Row], path: Path) -> None:
    """A panel per case, a bar per layout, the shortest at the top; beside it the rows per second.

    The black line is the spread. The colour of a layout is the same in all panels.
    """
    told = [row for row in rows if RANK in row.medians]
    cases = list(dict.fromkeys(row.case for row in told))
    colours = colours_of(dict.fromkeys(row.layout for row in told))
    size = (4.8 * len(cases), 1.2 + 0.26 * len(colours))
    figure, axes = plt.subplots(1, len(cases), figsize=size, squeeze=False, layout="constrained")
    for axis, case in zip(axes[0], cases, strict=True):
        ours = [row for row in told if row.case == case]
        seconds = [row.medians[RANK] for row in ours]
        names = [row.layout for row in ours]
        spreads = [row.spreads[RANK] / 2 for row in ours]
        bars = axis.barh(names, seconds, xerr=spreads, color=[colours[name] for name in names])
        rates = [f"{row.medians[RANK]:.2f} s, {row.medians['rows/s']:,.0f}/s" for row in ours]
        axis.bar_label(bars, rates, padding=3, fontsize=7)
        axis.invert_yaxis()
        axis.set_xlim(0, max(seconds) * 1.6 or 1.0)
        axis.set_title(case)
        axis.set_xlabel("seconds of the busiest instance")
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{told[0].part}; rows/s of the whole run")
    figure.savefig(path, dpi=130)
    plt.close(figure)
