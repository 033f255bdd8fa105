"""Work done against executors, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joinengine.lab.comparison.pictures import GREY, colours_of, plain, plt, save


def draw_workers(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Work done in a second against executors; a panel per kind of work, a line per system.

    `rows`: `work` (what it is for), `system`, whether that is a `layout`, `executors`, and
    `of_linear`, the part of the summed work over the executors. The dashed line is linear.
    """
    kinds = list(dict.fromkeys(row["work"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    layouts = colours_of(row["system"] for row in rows if row["layout"])
    colours = {system: layouts.get(system, GREY) for system in systems}
    size = (5.2 * len(kinds), 3.8)
    figure, axes = plt.subplots(1, len(kinds), figsize=size, sharey=True, squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        numbers = sorted({row["executors"] for row in rows})
        axis.plot(numbers, numbers, color=GREY, linestyle="--", label="linear")
        for system in systems:
            ours = [row for row in rows if row["work"] == kind and row["system"] == system]
            if not ours:
                continue
            # Layouts are all the same on one executor, so only one of them need have run there.
            if min(row["executors"] for row in ours) > 1:
                alone = (row for row in rows if row["executors"] == 1 and row["layout"])
                ours = [*list(alone)[:1], *ours]
            points = [(row["executors"], row["executors"] * row["of_linear"]) for row in ours]
            axis.plot(*zip(*points, strict=True), color=colours[system], marker="o", label=system)
        axis.set_title(f"work per {kind}")
        axis.set_xlabel("executors of one core")
        axis.set_xticks(numbers)
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False)
        plain(axis)
    axes[0][0].set_ylabel("seconds of work done in a second")
    save(figure, path)
