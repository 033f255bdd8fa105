"""Figure 11: planning over compact records of keys, and how well records tell loads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding, homes_after, whole_keys
from benchmarks.papers.intervals import SEEDS, Curve, Setup, listed, panel, plan_mixed
from joinengine.balancing.compact import discretise, records
from joinengine.balancing.loads import Loads
from joinengine.balancing.mixed import Task
from joinengine.balancing.statistics import Ints

DEGREES = range(9)
R = [1 << degree for degree in DEGREES]
MANY = Setup(keys=1_000_000)
#: Where the paper's axis has "original key space".
RAW = 0.5
WARM, RUNS = 2, 5


def make(show: Callable[[str], None]) -> Made:
    loads = _overloaded(MANY)
    planning, gathering = list[list[float]](), list[list[float]]()
    for degree in (None, *DEGREES):
        ways = [_seconds(loads, degree) for _ in range(RUNS)]
        planning.append([min(plan for plan, _ in ways)])
        gathering.append([min(gather for _, gather in ways)])
        show(f"{'keys' if degree is None else f'R = {1 << degree}'}: {planning[-1][0]:.3f} s")
    plan, gather = Curve(np.array(planning)), Curve(np.array(gathering)[1:])
    errors = {
        "a deviation for each task": _errors(apart=True),
        "one deviation for all tasks": _errors(apart=False),
    }
    return Made(
        [
            _times(plan, gather),
            panel("b", ("R", "greatest error of a task's load, %"), R, errors, "x"),
        ],
        [
            Finding(
                "figure 11a",
                "from the compact records that tasks report, a plan is made an order of magnitude "
                "sooner than over keys (0.6 s and 6 s; R lost); rule: ten times sooner for some R",
                f"over keys {plan.mean[0]:.2f} s; {listed(R, plan.mean[1:])} s (R)",
                float(plan.mean[1:].min()) <= plan.mean[0] / 10,
                timed=True,
            ),
            Finding(
                "figure 11a",
                "the same, if the time counts in which the slowest task gathers its records",
                f"{listed(R, plan.mean[1:] + gather.mean)} s (R)",
                float((plan.mean[1:] + gather.mean).min()) <= plan.mean[0] / 10,
                "the paper counts the planner's time alone. A task needs three sorts of its keys "
                "to gather records, which is most of the time. In joinengine tasks report key by "
                "key and the planner gathers, so records save time only if a plan has many trials",
                timed=True,
            ),
            Finding(
                "figure 11a",
                "the greater R, the sooner a plan is made; rule: at R = 256 less than half as long "
                "as at R = 1, and no step up by more than a fifth",
                f"{listed(R, plan.mean[1:])} s (R)",
                plan.mean[-1] < plan.mean[1] / 2
                and bool((plan.mean[2:] <= 1.2 * plan.mean[1:-1]).all()),
                timed=True,
            ),
            _within(errors["a deviation for each task"], "", ""),
            _within(
                errors["one deviation for all tasks"],
                ", if one running deviation serves all tasks",
                "the errors of one deviation cancel in the total, and not on a task. Tasks that "
                "round their own keys, as the paper's tasks do, have a deviation each",
            ),
        ],
    )


def _overloaded(setup: Setup) -> Loads:
    """The loads after some intervals of Mixed, when the next plan is due."""
    homes, held = None, 0.0
    for number, (cost, base) in enumerate(islice(setup.stream(1), WARM + 1)):
        held = held + cost
        loads = whole_keys(cost, base, base if homes is None else homes, held, setup.instances)
        if number < WARM:
            homes = homes_after(loads, plan_mixed(loads, setup)[0])
    return loads


def _seconds(loads: Loads, degree: int | None) -> tuple[float, float]:
    """Of a plan of Mixed, without and of the gathering that its slowest task does before."""
    gathering = [0.0]
    if degree is not None:
        gathering = [_gathered(loads, task, degree) for task in range(loads.n_instances)]
    start = time.process_time()
    task = Task.of(loads, MANY.theta, MANY.beta, degree)
    middle = time.process_time()
    task.changes(task.balanced(task.cleaned(0)))
    end = time.process_time()
    return end - (start if degree is None else middle), max(gathering)


def _gathered(loads: Loads, task: int, degree: int) -> float:
    """Seconds in which a task gathers the records of its own keys."""
    own = np.flatnonzero(loads.instances == task)
    some = whole_keys(
        loads.spread[own],
        loads.homes[own],
        np.full(len(own), task),
        loads.held[own],
        loads.n_instances,
    )
    start = time.process_time()
    records(some, some.instances, some.spread, degree)
    return time.process_time() - start


def _errors(*, apart: bool) -> Curve:
    """The greatest error of a task's load in per cent of the load: (R, seeds)."""
    found = np.zeros((len(DEGREES), len(SEEDS)))
    for column, seed in enumerate(SEEDS):
        setup = Setup()
        ((cost, homes),) = islice(setup.stream(seed), 1)
        whole = np.maximum(np.rint(cost), 1)
        exact = np.bincount(homes, whole, setup.instances)
        groups: Ints = homes if apart else np.zeros_like(homes)
        for row, degree in enumerate(DEGREES):
            rounded = discretise(whole, groups, degree)
            off = np.abs(np.bincount(homes, rounded, setup.instances) - exact) / exact
            found[row, column] = 100 * off.max()
    return Curve(found)


def _times(plan: Curve, gather: Curve) -> Panel:
    axes = f"R ({RAW}: original key space)", "time, s"
    both = panel("a", axes, [RAW, *R], {"plan": plan}, "xy")
    tasks = panel("a", axes, R, {"records of the slowest task": gather}, "xy")
    return replace(
        both, series={**both.series, **tasks.series}, spans={**both.spans, **tasks.spans}
    )


def _within(errors: Curve, case: str, reading: str) -> Finding:
    worst = errors.runs.max(axis=1)
    return Finding(
        "figure 11b",
        f"records tell the load of each task within 1 %, for R = 1 to 256{case}; rule: in each run",
        f"at most {listed(R, worst, '.2g')} % (R)",
        bool(worst.max() <= 1),
        reading,
    )


FIGURE = Figure(
    "000-11",
    "Planning over compact records",
    "Panel a: 1,000,000 keys, 15 tasks, Zipf 0.85, theta = 0.08, the third interval of a stream "
    "with f = 1 under Mixed, one trial without cleaning; the least of 5 runs, in seconds of the "
    "processor. Panel b: 10,000 keys and 1,000,000 tuples, 5 runs",
    2,
    make,
)
