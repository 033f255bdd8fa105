"""Figure 4 of Nasir et al., ICDE 2015: local estimates beside a global oracle and hashing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding
from benchmarks.papers.pkg_streams import MESSAGES, SEEDS, STAND_INS, WORKERS, imbalances, stream
from joinengine.lab.simulation.candidate_layouts import Estimate, Setting

SETS = ("TW", "WP", "CT", "LN1", "LN2")
SOURCES = (5, 10, 15, 20)
H, G = "H", "G"


def make(say: Callable[[str], None]) -> Made:
    """Means of I(t) over time and hash functions, by data set, method and workers."""
    panels, ratios, above = list[Panel](), dict[int, list[float]](), True
    for letter, name in zip("abcde", SETS, strict=True):
        keys, series = stream(name), dict[str, list[float]]()
        for w in WORKERS:
            say(f"{name}, {w} workers")
            mean = {
                H: imbalances("hash", keys, Setting(w)).mean(),
                G: imbalances("pkg", keys, Setting(w)).mean(),
            }
            for s in SOURCES:
                local = imbalances("pkg", keys, Setting(w, s, Estimate.LOCAL)).mean()
                mean[f"L{s}"] = local
                ratios.setdefault(s, []).append(float(local / mean[G]))
                above &= bool(local < mean[H])
            for method, value in mean.items():
                series.setdefault(method, []).append(float(value))
        axes = f"workers, {name}", "mean I(t) / m"
        panels.append(Panel.over(letter, *axes, WORKERS, series, "xy"))
    worst = {s: max(found) for s, found in ratios.items()}
    shown = "; ".join(
        f"{s} sources: {np.median(found):.1f}, at most {worst[s]:.1f}"
        for s, found in ratios.items()
    )
    return Made(
        panels,
        [
            Finding(
                "figure 4",
                "local estimation is always below hashing",
                f"in {'all' if above else 'not all'} of {len(ratios) * len(ratios[5])} cells",
                above,
            ),
            Finding(
                "figure 4",
                "local estimation stays within one order of magnitude of global knowledge, however "
                "many sources there are",
                f"I of L over that of G, median of the cells and worst cell: {shown}",
                max(worst.values()) <= 10,
                "the bound is the sum of the sources' own imbalances, some message each, and G's "
                "imbalance is about one message: so the ratio grows with the number of sources",
            ),
        ],
    )


FIGURE = Figure(
    "001-4",
    "Imbalance of local estimation, by workers and sources",
    f"{STAND_INS}; {MESSAGES:,} messages, W = 5, 10, 50, 100, S = 5, 10, 15, 20 (of the paper's "
    f"only 5 is legible), mean of {len(SEEDS)} draws of the hash functions",
    2.0,
    make,
)
