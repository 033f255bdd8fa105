"""Planners of whole keys, interval by interval, as Fang et al., 2016, compare them.

A planner plans after an interval in which some instance had more than (1 + theta) times the mean
load, from its own table and homes. What is measured: the processor's seconds for a plan,
the part of all state that moves (0 in an interval without a plan), and the entries of the table.
State is the tuples of the last `window` intervals.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from benchmarks.papers.figure import Panel
from benchmarks.papers.finding import homes_after, levels, whole_keys
from joinengine.balancing import mixed
from joinengine.balancing.loads import Loads
from joinengine.balancing.shares import NewShares
from joinengine.balancing.statistics import Floats, Ints, skew
from joinengine.lab.simulation.workload import Workload
from joinengine.routing.base_functions import Ring

#: Suffix of a series -> w, where figures have both.
WINDOWS = {", w = 1": 1, ", w = 5": 5}
#: Why Mixed's plans take no longer than MinTable's.
ONE_TRIAL = (
    "Mixed tries once without cleaning, and only if its table is then too large again. So mostly "
    "it makes one trial, as MinTable does, and has fewer keys to place"
)
#: Why Mixed does not save as much with w = 1.
STATE_IS_LOAD = (
    "with w = 1 the state of a key is its load, so Mixed moves the heaviest keys, as MinTable "
    "does, and saves only what MinTable sends home"
)
#: Of the mean of several runs; the paper has five.
SEEDS = range(1, 6)


@dataclass(frozen=True)
class Setup:
    """One run; the defaults are those of the paper's table 2.

    `fluctuation` f: between two intervals, keys of one instance swap loads with keys of others
    until its load has changed by f means. Swaps are directed: random ones do not end if f is great.
    None: the loads of all keys are dealt anew, which is what random swaps come to at f = 1, where
    it takes some 11,400 of them among 10,000 keys. `intervals` are those after the first `window`,
    in which state builds up.
    """

    keys: int = 10_000
    zipf: float = 0.85
    instances: int = 15
    theta: float = 0.08
    window: int = 5
    table_limit: int = 3000
    beta: float = 1.5
    fluctuation: float | None = 1.0
    intervals: int = 20

    def stream(self, seed: int) -> Iterator[tuple[Floats, Ints]]:
        """Loads (K,) of each interval, 100 tuples a key on average, and base homes (K,)."""
        changes = {"drift": 1.0} if self.fluctuation is None else {"fluctuation": self.fluctuation}
        rows = 100 * self.keys
        workload = Workload(self.keys, self.zipf, rows, seed=seed, **changes)
        homes, ring = None, Ring(self.instances)
        for hashes, loads in workload.intervals(ring):
            if homes is None:
                homes = ring.homes(hashes).astype(np.int64)
            yield loads, homes


#: A plan of keys, and the seconds that it took: of the processor, since other programs run beside.
Timed = tuple[NewShares, float]
Planner = Callable[[Loads, Setup], Timed]


def timed(plan: Callable[[], NewShares]) -> Timed:
    """Make a plan."""
    start = time.process_time()
    changes = plan()
    return changes, time.process_time() - start


def plan_mixed(loads: Loads, setup: Setup) -> Timed:
    """Mixed."""
    settings = setup.theta, setup.beta, setup.table_limit
    return timed(lambda: mixed.plan_mixed(loads, *settings))


def plan_mintable(loads: Loads, setup: Setup) -> Timed:
    """MinTable."""
    return timed(lambda: mixed.plan_mintable(loads, setup.theta))


def plan_minmig(loads: Loads, setup: Setup) -> Timed:
    """MinMig."""
    return timed(lambda: mixed.plan_minmig(loads, setup.theta, setup.beta))


BOTH: Mapping[str, Planner] = {"Mixed": plan_mixed, "MinTable": plan_mintable}


class Row(NamedTuple):
    """An interval of a planner; `seconds` is NaN if no plan was due."""

    moved: float
    entries: float
    seconds: float
    skew: float


def play(planner: Planner, setup: Setup, seed: int) -> list[Row]:
    """A planner over the intervals of a stream, from an empty table."""
    rows, recent, homes = list[Row](), deque[Floats](maxlen=setup.window), None
    for cost, base in islice(setup.stream(seed), setup.intervals + setup.window):
        recent.append(cost)
        held = np.sum(recent, axis=0)
        before = base if homes is None else homes
        loads = whole_keys(cost, base, before, held, setup.instances)
        homes, seconds = before, np.nan
        if skew(levels(loads, before)) > 1 + setup.theta:
            changes, seconds = planner(loads, setup)
            homes = homes_after(loads, changes)
        moved = float(held[homes != before].sum() / held.sum())
        entries = float((homes != base).sum())
        rows.append(Row(moved, entries, seconds, skew(levels(loads, homes))))
    return rows[setup.window :]


def mean_of(rows: Sequence[Row]) -> Row:
    """Means over the intervals; seconds over the plans, 0 if there are none."""
    found = np.array(rows)
    planned = found[~np.isnan(found[:, 2]), 2]
    means = found.mean(axis=0)
    means[2] = planned.mean() if len(planned) else 0.0
    return Row(*means.tolist())


@dataclass(frozen=True)
class Curve:
    """A figure of one planner over the values of x, in several runs."""

    runs: Floats  # (x, seeds)

    @property
    def mean(self) -> Floats:
        """(x,) the mean of the runs."""
        found: Floats = self.runs.mean(axis=1)
        return found


#: Name of a series -> its curve of each field of Row.
Curves = Mapping[str, Mapping[str, Curve]]


def curves(
    planners: Mapping[str, Planner],
    setups: Mapping[str, Sequence[Setup]],
    show: Callable[[str], None],
    seeds: Sequence[int] = SEEDS,
) -> Curves:
    """Each planner over each list of setups, whose name is added to the planner's."""
    found = dict[str, dict[str, Curve]]()
    for suffix, along in setups.items():
        for name, planner in planners.items():
            rows = np.array(
                [[mean_of(play(planner, one, seed)) for seed in seeds] for one in along]
            )
            series = f"{name}{suffix}"
            found[series] = {field: Curve(rows[:, :, i]) for i, field in enumerate(Row._fields)}
            show(f"{series}: {len(along)} points, {len(seeds)} runs each")
    return found


def panel(
    letter: str,
    axes: tuple[str, str],
    xs: Sequence[float],
    found: Mapping[str, Curve],
    log: str = "",
) -> Panel:
    """A panel of the mean of each curve, shaded from the least to the greatest run."""
    return Panel(
        letter,
        *axes,
        {name: (xs, one.mean.tolist()) for name, one in found.items()},
        log,
        {
            name: (one.runs.min(axis=1).tolist(), one.runs.max(axis=1).tolist())
            for name, one in found.items()
        },
    )


def field(found: Curves, name: str, times: float = 1.0) -> dict[str, Curve]:
    """One figure of all series, in another unit."""
    return {series: Curve(times * fields[name].runs) for series, fields in found.items()}


def listed(xs: Sequence[float], values: Sequence[float] | Floats, form: str = ".3g") -> str:
    """Values by x, as text.

    >>> listed([5, 10], [0.5, 0.25])
    '0.5 (5), 0.25 (10)'
    """
    return ", ".join(f"{value:{form}} ({x:,g})" for x, value in zip(xs, values, strict=True))


def each_listed(
    xs: Sequence[float], found: Mapping[str, Curve | Floats], form: str, unit: str = ""
) -> str:
    """Values by x of each series, as text; of a curve its means."""
    return "; ".join(
        f"{name}: {listed(xs, some.mean if isinstance(some, Curve) else some, form)}{unit}"
        for name, some in found.items()
    )


def falls(values: Floats | Sequence[float], tolerance: float = 0.0) -> bool:
    """Whether no value is greater than the one before it by more than a part `tolerance`.

    >>> falls([3, 2, 2.02], 0.02), falls([3, 2, 2.1], 0.02)
    (True, False)
    """
    some = np.asarray(values, float)
    return bool((some[1:] <= some[:-1] * (1 + tolerance)).all())


def ratio(found: Mapping[str, Curve], one: str, other: str, suffix: str) -> Floats:
    """(x,) the mean of one planner over that of another one."""
    quotient: Floats = found[f"{one}{suffix}"].mean / found[f"{other}{suffix}"].mean
    return quotient


def beside_mintable(found: Mapping[str, Curve]) -> dict[str, Floats]:
    """By "w = 1" and "w = 5": (x,) the mean of Mixed over that of MinTable."""
    return {
        suffix.removeprefix(", "): ratio(found, "Mixed", "MinTable", suffix) for suffix in WINDOWS
    }


def wider(found: Mapping[str, Curve]) -> dict[str, Floats]:
    """By planner: (x,) the mean with w = 5 over that with w = 1."""
    return {name: found[f"{name}, w = 5"].mean / found[f"{name}, w = 1"].mean for name in BOTH}
