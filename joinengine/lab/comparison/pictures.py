"""Pictures of runs. Colours: one hue per layout, by `hues_of`; the mean is dashed grey."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from joinengine.balancing.statistics import skew
from joinengine.lab.comparison.batch_loads import received_by_batch
from joinengine.lab.comparison.hues import hues_of
from joinengine.model.errors import InvalidRequest

try:
    import matplotlib as mpl
except ImportError:
    raise InvalidRequest(
        "pictures need the package matplotlib; run pip install 'joinengine[lab]'"
    ) from None

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

_COLOURS = ("#1f6fb4", "#d1632c", "#3a9455", "#8757a6", "#b03a54", "#7a6a2f")
GREY = "#555555"
_STYLES = ("-", "--", ":", "-.")


def draw_loads(reports: Sequence[dict[str, Any]], path: Path) -> None:
    """Tuples that each instance received, interval by interval; a panel per layout."""
    n = len(reports)
    figure, axes = plt.subplots(1, n, figsize=(5.2 * n, 3.8), sharey=True, squeeze=False)
    colours = colours_of([report["layout"] for report in reports])
    for axis, report in zip(axes[0], reports, strict=True):
        colour = colours[report["layout"]]
        loads = received_by_batch(report)
        if not len(loads):
            axis.set_title(f"{report['layout']}: no batch brought rows")
            plain(axis)
            continue
        intervals = np.arange(len(loads))
        for instance in range(loads.shape[1]):
            axis.plot(intervals, loads[:, instance], color=colour, alpha=0.45, linewidth=1.1)
        mean = loads.mean(axis=1)
        axis.plot(intervals, mean, color=GREY, linestyle="--")
        axis.annotate("mean", (intervals[-1], mean[-1]), (4, 0), textcoords="offset points")
        last = report["load_skew"]["received"]["last_half"]
        title = f"{report['layout']}: load skew {skew(loads[0]):.2f} at first, {last:.2f} later"
        if report["work_per_tuple_us"]:
            title += f"\nslowest instance {report['slowest_instance_s']:.1f} s"
            title += f", whole run {report['elapsed_s']:.1f} s"
        axis.set_title(title)
        axis.set_xlabel("interval")
        plain(axis)
    axes[0][0].set_ylabel("tuples received per instance")
    axes[0][0].set_ylim(bottom=0)
    first = reports[0]
    skewed = "" if first["zipf"] is None else f", Zipf {first['zipf']:g}"
    title = f"{first['query']}{skewed}, {first['instances']} instances: one line each"
    if first["work_per_tuple_us"]:
        title += f" (emulated work: {first['work_per_tuple_us']:,} us a tuple)"
    figure.suptitle(title)
    save(figure, path)


def draw_comparison(reports: Sequence[dict[str, Any]], path: Path) -> None:
    """Speed and received load skew against the Zipf exponent; a line per layout.

    Speed is rows per second, or, if work is emulated, the seconds of the slowest instance.
    """
    emulated = all(report["work_per_tuple_us"] for report in reports)
    figure, (speed, balance) = plt.subplots(1, 2, figsize=(12.4, 3.8), layout="constrained")
    layouts = list(dict.fromkeys(report["layout"] for report in reports))
    styles = _styles_of(layouts)
    for layout in layouts:
        style = styles[layout] | {"marker": "o"}
        ours = sorted((r for r in reports if r["layout"] == layout), key=lambda r: r["zipf"])
        z = [report["zipf"] for report in ours]
        rates = [r["slowest_instance_s"] if emulated else r["rows_per_s"] / 1e3 for r in ours]
        speed.plot(z, rates, label=layout, **style)
        last = [r["load_skew"]["received"]["last_half"] for r in ours]
        balance.plot(z, last, label=layout, **style)
    speed.set_ylabel("seconds of the slowest instance" if emulated else "thousand rows/s")
    balance.set_ylabel("received load skew, last half")
    balance.axhline(1.0, color=GREY, linestyle="--", linewidth=1)
    for axis in (speed, balance):
        axis.set_xlabel("Zipf exponent")
        axis.set_ylim(bottom=0)
        plain(axis)
    names, columns = speed.get_legend_handles_labels(), 1 + len(layouts) // 7
    figure.legend(*names, loc="outside right upper", frameon=False, fontsize=8, ncols=columns)
    figure.suptitle(f"{reports[0]['query']}, {reports[0]['instances']} instances")
    save(figure, path)


def draw_simulation(reports: Sequence[dict[str, Any]], path: Path) -> None:
    """Imbalance over time: planners by interval (left), candidate layouts by message (right)."""
    figure, (planned, chosen) = plt.subplots(1, 2, figsize=(11.4, 4.2))
    styles = _styles_of(report["planner"] for report in reports)
    for report in reports:
        style = styles[report["planner"]] | {"label": report["planner"]}
        if "messages" not in report:
            planned.plot([row["imbalance_after"] for row in report["intervals"]], **style)
        else:
            times = np.array(report["time"])
            chosen.plot(times, np.maximum(np.array(report["imbalance"]), 0.1) / times, **style)
    planned.set_xlabel("interval")
    planned.set_ylabel("imbalance after the plan (greatest / mean - 1)")
    planned.set_ylim(bottom=0)
    chosen.set_xlabel("messages t")
    chosen.set_ylabel("I(t) / t")
    chosen.set_yscale("log")
    for axis in (planned, chosen):
        plain(axis)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=8)
        else:
            axis.set_visible(False)
    save(figure, path)


def check_picture(path: Path) -> None:
    """Raise InvalidRequest for a picture of a kind that matplotlib does not draw."""
    kinds = FigureCanvasBase.filetypes
    if path.suffix.removeprefix(".").lower() not in kinds:
        raise InvalidRequest(
            f"--figure: expected a file with one of the suffixes {', '.join(sorted(kinds))}, found "
            f"{path}"
        )


def colours_of(layouts: Iterable[str]) -> dict[str, str]:
    """The layouts of a picture -> their colours; beyond six, colours come again."""
    return {label: _COLOURS[hue % len(_COLOURS)] for label, hue in hues_of(layouts).items()}


def _styles_of(layouts: Iterable[str]) -> dict[str, dict[str, str]]:
    """The layouts of a picture -> how their lines look: layouts of one colour have other dashes."""
    return {
        label: {
            "color": _COLOURS[hue % len(_COLOURS)],
            "linestyle": _STYLES[hue // len(_COLOURS) % len(_STYLES)],
        }
        for label, hue in hues_of(layouts).items()
    }


def plain(axis: Any) -> None:
    """Draw no frame, and faint lines across."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#dddddd", linewidth=0.7)
    axis.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    """Write a picture to a file, and forget it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
