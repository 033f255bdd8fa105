"""Figure 19: migration over the length of the window."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.papers.figure import Figure, Made
from benchmarks.papers.finding import Finding
from benchmarks.papers.intervals import (
    BOTH,
    Setup,
    curves,
    each_listed,
    falls,
    field,
    listed,
    panel,
    ratio,
)

WINDOWS = (1, 5, 10, 15, 20)


def make(show: Callable[[str], None]) -> Made:
    moved = field(curves(BOTH, {"": [Setup(window=w) for w in WINDOWS]}, show), "moved", 100)
    over = ratio(moved, "Mixed", "MinTable", "")
    return Made(
        [panel("", ("window w, intervals", "migrated state, %"), WINDOWS, moved)],
        [
            Finding(
                "figure 19",
                "the greater w, the less state migrates; rule: under both planners, with each step",
                each_listed(WINDOWS, moved, ".2f", " %"),
                all(falls(one.mean) for one in moved.values()),
            ),
            Finding(
                "figure 19",
                "Mixed migrates less than MinTable; rule: at each w",
                f"{listed(WINDOWS, over, '.2f')} of MinTable's (w)",
                bool((over < 1).all()),
            ),
        ],
    )


FIGURE = Figure(
    "000-19",
    "Migration over the window",
    "10,000 keys, Zipf 0.85, f = 1, 15 tasks, theta = 0.08, beta = 1.5, A_max = 3,000, consistent "
    "hashing, 20 intervals, each planner with its own tables. Means of 5 runs",
    0.3,
    make,
)
