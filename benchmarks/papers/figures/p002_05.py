"""Fang et al., JOS 2017, figure 5: the time of a scale-out over the skew."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding, spread_of, spreads_of
from benchmarks.papers.scale_outs import CAPACITY, MOVED_S, SCALE, STARTS, grown

SKEWS = (0.0, 0.5, 1.0, 1.5)


def make(say: Callable[[str], None]) -> Made:
    """Scale out under each skew and method."""
    seconds, moved = dict[str, list[float]](), dict[str, list[float]]()
    for z in SKEWS:
        say(f"z = {z:g}")
        for method in STARTS:
            run = grown(method, z)
            seconds.setdefault(method, []).append(fmean(run.seconds or [0.0]))
            moved.setdefault(method, []).append(fmean(run.moved or [0.0]))
    panel = Panel.over("", "Zipf z", "seconds of a scale-out", SKEWS, seconds, "y")
    return Made([panel], _findings(seconds, moved))


def _findings(seconds: dict[str, list[float]], moved: dict[str, list[float]]) -> list[Finding]:
    at = range(len(SKEWS))
    where = f"for z = {spread_of(SKEWS, 'g')}"
    told = f"{spreads_of(seconds, '.0f', 1e3)} ms {where}"
    return [
        Finding(
            "figure 5",
            "Dynamic moves the most tuples; rule: at each z",
            f"{spreads_of(moved, ',.0f')} tuples in a scale-out {where}",
            all(
                moved["Dynamic"][i] > max(moved[x][i] for x in moved if x != "Dynamic") for i in at
            ),
            "under a base of hash modulo nodes, one node more gives most keys another home, so a "
            "scale-out of MNRT or QMMP moves most of the state too",
        ),
        Finding(
            "figure 5",
            "Dynamic takes longest; rule: at each z",
            told,
            all(
                seconds["Dynamic"][i] > max(seconds[x][i] for x in seconds if x != "Dynamic")
                for i in at
            ),
            timed=True,
        ),
        Finding(
            "figure 5",
            "QMMP scales out a little faster than MNRT; rule: at each z",
            told,
            all(seconds["QMMP"][i] < seconds["MNRT"][i] for i in at),
            timed=True,
        ),
        Finding(
            "figure 5",
            "Bi scales out most easily; rule: least time at each z",
            told,
            all(seconds["Bi"][i] <= min(values[i] for values in seconds.values()) for i in at),
            "growing a biclique moves nothing",
            timed=True,
        ),
    ]


FIGURE = Figure(
    "002-5",
    "Time of a scale-out",
    f"EQ5, {SCALE:g} GB, full history, {CAPACITY:,} tuples a node, base home: hash modulo nodes. "
    "Mean over the scale-outs of a run: processor time of the plan, and emulated "
    f"{1e6 * MOVED_S:g} us for each tuple that moves",
    2.0,
    make,
)
