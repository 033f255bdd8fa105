"""Fang et al., World Wide Web 2019, figure 10: throughput over the fluctuation of loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding
from benchmarks.papers.losses import (
    BACKUP_PART,
    BATCHES,
    INSTANCES,
    KEYS,
    LOSSES,
    ROWS,
    STEADY,
    TIMEOUT_BATCHES,
    TIMEOUT_S,
    WORK_S,
    Ran,
    Setting,
    rates,
    run,
    skewed,
)
from joinengine.layouts import Ftlb, Hash, Mixed, Readj
from joinengine.model.recovery import Recovery

FLUCTUATIONS, SEEDS = (0.0, 0.5, 1.0, 2.0), 2
COSTLY, SPREAD, STORE = "FTLB, replicas cost", "FTLB, replicas cost, spread", "Mixed, store"
METHODS = {
    "FTLB": Setting(Ftlb(backup_work=0.0, spread=1), costs=False),
    COSTLY: Setting(Ftlb(backup_work=BACKUP_PART, spread=1)),
    SPREAD: Setting(Ftlb(backup_work=BACKUP_PART, spread="all")),
    "Mixed": Setting(Mixed(intervals=1)),
    "Readj": Setting(Readj(intervals=1)),
    "Storm": Setting(Hash()),
}
OTHERS = ("Mixed", "Readj", "Storm")
Runs = Mapping[str, Mapping[float, Sequence[Ran]]]


def make(say: Callable[[str], None]) -> Made:
    """Run all methods over each fluctuation, without and with failures."""
    ideal = [run(skewed(0.0, 0.0, seed), Setting(Hash())) for seed in range(SEEDS)]
    whole = {"Ideal": dict.fromkeys(FLUCTUATIONS, ideal)}
    failing = {"Ideal": dict.fromkeys(FLUCTUATIONS, ideal)}
    for f in FLUCTUATIONS:
        say(f"f = {f:g}")
        streams = [skewed(0.85, f, seed) for seed in range(SEEDS)]
        for name, setting in METHODS.items():
            whole.setdefault(name, {})[f] = [run(frames, setting) for frames in streams]
        for name, setting in _failing().items():
            runs = failing.setdefault(name, {})[f] = [run(frames, setting) for frames in streams]
            usual = whole["Storm"][f]
            assert [one.results for one in runs] == [one.results for one in usual]
    return Made(_panels(whole, failing), [*_without(whole), *_with(failing)])


def _failing() -> dict[str, Setting]:
    found = {
        name: replace(setting, losses=LOSSES, way=Recovery.STORE, timeout_s=TIMEOUT_S)
        if name in OTHERS
        else replace(setting, losses=LOSSES)
        for name, setting in METHODS.items()
    }
    return found | {STORE: replace(METHODS["Mixed"], losses=LOSSES, way=Recovery.STORE)}


def _panels(whole: Runs, failing: Runs) -> list[Panel]:
    panels = [
        Panel.over(
            letter,
            "fluctuation f",
            "tuples a second",
            FLUCTUATIONS,
            {name: [rates(runs) for runs in by_f.values()] for name, by_f in found.items()},
        )
        for letter, found in (("a", whole), ("b", failing))
    ]
    over = {name: by_f[1.0][0].over_time() for name, by_f in failing.items()}
    axes = (("b-rate", "tuples a second"), ("b-latency", "latency of a batch (s)"))
    return panels + [
        Panel(letter, "seconds, f = 1", what, {name: points[at] for name, points in over.items()})
        for at, (letter, what) in enumerate(axes)
    ]


def _without(whole: Runs) -> list[Finding]:
    stated = (
        "without a failure FTLB is a little below Mixed, and above hashing (Storm){}; rule: 0.8 to "
        "1 of Mixed, and more than hashing, at each f"
    )
    rows = (
        (
            "FTLB",
            "",
            "backups cost nothing, neither planners nor instances; at f = 0 FTLB leaves loads as "
            "hashing does, and Mixed levels them",
        ),
        (
            COSTLY,
            ", if storing a replica costs half of joining a tuple",
            "all instances then do 1.5 times the work of Mixed's on as many machines",
        ),
        (SPREAD, ", the same, with the replicas of a task's keys at all others", ""),
    )
    return [
        Finding(
            "figure 10a",
            stated.format(how),
            _listed(whole, ("Ideal", name, *OTHERS)),
            all(
                0.8 <= rates(whole[name][f]) / rates(whole["Mixed"][f]) <= 1
                and rates(whole[name][f]) > rates(whole["Storm"][f])
                for f in FLUCTUATIONS
            ),
            reading,
        )
        for name, how, reading in rows
    ]


def _with(failing: Runs) -> list[Finding]:
    stated = "with failures FTLB has the best throughput{}; rule: at each f"
    rows = (
        (
            "FTLB",
            "",
            OTHERS,
            "the others wait for a time-out and send the batch again; FTLB pays for the neighbour "
            "of a lost task, which works for two until the copies are there again",
        ),
        (COSTLY, ", if storing a replica costs half of joining a tuple", OTHERS, ""),
        (SPREAD, ", the same, with the replicas of a task's keys at all others", OTHERS, ""),
        (
            "FTLB",
            ", compared with Mixed that reads its state again from a store",
            (STORE,),
            "joinengine's own way without copies: a loss is noticed at once, and the state is back "
            "in 50 ms and 10 ms a MB",
        ),
    )
    return [
        Finding(
            "figure 10b",
            stated.format(how),
            _listed(failing, (name, *others)),
            all(
                rates(failing[name][f]) > max(rates(failing[other][f]) for other in others)
                for f in FLUCTUATIONS
            ),
            reading,
        )
        for name, how, others, reading in rows
    ]


def _listed(runs: Runs, names: Sequence[str]) -> str:
    lines = list[str]()
    for f in FLUCTUATIONS:
        each = ", ".join(f"{name} {rates(runs[name][f]) / 1e3:.1f}" for name in names)
        lines.append(f"f = {f:g}: {each}")
    return f"thousand tuples/s, {'; '.join(lines)}"


FIGURE = Figure(
    "004-10",
    "Throughput over the fluctuation of loads, without and with failures",
    f"A join instead of TopK, of {ROWS:,} tuples a batch and {KEYS:,} keys, z = 0.85, on "
    f"{INSTANCES} instances; loads change by f means every {STEADY} of {BATCHES} batches; means of "
    f"{SEEDS} streams. Emulated: {1e6 * WORK_S:g} us a tuple (paper: 1 ms). Failures: instances "
    f"1 and 4 lose their state before batches 7 and 13. Time-out: {TIMEOUT_BATCHES} level batches, "
    "as Storm's 30 s are three of the paper's intervals. Ideal: as many tuples of keys that are "
    "all alike, without failures",
    4.5,
    make,
)
