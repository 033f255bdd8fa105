"""Figure 5 of Nasir et al., ICDE 2015: imbalance through time, with and without probing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding
from benchmarks.papers.pkg_streams import BALANCED, DATA_SETS, MESSAGES, STAND_INS, WORKERS, stream
from joinengine.lab.simulation.candidate_layouts import Estimate, Setting, play
from joinengine.lab.simulation.workload import sources_of

SETS, SOURCES = ("TW", "WP", "CT"), 5
METHODS = {"G": Estimate.GLOBAL, "L5": Estimate.LOCAL, "L5P1": Estimate.PROBED}
#: A part of I(t) / t that still counts as the same over the second half of an unbalanced stream.
STEADY = 0.2


def make(say: Callable[[str], None]) -> Made:
    """I(t) / t by data set, method and workers."""
    panels, findings = list[Panel](), list[Finding]()
    worst, unsteady = 0.0, list[float]()
    for letter, name in zip("abc", SETS, strict=True):
        series = dict[str, tuple[list[float], list[float]]]()
        for w in WORKERS:
            say(f"{name}, {w} workers")
            mean = dict[str, float]()
            for method, estimate in METHODS.items():
                setting = Setting(w, SOURCES, estimate, probe_every=DATA_SETS[name].minute)
                keys = stream(name)
                played = play("pkg", keys, sources_of(len(keys), SOURCES, by_key=False), setting)
                time, value = np.array(played["time"], float), np.array(played["imbalance"])
                mean[method] = float(value.mean())
                series[f"{method}, W = {w}"] = (time / len(keys)).tolist(), (value / time).tolist()
                half = (value / time)[len(time) // 2 :]
                if name != "CT" and half[-1] > 10 * BALANCED:
                    unsteady.append(float(half.max() / half.min() - 1))
            worst = max(worst, mean["L5"] / mean["L5P1"])
        panels.append(Panel(letter, f"part of the stream, {name}", "I(t) / t", series, "y"))
    findings.append(
        Finding(
            "figure 5",
            "I(t) / t hardly changes over a stream; it follows from the number of workers",
            f"where TW and WP are not balanced, I(t) / t changes by at most "
            f"{100 * max(unsteady):.0f} % in the second half",
            max(unsteady) < STEADY,
        )
    )
    findings.append(
        Finding(
            "figure 5",
            "probing the loads each minute does not improve local estimation",
            f"without probing, the mean of I(t) is at most {worst:.1f} times as great",
            worst <= 10,
            "rule: within one order of magnitude, in each cell. Probing helps a little, by "
            "messages, as long as the system is balanced",
        )
    )
    return Made(panels, findings)


FIGURE = Figure(
    "001-5",
    "Imbalance through time",
    f"{STAND_INS}, CT with drift; {MESSAGES:,} messages, S = 5, W = 5, 10, 50, 100; a minute of "
    f"probing is as many messages as in the paper's data set",
    0.5,
    make,
)
