"""`python -m benchmarks.spread`: the backups of a home at one instance, or over several (`ftlb`).

All figures are counts of tuples, so every run has the same. Two things are counted. In a run of the
engine without Spark (joinengine.lab.inline), single instances are lost one after another, each once
the copies of the one before are there again; the batch of a loss then waits for the instance that
joins most tuples. And planners are replayed over loads that are dealt anew in each interval, as in
figure 8 of the paper (benchmarks.papers.figures.p004_08).
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median

import click
import numpy as np

from benchmarks.papers.losses import INSTANCES, fatal_pairs, frame
from joinengine.balancing.costs import Load
from joinengine.driver.records import OperatorRecord
from joinengine.driver.settings import Settings
from joinengine.lab.emulation.emulating import Emulation
from joinengine.lab.inline import inline_runs
from joinengine.lab.inline.inline_runs import Frame
from joinengine.lab.inline.two_way import LEFT, RIGHT, Input, two_way
from joinengine.lab.simulation.planning import Sizes, replay
from joinengine.lab.simulation.workload import Workload
from joinengine.layouts import Ftlb
from joinengine.model.conditions import equi

SPREADS: tuple[int | str, ...] = (1, 2, 3, 4, "all")
KEYS, ZIPF, BATCHES = 10_000, 0.85, 35
#: Tuples of a batch on each side.
ROWS = 20_000, 400
#: Batch -> the instance that loses its state before it.
LOSSES = {4 * (1 + one): (one,) for one in range(INSTANCES)}
SEEDS = range(1, 6)
HEADS = "spread", "fatal pairs", "batch", "after a loss", "moved %", "left"
_TABLE = "{:>6} {:>11} {:>6} {:>12} {:>8} {:>6}"


@click.command()
def main() -> None:
    """Print a table, with a line for each spread.

    fatal pairs: of all pairs of instances those whose loss at once takes keys along. batch, after a
    loss: what the busiest instance joins, times the mean, in a median batch without a loss and with
    one. moved: of the state, by the plans of an interval. left: greatest load / mean - 1.
    """
    print(_TABLE.format(*HEADS), flush=True)
    frames = list(_frames())
    for spread in SPREADS:
        choice = Ftlb(spread=spread)
        settings = Settings(trial=Emulation(losses=LOSSES), load=Load.TUPLES)
        query = two_way((Input(LEFT), Input(RIGHT)), equi("lk", "rk"), instances=INSTANCES)
        records = inline_runs.run(query, choice, frames, settings=settings)
        levels = [_busiest(record.joins[0]) for record in records]
        usual = [one for batch, one in enumerate(levels[2:], start=2) if batch not in LOSSES]
        moved, left = _planned(spread)
        figures = (
            *(f"{median(some):.2f}" for some in (usual, [levels[batch] for batch in LOSSES])),
            *(f"{100 * moved:.2f}", f"{left:.3f}"),
        )
        pairs = "{} of {}".format(*fatal_pairs(choice))
        print(_TABLE.format(str(spread), pairs, *figures), flush=True)


def _frames() -> Iterator[Frame]:
    """Batches of a left side with skewed keys, and a right side with even ones."""
    rng = np.random.default_rng(1)
    weights = np.arange(1, KEYS + 1) ** -ZIPF
    for _ in range(BATCHES):
        left = rng.choice(KEYS, ROWS[0], p=weights / weights.sum())
        yield frame((left, rng.integers(0, KEYS, ROWS[1])))


def _busiest(record: OperatorRecord) -> float:
    """The most tuples that an instance has stored as a home, over the mean."""
    joined = np.array(record.work.stored) - np.array(record.work.backed)
    return float(joined.max() / joined.mean())


def _planned(spread: int | str) -> tuple[float, float]:
    """The part of the state that plans move in an interval, and the imbalance that they leave."""
    choice = Ftlb(imbalance=0.08, spread=spread)
    streams = [Workload(keys=KEYS, zipf=ZIPF, fluctuation=1.0, seed=seed) for seed in SEEDS]
    means = [replay(choice, stream, Sizes(15, 12, 5))["mean"] for stream in streams]
    moved, left = (
        fmean(one[name] for one in means) for name in ("migration_cost", "imbalance_after")
    )
    return moved, left


if __name__ == "__main__":
    main()
