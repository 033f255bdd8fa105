"""Figure 7: how uneven loads are if keys are hashed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, pairwise

import numpy as np

from benchmarks.papers.figure import Figure, Made, Panel, Points, Span
from benchmarks.papers.finding import Finding, spread_of
from benchmarks.papers.intervals import SEEDS, Curve, Setup, panel
from joinengine.balancing.statistics import Floats

INTERVALS = 50
INSTANCES, KEYS = (5, 10, 15, 20, 40), (5_000, 10_000, 100_000, 1_000_000)


def make(show: Callable[[str], None]) -> Made:
    by_tasks = {n: _by_rank(Setup(instances=n), show) for n in INSTANCES}
    by_keys = {k: _by_rank(Setup(keys=k), show) for k in KEYS}
    tops = [by_tasks[n].mean[-1] for n in INSTANCES]
    tops_by_keys = [by_keys[k].mean[-1] for k in KEYS]
    widest = by_tasks[40].mean[-1] / by_tasks[40].mean[0]
    return Made(
        [
            _panel("a", {f"N = {n}": curve for n, curve in by_tasks.items()}),
            _panel("b", {f"K = {k:,}": curve for k, curve in by_keys.items()}),
        ],
        [
            Finding(
                "figure 7a",
                "the more tasks, the more uneven hashed loads are; rule: the most loaded task has "
                "more over the mean with each step of N",
                f"N = {', '.join(map(str, INSTANCES))}: {spread_of(tops)} times the mean",
                all(a < b for a, b in pairwise(tops)),
            ),
            Finding(
                "figure 7a",
                "with 40 tasks the greatest load is almost 2.5 times the least; rule: 2 to 3 times",
                f"{widest:.1f} times",
                2 <= widest <= 3,
                f"at z = 0.85 the heaviest of 10,000 keys alone has 1.96 times a task's share, so "
                f"the greatest load is {tops[-1]:.1f} times the mean, and the least is below it. "
                f"2.5 is nearer to the greatest load over the mean",
            ),
            Finding(
                "figure 7b",
                "the fewer keys, the more uneven the loads; 5,000 keys are far worse than "
                "1,000,000; rule: the most loaded task has more over the mean with each step down",
                f"K = {', '.join(f'{k:,}' for k in KEYS)}: {spread_of(tops_by_keys)} times the "
                f"mean; greatest over least load "
                f"{spread_of([by_keys[k].mean[-1] / by_keys[k].mean[0] for k in KEYS])}",
                all(a > b for a, b in pairwise(tops_by_keys)),
            ),
        ],
    )


def _by_rank(setup: Setup, show: Callable[[str], None]) -> Curve:
    """Load over the mean by the rank of a task, mean over the intervals: (N, seeds)."""
    found = list[Floats]()
    for seed in SEEDS if setup.keys < 1_000_000 else SEEDS[:2]:
        sums = np.zeros(setup.instances)
        for cost, homes in islice(setup.stream(seed), INTERVALS):
            loads = np.bincount(homes, cost, setup.instances)
            sums += np.sort(loads) / loads.mean()
        found.append(sums / INTERVALS)
    show(f"N = {setup.instances}, K = {setup.keys:,}")
    return Curve(np.array(found).T)


def _panel(letter: str, curves: dict[str, Curve]) -> Panel:
    axes = "percentile of the tasks, by load, %", "load over the mean"
    series, spans = dict[str, Points](), dict[str, Span]()
    for name, curve in curves.items():
        tasks = len(curve.runs)
        one = panel(letter, axes, [100 * n / tasks for n in range(1, tasks + 1)], {name: curve})
        series |= one.series
        spans |= one.spans
    return Panel(letter, *axes, series, spans=spans)


FIGURE = Figure(
    "000-7",
    "Load of tasks if keys are hashed",
    f"Zipf 0.85, consistent hashing, loads sorted in each of {INTERVALS} intervals and averaged by "
    f"rank. Panel a: 10,000 keys. Panel b: 15 tasks. Means of 5 runs, of 2 with 1,000,000 keys",
    0.6,
    make,
)
