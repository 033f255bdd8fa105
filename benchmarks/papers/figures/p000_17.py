"""Figure 17: Mixed's migration over the size that its table may have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.papers.figure import Figure, Made
from benchmarks.papers.finding import Finding
from benchmarks.papers.intervals import (
    Setup,
    curves,
    each_listed,
    field,
    panel,
    plan_mintable,
    plan_mixed,
)

LIMITS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
THETAS = (0.02, 0.08, 0.15)


def make(show: Callable[[str], None]) -> Made:
    along = {
        f"theta = {theta}": [Setup(theta=theta, table_limit=limit) for limit in LIMITS]
        for theta in THETAS
    }
    one = {name: [setups[0]] for name, setups in along.items()}
    moved = field(curves({"": plan_mixed}, along, show), "moved", 100)
    least = curves({"": plan_mintable}, one, show)
    sizes = {name: float(least[name]["entries"].mean[0]) for name in along}
    costs = {name: 100 * float(least[name]["moved"].mean[0]) for name in along}
    limits = np.array(LIMITS)
    below = {name: moved[name].mean[limits <= 0.8 * sizes[name]] / costs[name] for name in along}
    above = {name: moved[name].mean[limits >= 4 * sizes[name]] / costs[name] for name in along}
    told = each_listed(LIMITS, moved, ".2f", " %")
    table = ", ".join(f"{size:.0f} ({name})" for name, size in sizes.items())
    return Made(
        [panel("", ("A_max, entries", "migrated state, %"), LIMITS, moved, "x")],
        [
            Finding(
                "figure 17",
                "if A_max is less than the smallest table that balances, Mixed migrates as much as "
                "MinTable; rule: at least 0.8 of it wherever A_max is at most 0.8 of MinTable's "
                "mean table, for each theta",
                f"{told}; MinTable {', '.join(f'{cost:.2f}' for cost in costs.values())} %, with "
                f"tables of {table} entries",
                all(len(some) and (some >= 0.8).all() for some in below.values()),
            ),
            Finding(
                "figure 17",
                "beyond it, migration falls steeply; rule: at most half of MinTable's wherever "
                "A_max is at least four times that table, for each theta",
                "; ".join(
                    f"{name}: {', '.join(f'{part:.2f}' for part in some)}"
                    for name, some in above.items()
                )
                + " of MinTable's, in the order of A_max",
                all(len(some) and (some <= 0.5).all() for some in above.values()),
            ),
            Finding(
                "figure 17",
                "the smaller theta, the greater the smallest table; rule: with each step",
                f"MinTable's tables: {table}",
                sorted(sizes.values(), reverse=True) == list(sizes.values()),
            ),
        ],
    )


FIGURE = Figure(
    "000-17",
    "Migration of Mixed over the limit of its table",
    "10,000 keys, Zipf 0.85, f = 1, 15 tasks, w = 5, beta = 1.5, consistent hashing, 20 intervals. "
    "Means of 5 runs",
    0.6,
    make,
)
