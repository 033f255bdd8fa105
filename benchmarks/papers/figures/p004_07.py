"""Fang et al., World Wide Web 2019, figure 7: how hashed keys with replicas load the tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

import numpy as np

from benchmarks.papers.figure import Figure, Made, Panel, Points
from benchmarks.papers.finding import Finding, spread_of
from joinengine.balancing.loads import gather_loads
from joinengine.balancing.statistics import Floats
from joinengine.lab.simulation.planning import Other, Sizes, counts_of
from joinengine.lab.simulation.workload import Workload
from joinengine.layouts import Ftlb, Hash
from joinengine.layouts.key_based import KeyBased
from joinengine.routing.table import RoutingTable

TASKS, KEYS, ZIPF, INTERVALS = (
    (5, 10, 15, 20, 30, 40),
    (5_000, 10_000, 100_000, 1_000_000),
    0.85,
    50,
)
AXES = "percentile of tasks, least loaded first", "load / mean load"


def make(say: Callable[[str], None]) -> Made:
    """Sort the tasks of each interval by load, with replicas and without."""
    by_tasks, by_keys = dict[int, tuple[Floats, Floats]](), dict[int, tuple[Floats, Floats]]()
    for n in TASKS:
        say(f"{n} tasks")
        by_tasks[n] = _sorted_loads(n, 10_000)
    for keys in KEYS:
        say(f"{keys:,} keys")
        by_keys[keys] = _sorted_loads(15, keys)
    panels = [
        Panel("a", *AXES, {f"N = {n}": _points(levels[1]) for n, levels in by_tasks.items()}),
        Panel("b", *AXES, {f"K = {k:,}": _points(levels[1]) for k, levels in by_keys.items()}),
    ]
    return Made(panels, _findings(by_tasks, by_keys))


def _findings(
    by_tasks: Mapping[int, tuple[Floats, Floats]], by_keys: Mapping[int, tuple[Floats, Floats]]
) -> list[Finding]:
    tops = {n: [float(one[-1]) for one in levels] for n, levels in by_tasks.items()}
    keyed = {k: [float(one[-1]) for one in levels] for k, levels in by_keys.items()}
    grown = [backed for _, backed in tops.values()]
    fewer = [backed for _, backed in keyed.values()]
    shown = "; ".join(
        f"{name}: {alone:.2f} -> {backed:.2f}"
        for name, (alone, backed) in (
            *((f"N = {n}", top) for n, top in tops.items()),
            *((f"K = {k:,}", top) for k, top in keyed.items()),
        )
    )
    return [
        Finding(
            "figure 7a",
            "with replicas, too, skew grows with the number of tasks; rule: the greatest load over "
            "the mean grows from each number to the next",
            f"{spread_of(grown)} for N = {', '.join(map(str, TASKS))}",
            grown == sorted(grown),
        ),
        Finding(
            "figure 7b",
            "with replicas, too, fewer keys are more skewed; rule: the greatest load over the mean "
            "falls from each number to the next",
            f"{spread_of(fewer)} for K = {', '.join(f'{k:,}' for k in KEYS)}",
            fewer == sorted(fewer, reverse=True),
        ),
        Finding(
            "figure 7",
            "the most loaded task is less skewed with replicas than without, for any number of "
            "tasks or keys; rule: for each",
            shown,
            all(backed < alone for alone, backed in (*tops.values(), *keyed.values())),
            "a replica counts as a home, as in the paper: it is a task more that the key's load is "
            "spread to",
        ),
    ]


def _sorted_loads(instances: int, keys: int) -> tuple[Floats, Floats]:
    """(N,) the least to the greatest load over the mean, without and with replicas.

    A mean over INTERVALS, each with other hashes.
    """
    found = list[list[Floats]]()
    for seed in range(INTERVALS if keys < 1_000_000 else INTERVALS // 5):
        alone = Hash().start(instances)
        backed = Ftlb(spread=1).start(instances)
        assert isinstance(alone, KeyBased)
        stream = Workload(keys=keys, zipf=ZIPF, seed=seed)
        (counted,) = islice(stream.intervals(alone.base), 1)
        interval = counts_of([counted], Sizes(instances, 1, 1, other=Other.SAME))
        levels = (
            gather_loads([interval], RoutingTable(), one.base, backup_work=1.0).per_instance()
            for one in (alone, backed)
        )
        found.append([np.sort(level / level.mean()) for level in levels])
    means = np.array(found).mean(axis=0)
    return means[0], means[1]


def _points(levels: Floats) -> Points:
    return (100 * (np.arange(len(levels)) + 1) / len(levels)).tolist(), levels.tolist()


FIGURE = Figure(
    "004-7",
    "Loads of tasks under hashing, with one replica of each key",
    f"z = {ZIPF}, {INTERVALS} intervals with other hashes each (10^6 keys: 10); a: K = 10,000, "
    "b: N = 15. Active copy at hash mod N, replica at the task after it; both count as load. Loads "
    "are expected ones",
    1.0,
    make,
)
