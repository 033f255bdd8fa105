"""Figure 18: the table of MinMig, which never sends a key home."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding
from benchmarks.papers.intervals import Setup, plan_minmig, play

#: Tolerance -> adjustments.
ADJUSTMENTS = {0.0: 200, 0.02: 6000, 0.08: 6000}
LIMIT = 10_000 * 14 / 15
NEAR, MOST = 0.02, 0.9


def make(show: Callable[[str], None]) -> Made:
    sizes = dict[float, list[float]]()
    for theta, adjustments in ADJUSTMENTS.items():
        setup = Setup(theta=theta, window=1, intervals=adjustments, fluctuation=None)
        sizes[theta] = [row.entries for row in play(plan_minmig, setup, 1)]
        show(f"theta = {theta}: {sizes[theta][-1]:,.0f} entries")
    ends = {theta: some[-1] for theta, some in sizes.items()}
    soon = {
        theta: next((n for n, size in enumerate(some, 1) if size >= MOST * LIMIT), None)
        for theta, some in sizes.items()
    }
    first = [len(sizes[theta]) + 1 if n is None else n for theta, n in soon.items()]
    return Made(
        [
            Panel(
                "",
                "adjustments",
                "entries of MinMig's table",
                {
                    f"theta = {theta:g}": (range(1, len(some) + 1), some)
                    for theta, some in sizes.items()
                }
                | {"K (N - 1) / N": ([1, max(ADJUSTMENTS.values())], [LIMIT, LIMIT])},
                "x",
            )
        ],
        [
            Finding(
                "figure 18",
                "whatever theta, the table tends to K (N - 1) / N = 9,333 entries ('around 9350'); "
                "rule: within 2 % in the end",
                ", ".join(f"{size:,.0f} (theta = {theta:g})" for theta, size in ends.items()),
                all(abs(size - LIMIT) <= NEAR * LIMIT for size in ends.values()),
            ),
            Finding(
                "figure 18",
                "the smaller theta, the sooner the table grows; rule: fewer adjustments until 90 % "
                "of these entries, with each step of theta",
                ", ".join(f"{n} (theta = {theta:g})" for theta, n in soon.items()),
                all(a < b for a, b in pairwise(first)),
            ),
        ],
    )


FIGURE = Figure(
    "000-18",
    "Entries of MinMig's table over its adjustments",
    "10,000 keys, Zipf 0.85, 15 tasks, w = 1, beta = 1.5, consistent hashing, loads dealt anew in "
    "each interval (the paper's own f is lost), one run",
    3,
    make,
)
