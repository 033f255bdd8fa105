"""Fang et al., World Wide Web 2019: statements without a figure, and where replicas best lie."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding
from benchmarks.papers.losses import BACKUP_PART, LOSSES, Setting, fatal_pairs, rates, run, skewed
from joinengine.lab.simulation.planning import NUMBER_BYTES, Sizes, replay
from joinengine.lab.simulation.workload import Workload
from joinengine.layouts import Ftlb, Hash

SPREADS: tuple[int | str, ...] = (1, 2, 3, 4, "all")
SEEDS, FLUCTUATION = 4, 1.0


def make(say: Callable[[str], None]) -> Made:
    """Count reports, compare results after losses, and try each spread."""
    say("reports, and results after losses")
    findings = [reports(), results()]
    figures = dict[str, tuple[float, float, float, float]]()
    streams = [skewed(0.85, FLUCTUATION, seed) for seed in range(SEEDS)]
    for spread in SPREADS:
        say(f"spread {spread}")
        choice = Ftlb(backup_work=BACKUP_PART, spread=spread)
        runs = [run(frames, Setting(choice)) for frames in streams]
        lost = [run(frames, Setting(choice, losses=LOSSES)) for frames in streams]
        figures[str(spread)] = (
            rates(runs),
            rates(lost),
            fmean(one.recovered_s(whole) for one, whole in zip(lost, runs, strict=True)),
            float(fatal_pairs(choice)[0]),
        )
    names = {
        "rate": "tuples a second",
        "rate-losses": "tuples a second, two losses",
        "recovery": "recovery (s)",
        "fatal-pairs": "fatal pairs of 28",
    }
    panels = [
        Panel.over(
            letter,
            "tasks over which the replicas of one task's keys lie",
            name,
            figures,
            {"FTLB": [each[number] for each in figures.values()]},
        )
        for number, (letter, name) in enumerate(names.items())
    ]
    return Made(panels, [*findings, _spread(figures)])


def reports() -> Finding:
    """Section 4.2.3: what tasks report of 10^8 keys."""
    keys = 10_000
    stream = Workload(keys=keys, fluctuation=0.2, seed=1)
    sent = replay(Ftlb(), stream, Sizes(15, 12, 5))["statistics_bytes"]
    each = sent["raw"] / keys
    return Finding(
        "section 4.2.3",
        "tasks report 10^8 keys at 8 bytes: 800 MB",
        f"{each:.0f} bytes a key: its hash, tuples and state, {each * 1e8 / 1e6:,.0f} MB; in two "
        f"stages {sent['two_stage'] / sent['raw']:.2f} of that, as details follow only where a "
        "plan is due (f = 0.2, 12 intervals)",
        each == NUMBER_BYTES,
        "three numbers of 8 bytes for a key, not one",
    )


def results() -> Finding:
    """Figure 4: a replica that is ahead of the active copy, or behind it."""
    frames = skewed(0.85, FLUCTUATION, 0)
    whole = run(frames, Setting(Hash()))
    ways = {spread: run(frames, Setting(Ftlb(spread=spread), losses=LOSSES)) for spread in SPREADS}
    return Finding(
        "figure 4, section 3.2",
        "recovery is correct whether the replica is ahead of the active copy or behind it; rule: "
        "the results of all runs with losses are those of a run without",
        f"{whole.results[0]:,} results and their checksum, in {len(ways)} runs with two losses",
        whole.results[0] > 0 and {one.results for one in ways.values()} == {whole.results},
        "a batch is committed once all copies have its tuples, so none is ahead or behind",
    )


def _spread(figures: dict[str, tuple[float, float, float, float]]) -> Finding:
    lines = (
        f"{spread}: {whole / 1e3:.1f} and {lost / 1e3:.1f} thousand tuples/s without and with two "
        f"losses, recovery {recovery:.2f} s, {fatal:.0f} of 28 pairs fatal"
        for spread, (whole, lost, recovery, fatal) in figures.items()
    )
    return Finding(
        "sections 3.2, 4.1",
        "the text allows two readings: replicas at one next task, or spread over several",
        "; ".join(lines),
        None,
        f"f = {FLUCTUATION:g}, means of {SEEDS} streams; a pair is fatal if it holds all copies of "
        f"some key. Joinengine's default is 1: see the page on fault tolerance",
    )


FIGURE = Figure(
    "004-text",
    "Statements without a figure, and where replicas best lie",
    "As figure 10, f = 1, replicas that cost half of a tuple's work",
    2.5,
    make,
)
