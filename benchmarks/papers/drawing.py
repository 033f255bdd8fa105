"""The picture of a figure: one subplot for each panel, with the paper's axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from benchmarks.papers.figure import Figure, Panel

mpl.use("Agg")
from matplotlib import pyplot as plt

#: Panels side by side; inches of a panel; dots an inch, so that a picture stays below 100 kB.
_ACROSS, _WIDTH, _HEIGHT, _DPI = 3, 4.6, 3.4, 80
_MARKERS = "osv^Dx*+P<>"


def draw(figure: Figure, panels: Sequence[Panel], path: Path) -> None:
    """Write the picture of a figure as PNG."""
    across = min(len(panels), _ACROSS)
    down = -(-len(panels) // across)
    drawn, grid = plt.subplots(
        down, across, figsize=(_WIDTH * across, _HEIGHT * down), squeeze=False
    )
    for axis in grid.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(grid.flat, panels, strict=False):
        _panel(axis, panel)
    drawn.suptitle(f"{figure.name}: {figure.title}", fontsize=9)
    drawn.tight_layout()
    drawn.savefig(path, dpi=_DPI)
    plt.close(drawn)


def _panel(axis: Any, panel: Panel) -> None:
    if all(isinstance(x, str) for xs, _ in panel.series.values() for x in xs):
        _bars(axis, panel)
    else:
        for number, (name, (xs, ys)) in enumerate(panel.series.items()):
            mark = _MARKERS[number % len(_MARKERS)] if len(xs) <= 40 else None
            (line,) = axis.plot(xs, ys, marker=mark, markersize=3.5, linewidth=1.1, label=name)
            if name in panel.spans:
                axis.fill_between(xs, *panel.spans[name], color=line.get_color(), alpha=0.15)
    if "x" in panel.log:
        axis.set_xscale("log")
    if "y" in panel.log:
        axis.set_yscale("log")
    elif all(y >= 0 for _, ys in panel.series.values() for y in ys):
        axis.set_ylim(bottom=0)
    axis.set_xlabel(panel.x, fontsize=8)
    axis.set_ylabel(panel.y, fontsize=8)
    axis.tick_params(labelsize=7)
    if panel.letter:
        axis.set_title(f"({panel.letter})", fontsize=8, loc="left")
    if len(panel.series) > 1 or "" not in panel.series:
        columns = 2 if len(panel.series) > 6 else 1
        axis.legend(frameon=False, fontsize=6.5, ncols=columns)
    axis.spines[["top", "right"]].set_visible(False)


def _bars(axis: Any, panel: Panel) -> None:
    """Series side by side at each word, in the order in which words first occur."""
    words = list(dict.fromkeys(x for xs, _ in panel.series.values() for x in xs))
    width = 0.8 / len(panel.series)
    for number, (name, (xs, ys)) in enumerate(panel.series.items()):
        at = np.array([words.index(x) for x in xs]) + (number + 0.5) * width - 0.4
        axis.bar(at, ys, width, label=name)
    axis.set_xticks(range(len(words)), words, rotation=30 if len(words) > 6 else 0)
