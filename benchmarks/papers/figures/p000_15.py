"""Figure 15: a task is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.papers import social_stock
from benchmarks.papers.figure import Figure, Made, Panel, Points
from benchmarks.papers.finding import Finding
from benchmarks.papers.saturated import Ran, run
from joinengine.lab.inline.inline_runs import Frame
from joinengine.layouts import Mixed, Readj
from joinengine.layouts.layout import LayoutChoice
from joinengine.operators.base import QuerySpec

THETAS = (0.02, 0.1)
#: The interval before which the task is added, and intervals in which state builds up.
ADDED, WARM = 12, 4
#: A run has recovered once an interval has so much of its throughput in the last intervals.
RECOVERED, LAST = 0.95, 8
CHOICES: Mapping[str, LayoutChoice] = {
    f"{name}, theta = {theta}": planner(base="ring", imbalance=theta, intervals=1)
    for name, planner in (("Mixed", Mixed), ("Readj", Readj))
    for theta in THETAS
}


def make(show: Callable[[str], None]) -> Made:
    words, tasks = social_stock.social(), social_stock.SOCIAL_TASKS
    social = _grown(social_stock.social_query, words, tasks, show)
    by_pkg = [
        tick
        for some, n in ((words[WARM:ADDED], tasks - 1), (words[ADDED:], tasks))
        for tick in social_stock.by_pkg(some, n).ticks
    ]
    social["PKG, without merging"] = Ran(by_pkg)
    trades, tasks = social_stock.stock(), social_stock.STOCK_TASKS
    stock = _grown(social_stock.stock_query, trades, tasks, show)
    return Made(
        [_panel("a", social), _panel("b", stock)],
        [*_findings("figure 15a", social), _beside_pkg(social), *_findings("figure 15b", stock)],
    )


def _grown(
    query: Callable[[int], QuerySpec],
    frames: Sequence[Frame],
    tasks: int,
    show: Callable[[str], None],
) -> dict[str, Ran]:
    """Runs to which the last of `tasks` is added."""
    found = dict[str, Ran]()
    for name, choice in CHOICES.items():
        found[name] = run(query(tasks - 1), choice, frames, {ADDED: tasks}).after(WARM)
        show(f"{name}: recovered in {_recovery_s(found[name]):.1f} s")
    return found


def _times(ran: Ran) -> np.ndarray:
    """When each interval ends, in seconds after the task was added."""
    ends = np.cumsum([tick.seconds for tick in ran.ticks])
    return ends - ends[ADDED - WARM - 1]


def _recovery_s(ran: Ran) -> float:
    """Seconds from the addition to the end of the first interval at the later throughput."""
    rates = np.array([tick.rows / tick.seconds for tick in ran.ticks])
    after = np.arange(len(rates)) >= ADDED - WARM
    recovered = after & (rates >= RECOVERED * Ran(ran.ticks[-LAST:]).rate)
    return float(_times(ran)[recovered.argmax()])


def _panel(letter: str, rans: Mapping[str, Ran]) -> Panel:
    series: dict[str, Points] = {
        name: (_times(ran).tolist(), [tick.rows / tick.seconds for tick in ran.ticks])
        for name, ran in rans.items()
    }
    return Panel(letter, "time since a task was added, s", "throughput, tuples/s", series)


def _findings(place: str, rans: Mapping[str, Ran]) -> list[Finding]:
    """What the paper states of both streams."""
    recovery = {name: _recovery_s(rans[name]) for name in CHOICES}
    plans = {name: max(tick.plan_s for tick in rans[name].ticks) for name in CHOICES}
    readj = max(seconds for name, seconds in plans.items() if name.startswith("Readj"))
    pairs = [(recovery[f"Mixed, theta = {x}"], recovery[f"Readj, theta = {x}"]) for x in THETAS]
    return [
        Finding(
            place,
            "after a task is added, Mixed is balanced again in a much shorter time than Readj; "
            f"rule: at {RECOVERED} of the throughput of the last {LAST} intervals, in at most half "
            "of Readj's seconds, at each theta",
            ", ".join(f"{seconds:.1f} s ({name})" for name, seconds in recovery.items()),
            all(mixed <= readj / 2 for mixed, readj in pairs),
            "both need the interval in which loads are counted, and then one plan. Readj's takes "
            f"{readj:.1f} s at most here, since it finds the best exchange by search",
        ),
        Finding(
            place,
            "Readj takes at least 5 minutes for its plan (theta lost)",
            f"at most {readj:.2f} s",
            readj >= 300,
            "Readj finds the best exchange by search here; in the paper it tries all pairs of keys",
            timed=True,
        ),
    ]


def _beside_pkg(rans: Mapping[str, Ran]) -> Finding:
    last = {name: Ran(ran.ticks[-LAST:]).rate for name, ran in rans.items()}
    return Finding(
        "figure 15a",
        "PKG does not notice the change, but its throughput is lower than Mixed's (theta lost)",
        ", ".join(f"{rate:,.0f} tuples/s ({name})" for name, rate in last.items()),
        None,
        "it depends on what it costs to merge a partial result, which the paper does not say "
        "(figure 14a)",
    )


FIGURE = Figure(
    "000-15",
    "Throughput while a task is added",
    f"The engine and the streams of figure 14; after {ADDED} intervals, Social gets a 15th task, "
    f"and Stock a 10th. One run",
    2,
    make,
)
