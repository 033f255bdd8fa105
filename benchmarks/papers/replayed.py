"""Fang et al., World Wide Web 2019, figures 8 and 9: planners over one and the same loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.papers.figure import Panel
from joinengine.lab.simulation.planning import Sizes, replay
from joinengine.lab.simulation.workload import Workload
from joinengine.layouts import Ftlb, MinTable, Mixed, Readj
from joinengine.layouts.key_based import Planned

TASKS, WINDOW = 15, 5
#: As in the algorithm, FTLB weighs active copies alone, and a key's replica is at the next task;
#: then with replicas that cost half of a home, joinengine's default; then spread.
COSTLY, SPREAD = "FTLB, replicas cost", "FTLB, replicas cost, spread"
PLAIN = ("FTLB", "Mixed", "MRT", "Readj")
NAMES = ("FTLB", COSTLY, SPREAD, "Mixed", "MRT", "Readj")


class Means(NamedTuple):
    """Milliseconds of a plan, and the part of the state that it moves, in per cent."""

    plan_ms: float
    moved: float


def planners(theta: float) -> Mapping[str, Planned]:
    """The planners by their names in the paper; MRT is MinTable."""
    every: tuple[Planned, ...] = (
        Ftlb(imbalance=theta, backup_work=0.0, spread=1),
        Ftlb(imbalance=theta, spread=1),
        Ftlb(imbalance=theta, spread="all"),
        Mixed(imbalance=theta),
        MinTable(imbalance=theta),
        Readj(imbalance=theta),
    )
    return dict(zip(NAMES, every, strict=True))


def compared(
    streams: Sequence[Workload], theta: float, intervals: int, but: Sequence[str] = ()
) -> dict[str, Means]:
    """The means of each planner over the re-plans in `streams`, and over the intervals."""
    found = dict[str, Means]()
    for name, choice in planners(theta).items():
        if name in but:
            continue
        runs = [replay(choice, stream, Sizes(TASKS, intervals, WINDOW)) for stream in streams]
        rows: list[dict[str, Any]] = [row for run in runs for row in run["intervals"]]
        planned = [row["plan_s"] for row in rows if row["replanned"]]
        moved = [row["migration_cost"] for row in rows]
        found[name] = Means(1e3 * float(np.mean(planned or [0.0])), 100 * float(np.mean(moved)))
    return found


def panels(x: str, found: Mapping[float, Mapping[str, Means]], log: str = "") -> list[Panel]:
    """Time and migration over `x`."""
    axes = (("a", "plan_ms", "plan time (ms)"), ("b", "moved", "state that moves (%)"))
    names = dict.fromkeys(name for means in found.values() for name in means)
    return [
        Panel(
            letter,
            x,
            what,
            {
                name: (
                    [at for at, means in found.items() if name in means],
                    [getattr(means[name], figure) for means in found.values() if name in means],
                )
                for name in names
            },
            log + ("y" if figure == "plan_ms" else ""),
        )
        for letter, figure, what in axes
    ]


def listed(
    found: Mapping[float, Mapping[str, Means]], figure: str, form: str, names: Sequence[str]
) -> str:
    """One figure of some planners, for each setting."""
    lines = list[str]()
    for at, means in found.items():
        each = ", ".join(
            f"{name} {getattr(means[name], figure):{form}}" for name in names if name in means
        )
        lines.append(f"{at:,g}: {each}")
    return "; ".join(lines)


def holds_at_each(
    found: Mapping[float, Mapping[str, Means]], rule: Callable[[Mapping[str, Means]], bool]
) -> bool:
    """Whether a rule holds at each x."""
    return all(rule(means) for means in found.values())
