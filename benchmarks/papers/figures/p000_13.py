"""Figure 13: throughput and latency over the fluctuation of loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

import numpy as np
import pyarrow as pa

from benchmarks.papers.figure import Figure, Made
from benchmarks.papers.finding import Finding
from benchmarks.papers.intervals import Curve, listed, panel
from benchmarks.papers.saturated import WORK_S, Ran, ran, run, store, stored
from joinengine.balancing.statistics import Floats
from joinengine.kernels.hashing import hash_columns
from joinengine.lab.inline.inline_runs import Frame
from joinengine.lab.simulation.workload import Workload
from joinengine.layouts import Hash, Mixed, Readj
from joinengine.layouts.layout import LayoutChoice
from joinengine.routing.base_functions import Ring

FLUCTUATIONS = (0.0, 0.5, 1.0, 1.5, 2.0)
KEYS, INSTANCES, THETA, WINDOW = 10_000, 15, 0.08, 5
#: Tuples of an interval: as many as a saturated cluster does in 5 s if loads are even.
ROWS = 75_000
#: Loads change so often, each time after so many intervals; the first loads are not counted.
CHANGES, STEADY, WARM = 3, 8, 4
SEEDS = (1, 2)
METHODS: Mapping[str, LayoutChoice] = {
    "Mixed": Mixed(base="ring", imbalance=THETA, intervals=1),
    "Readj": Readj(base="ring", imbalance=THETA, intervals=1),
    "Storm": Hash(base="ring"),
}
NEAR, FAR = 0.9, 0.8


def make(show: Callable[[str], None]) -> Made:
    found = dict[str, list[list[Ran]]]()
    for f in FLUCTUATIONS:
        frames = [_frames(f, seed) for seed in SEEDS]
        for name, choice in METHODS.items():
            query = store(pa.int64(), INSTANCES, WINDOW)
            found.setdefault(name, []).append([run(query, choice, x).after(WARM) for x in frames])
        told = (f"{name} {some[-1][0].rate:,.0f}/s" for name, some in found.items())
        show(f"f = {f:g}: {', '.join(told)}")
    found["Ideal"] = [[ran([ROWS], [ROWS / INSTANCES * WORK_S])] for _ in FLUCTUATIONS]
    rates, waits = _curves(found, "rate"), _curves(found, "latency_s")
    return Made(
        [
            panel("a", ("fluctuation f", "throughput, tuples/s"), FLUCTUATIONS, rates),
            panel("b", ("fluctuation f", "processing latency, s"), FLUCTUATIONS, waits),
        ],
        [
            *_findings(
                "a",
                rates,
                "the throughput of Mixed is very close to Ideal's, whatever f; rule: at least 0.9 "
                "of it, at each f",
                "Readj works well for small f only; rule: at least 0.9 of Mixed's throughput up to "
                "f = 0.5, at most 0.8 of it at f = 2",
                lambda part: part,
            ),
            *_findings(
                "b",
                waits,
                "the latency of Mixed is very close to Ideal's, whatever f; rule: at most 1 / 0.9 "
                "of it, at each f",
                "Readj's latency is low for small f only; rule: at most 1 / 0.9 of Mixed's up to f "
                "= 0.5, at least 1 / 0.8 of it at f = 2",
                lambda part: 1 / part,
            ),
        ],
    )


def _curves(found: Mapping[str, list[list[Ran]]], figure: str) -> dict[str, Curve]:
    return {
        name: Curve(np.array([[getattr(one, figure) for one in runs] for runs in some]))
        for name, some in found.items()
    }


def _frames(fluctuation: float, seed: int) -> list[Frame]:
    load = Workload(keys=KEYS, zipf=0.85, fluctuation=fluctuation, seed=seed)
    # As the engine hashes numbers, so that it is the loads of its instances that fluctuate.
    numbers = np.argsort(hash_columns([pa.array(np.arange(KEYS))]))
    rng = np.random.default_rng(seed)
    keys = [
        pa.array(rng.choice(numbers, ROWS, p=loads / loads.sum()))
        for _, loads in islice(load.intervals(Ring(INSTANCES)), CHANGES)
        for _ in range(STEADY)
    ]
    return stored(keys)


_LATE = (
    "a change is seen in one interval and met by a plan in the next, so of eight intervals one "
    "runs as under hashing; and within theta = 0.08 no plan is due"
)


_READJ = (
    "Readj finds the best exchange by search here, so its plans take some 0.1 s and not minutes, "
    "and lead to loads that are as even as Mixed's"
)


def _findings(
    letter: str,
    curves: Mapping[str, Curve],
    of_mixed: str,
    of_readj: str,
    goodness: Callable[[Floats], Floats],
) -> list[Finding]:
    """Two statements on throughputs or latencies; `goodness` of a part is greater if it is good."""
    near = curves["Mixed"].mean / curves["Ideal"].mean
    readj = curves["Readj"].mean / curves["Mixed"].mean
    return [
        Finding(
            f"figure 13{letter}",
            of_mixed,
            f"{listed(FLUCTUATIONS, near, '.2f')} of Ideal's (f)",
            bool((goodness(near) >= NEAR).all()),
            _LATE,
        ),
        Finding(
            f"figure 13{letter}",
            of_readj,
            f"{listed(FLUCTUATIONS, readj, '.2f')} of Mixed's (f)",
            bool((goodness(readj[:2]) >= NEAR).all() and goodness(readj[-1]) <= FAR),
            _READJ,
        ),
    ]


FIGURE = Figure(
    "000-13",
    "Throughput and latency over the fluctuation of loads",
    f"The engine, in one process, on 15 tasks with an emulated clock: 1 ms of work for a tuple and "
    f"for a tuple that moves, and the planner's seconds. 10,000 keys, Zipf 0.85, theta = 0.08, "
    f"w = 5, consistent hashing, {CHANGES} loads of {STEADY} intervals of 75,000 tuples (5 s of "
    f"Ideal). Ideal: tasks share tuples evenly; Storm: hashing. Means of {len(SEEDS)} runs",
    2,
    make,
)
