"""Fang et al., World Wide Web 2019, figure 9: plans over the number of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.papers.figure import Figure, Made
from benchmarks.papers.finding import Finding
from benchmarks.papers.replayed import COSTLY, PLAIN, Means, compared, holds_at_each, listed, panels
from joinengine.lab.simulation.workload import Workload

KEYS, SEEDS, INTERVALS = (5_000, 10_000, 50_000, 100_000, 1_000_000), 3, 8
#: Readj is left out above: it takes minutes there.
MOST_READJ = 10_000


def make(say: Callable[[str], None]) -> Made:
    """Replay the planners over each number of keys; the largest has one stream of few intervals."""
    found = dict[float, dict[str, Means]]()
    for keys in KEYS:
        say(f"{keys:,} keys")
        large = keys > 100_000
        streams = [
            Workload(keys=keys, zipf=0.8, rows=max(1_000_000, 20 * keys), fluctuation=1.0, seed=one)
            for one in range(1 if large else SEEDS)
        ]
        but = ("Readj",) if keys > MOST_READJ else ()
        found[keys] = compared(streams, 0.08, 4 if large else INTERVALS, but)
    return Made(panels("keys", found, "x"), _findings(found))


def _findings(found: Mapping[float, Mapping[str, Means]]) -> list[Finding]:
    told = f"ms, {listed(found, 'plan_ms', '.0f', PLAIN)}"
    moved = f"%, {listed(found, 'moved', '.2f', (COSTLY, *PLAIN))}"
    times = {
        name: [means[name].plan_ms for means in found.values()] for name in ("FTLB", "Mixed", "MRT")
    }
    return [
        Finding(
            "figure 9a",
            "plans take longer the more keys there are, under each planner; rule: FTLB, Mixed and "
            "MRT from each number of keys to the next",
            told,
            all(ones == sorted(ones) for ones in times.values()),
            timed=True,
        ),
        Finding(
            "figure 9a",
            "FTLB takes about as long as MRT, and less than Mixed; rule: within a quarter of MRT "
            "and below Mixed, at each number of keys",
            told,
            holds_at_each(
                found,
                lambda at: (
                    abs(at["FTLB"].plan_ms / at["MRT"].plan_ms - 1) <= 0.25
                    and at["FTLB"].plan_ms < at["Mixed"].plan_ms
                ),
            ),
            "FTLB weighs two copies of each key and looks for roles to switch before it moves",
            timed=True,
        ),
        Finding(
            "figure 9b",
            "FTLB moves least of all; rule: at each number of keys",
            moved,
            holds_at_each(found, lambda at: _is_least(at, "FTLB")),
            "FTLB weighs active copies alone, as in the algorithm",
        ),
        Finding(
            "figure 9b",
            "FTLB moves least, if a replica costs half of a home; rule: at each number of keys",
            moved,
            holds_at_each(found, lambda at: _is_least(at, COSTLY)),
            "a task that is overloaded has filled the next one, where its keys would switch roles",
        ),
    ]


def _is_least(at: Mapping[str, Means], name: str) -> bool:
    """Whether FTLB in the variant `name` moves less than any other planner."""
    others = [one.moved for other, one in at.items() if not other.startswith("FTLB")]
    return at[name].moved < min(others)


FIGURE = Figure(
    "004-9",
    "Plans over the number of keys: time, and state that moves",
    f"z = 0.8, f = 1, tolerance 0.08, 15 tasks, state of 5 intervals; means of {SEEDS} streams of "
    f"{INTERVALS} intervals (10^6 keys: one of 4). Readj up to {MOST_READJ:,} keys",
    3.0,
    make,
)
