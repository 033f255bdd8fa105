"""Figure 9: Mixed and MinTable over the tolerance."""

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
    falls,
    field,
    listed,
    panel,
    ratio,
    wider,
)

THETAS = (0.02, 0.04, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3)
DEALT = ", w = 5, loads dealt anew"


def make(show: Callable[[str], None]) -> Made:
    setups = {
        suffix: [Setup(theta=theta, window=w) for theta in THETAS] for suffix, w in WINDOWS.items()
    }
    found = curves(BOTH, setups, show, seeds=range(1, 11))
    dealt = {DEALT: [Setup(theta=theta, fluctuation=None) for theta in THETAS]}
    dealt_moved = field(curves(BOTH, dealt, show), "moved", 100)
    seconds, moved = field(found, "seconds", 1e3), field(found, "moved", 100)
    further = wider(moved)
    return Made(
        [
            panel("a", ("tolerance theta", "time of a plan, ms"), THETAS, seconds),
            panel("b", ("tolerance theta", "migrated state, %"), THETAS, moved),
        ],
        [
            *_times(seconds),
            Finding(
                "figure 9b",
                "the smaller theta, the more state migrates; rule: under each planner and w, with "
                "each step, with a tolerance of 2 %",
                each_listed(THETAS, moved, ".2f", " %"),
                all(falls(one.mean, 0.02) for one in moved.values()),
            ),
            *(_three_times(moved, suffix) for suffix in WINDOWS),
            _three_times(dealt_moved, DEALT),
            Finding(
                "figure 9b",
                "with w = 5 less state migrates than with w = 1; rule: under both planners at each "
                "theta",
                f"{each_listed(THETAS, further, '.2f')} of w = 1 (theta)",
                all((some < 1).all() for some in further.values()),
            ),
        ],
    )


def _times(seconds: Mapping[str, Curve]) -> list[Finding]:
    over = beside_mintable(seconds)
    strict = max(one.mean[0] for one in seconds.values()) / 1e3
    return [
        Finding(
            "figure 9a",
            "the greater theta, the sooner a plan is made; rule: under each planner and w, less "
            "at the greatest theta than at the least, and no step up by more than a tenth",
            each_listed(THETAS, seconds, ".1f", " ms"),
            all(falls(one.mean, 0.1) and one.mean[-1] < one.mean[0] for one in seconds.values()),
            "a plan takes few ms, most of it for sorting all keys, whatever theta",
            timed=True,
        ),
        Finding(
            "figure 9a",
            "Mixed takes longer than MinTable below theta = 0.2, and as long from there on (lost "
            "here; the value is that of Fang et al., 2019); rule: above 1 below 0.2, at most 1.1 "
            "from 0.2 on, w = 1 and 5",
            f"{each_listed(THETAS, over, '.2f')} of MinTable's time (theta)",
            all(
                one > 1 if theta < 0.2 else one <= 1.1
                for some in over.values()
                for theta, one in zip(THETAS, some, strict=True)
            ),
            ONE_TRIAL,
            timed=True,
        ),
        Finding(
            "figure 9a",
            "even at the strict theta = 0.02 (lost here) a plan is made within 1 s",
            f"at most {strict:.3f} s",
            strict < 1,
            timed=True,
        ),
    ]


#: Why one suffix does not give three times.
_READINGS = {
    ", w = 1": STATE_IS_LOAD,
    ", w = 5": "nearly four times, and a little more from theta = 0.2 on. The factor depends on "
    "how loads change: it is greater if few keys change, since Mixed then leaves its table alone",
    DEALT: "a little below 2 at theta = 0.3; for comparison, since the paper swaps loads of keys",
}


def _three_times(moved: Mapping[str, Curve], suffix: str) -> Finding:
    over = ratio(moved, "MinTable", "Mixed", suffix)
    return Finding(
        "figure 9b",
        f"under the same theta, MinTable migrates three times what Mixed does{suffix}; rule: 2 to "
        f"4 times at each theta",
        f"{listed(THETAS, over, '.1f')} times (theta)",
        bool(((over >= 2) & (over <= 4)).all()),
        _READINGS[suffix],
    )


FIGURE = Figure(
    "000-9",
    "Planning time and migration over the tolerance",
    "10,000 keys, Zipf 0.85, f = 1, 15 tasks, beta = 1.5, A_max = 3,000, consistent hashing, 20 "
    "intervals, each planner with its own tables. Means of 10 runs, in seconds of the "
    "processor; of 5 runs if loads are dealt anew",
    1.5,
    make,
)
