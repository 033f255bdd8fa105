"""Figure 10: Mixed and MinTable over the number of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.papers.figure import Figure, Made
from benchmarks.papers.finding import Finding
from benchmarks.papers.intervals import (
    BOTH,
    ONE_TRIAL,
    WINDOWS,
    Curve,
    Setup,
    beside_mintable,
    curves,
    each_listed,
    falls,
    field,
    listed,
    panel,
    ratio,
    wider,
)

KEYS = (5_000, 10_000, 100_000, 1_000_000)


def make(show: Callable[[str], None]) -> Made:
    setups = {
        suffix: [Setup(keys=keys, window=w, intervals=8) for keys in KEYS]
        for suffix, w in WINDOWS.items()
    }
    found = curves(BOTH, setups, show, seeds=(1, 2, 3))
    seconds, moved = field(found, "seconds", 1e3), field(found, "moved", 100)
    further = wider(moved)
    return Made(
        [
            panel("a", ("keys", "time of a plan, ms"), KEYS, seconds, "xy"),
            panel("b", ("keys", "migrated state, %"), KEYS, moved, "x"),
        ],
        [
            *_times(seconds),
            *(_less(moved, suffix) for suffix in WINDOWS),
            Finding(
                "figure 10b",
                "the fewer keys, the more uneven the loads, and the more state migrates; rule: "
                "under each planner and w, with each step",
                each_listed(KEYS, moved, ".2f", " %"),
                all(falls(one.mean) for one in moved.values()),
                "it holds of MinTable, and of Mixed at w = 1. At w = 5 Mixed migrates least, and "
                "the step between 5,000 and 10,000 keys is smaller than the spread of the runs",
            ),
            Finding(
                "figure 10b",
                "migration falls under both planners as w grows to 5; rule: at each K",
                f"{each_listed(KEYS, further, '.2f')} of w = 1 (K)",
                all((some < 1).all() for some in further.values()),
            ),
        ],
    )


def _times(seconds: Mapping[str, Curve]) -> list[Finding]:
    over = beside_mintable(seconds)
    grown = {s: seconds[f"Mixed{s}"].mean[-1] / seconds[f"Mixed{s}"].mean[0] for s in WINDOWS}
    return [
        Finding(
            "figure 10a",
            "Mixed takes longer than MinTable; rule: at each K, w = 1 and 5",
            f"{each_listed(KEYS, over, '.2f')} of MinTable's time (K)",
            all((some > 1).all() for some in over.values()),
            ONE_TRIAL,
            timed=True,
        ),
        Finding(
            "figure 10a",
            "Mixed's time is stable whatever the number of keys; rule: at 1,000,000 keys at most "
            "twice that at 5,000",
            "; ".join(f"{one[2:]}: {times:.0f} times" for one, times in grown.items()),
            max(grown.values()) <= 2,
            "a plan looks at each key at least once, so its time grows with them: over single keys "
            "as here, it cannot stay the same. Over compact records (figure 11) it follows the "
            "number of records",
            timed=True,
        ),
    ]


def _less(moved: Mapping[str, Curve], suffix: str) -> Finding:
    over = ratio(moved, "Mixed", "MinTable", suffix)
    return Finding(
        "figure 10b",
        f"Mixed migrates less than MinTable{suffix}; rule: at each K",
        f"{listed(KEYS, over, '.2f')} of MinTable's (K)",
        bool((over < 1).all()),
    )


FIGURE = Figure(
    "000-10",
    "Planning time and migration over the number of keys",
    "Zipf 0.85, f = 1, 15 tasks, theta = 0.08, beta = 1.5, A_max = 3,000, consistent hashing, 8 "
    "intervals, each planner with its own tables. Means of 3 runs, in "
    "seconds of the processor",
    3,
    make,
)
