"""Figure 8: Mixed and MinTable over the number of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.papers.figure import Figure, Made
from benchmarks.papers.finding import Finding
from benchmarks.papers.intervals import (
    BOTH,
    ONE_TRIAL,
    STATE_IS_LOAD,
    WINDOWS,
    Curve,
    Setup,
    beside_mintable,
    curves,
    each_listed,
    field,
    listed,
    panel,
    plan_mixed,
    ratio,
    wider,
)

INSTANCES = (5, 10, 15, 20, 30, 40)
SMALL = 300


def make(show: Callable[[str], None]) -> Made:
    setups = {
        suffix: [Setup(instances=n, window=w, intervals=12) for n in INSTANCES]
        for suffix, w in WINDOWS.items()
    }
    small = {
        f", A_max = {SMALL}{suffix}": [
            Setup(instances=n, window=w, table_limit=SMALL, intervals=12) for n in INSTANCES
        ]
        for suffix, w in WINDOWS.items()
    }
    found = {**curves(BOTH, setups, show), **curves({"Mixed": plan_mixed}, small, show)}
    seconds, moved = field(found, "seconds", 1e3), field(found, "moved", 100)
    further = wider(moved)["Mixed"]
    return Made(
        [
            panel("a", ("tasks", "time of a plan, ms"), INSTANCES, seconds),
            panel("b", ("tasks", "migrated state, %"), INSTANCES, moved),
        ],
        [
            _time(seconds),
            *(_less(moved, suffix) for suffix in WINDOWS),
            _at_forty(
                moved,
                "",
                "A_max = 3,000",
                f"MinTable's tables have {found['MinTable, w = 5']['entries'].mean[-1]:.0f} "
                f"entries at 40 tasks, fewer than 3,000, so the limit does not force Mixed to "
                f"clean them",
            ),
            _at_forty(moved, f", A_max = {SMALL}", f"A_max = {SMALL}", ""),
            Finding(
                "figure 8b",
                "with w = 5 Mixed migrates less than with w = 1; rule: at each N",
                f"{listed(INSTANCES, further, '.2f')} of w = 1 (N)",
                bool((further < 1).all()),
            ),
        ],
    )


def _time(seconds: Mapping[str, Curve]) -> Finding:
    over = beside_mintable(seconds)
    return Finding(
        "figure 8a",
        "a plan of Mixed takes a little more time than one of MinTable; rule: 1 to 2 times, at "
        "each N and w",
        f"{each_listed(INSTANCES, over, '.1f')} times (N)",
        all(1 <= one <= 2 for some in over.values() for one in some),
        ONE_TRIAL,
        timed=True,
    )


def _less(moved: Mapping[str, Curve], suffix: str) -> Finding:
    over = ratio(moved, "Mixed", "MinTable", suffix)[:-1]
    return Finding(
        "figure 8b",
        f"below 40 tasks, Mixed migrates far less than MinTable{suffix}; rule: at most two thirds",
        f"{listed(INSTANCES[:-1], over, '.2f')} of MinTable's (N)",
        bool((over <= 2 / 3).all()),
        STATE_IS_LOAD if WINDOWS[suffix] == 1 else "",
    )


def _at_forty(moved: Mapping[str, Curve], limit: str, words: str, why: str) -> Finding:
    over = {
        suffix: moved[f"Mixed{limit}{suffix}"].mean[-1] / moved[f"MinTable{suffix}"].mean[-1]
        for suffix in WINDOWS
    }
    return Finding(
        "figure 8b",
        f"at 40 tasks, Mixed's migration jumps nearly to MinTable's, since its table does not "
        f"suffice ({words}); rule: at least 0.8 of MinTable's, w = 1 and 5",
        "; ".join(f"{one[2:]}: {share:.2f}" for one, share in over.items()) + " of MinTable's",
        min(over.values()) >= 0.8,
        why,
    )


FIGURE = Figure(
    "000-8",
    "Planning time and migration over the number of tasks",
    "10,000 keys, Zipf 0.85, f = 1, theta = 0.08, beta = 1.5, consistent hashing, 12 intervals, "
    "each planner with its own tables. A_max = 3,000; the exponent of the paper's value (3 x 10 to "
    "a power) is lost, so Mixed runs with 300, too. Means of 5 runs, in "
    "seconds of the processor",
    1,
    make,
)
