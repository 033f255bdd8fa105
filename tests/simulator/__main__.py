"""`make chaos`: thousands of seeds, a summary, and what zero failures mean.

python -m tests.simulator --seeds 5000
python -m tests.simulator --seed 4711 --trace 60
python -m tests.simulator --bug "no nonce" --seeds 400
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.simulator.bugs import BUGS
from tests.simulator.scheduler import describe
from tests.simulator.trial import play

console = Console(soft_wrap=True)
#: Seeds that have failed once, each with what it was: tests play them again.
REGRESSIONS = Path(__file__).with_name("regressions.txt")


@click.command(help=__doc__.replace("\n\n    python", "\n\n\b\n    python"))
@click.option("--seeds", default=5000, show_default=True, help="So many, from --first on.")
@click.option("--first", default=0, show_default=True)
@click.option("--seed", type=int, help="This one alone, again.")
@click.option("--trace", default=40, show_default=True, help="Of one seed: its last steps.")
@click.option("--bug", type=click.Choice(list(BUGS)), help="With this bug planted.")
@click.option("--processes", default=2, show_default=True)
def main(seeds: int, first: int, seed: int | None, trace: int, bug: str | None, processes: int):
    """Play seeds; exit code 1 if one fails."""
    if seed is not None:
        raise SystemExit(_again(seed, trace, bug))
    start, told, failed = time.monotonic(), list[Counter](), list[tuple[int, str]]()
    with ProcessPoolExecutor(processes) as pool:
        found = pool.map(partial(outcome, bug=bug), range(first, first + seeds), chunksize=8)
        for number, (counts, error) in enumerate(
            track(found, "seeds", total=seeds, console=console), start=first
        ):
            told.append(counts)
            if error is not None:
                failed.append((number, error))
                console.print(f"seed {number}: {error}")
                console.print(f"    python -m tests.simulator --seed {number}", style="bold")
    console.print(_summary(sum(told, Counter())))
    seconds = time.monotonic() - start
    if failed and bug is None:
        _file(failed)
    if failed:
        console.print(f"{len(failed):,} of {seeds:,} seeds failed, in {seconds:.0f} s")
        raise SystemExit(1)
    console.print(
        f"{seeds:,} seeds in {seconds:.0f} s, none failed: at 95 % confidence a seed fails with a "
        f"probability below {3 / seeds:.2g} (3 / n)"
    )


def outcome(seed: int, bug: str | None = None) -> tuple[Counter, str | None]:
    """What happened in the trial of a seed, and what was wrong; None: nothing."""
    with _quietly(), nullcontext() if bug is None else BUGS[bug]():
        try:
            return play(seed).told(), None
        except Exception as error:
            return error.trial.told(), describe(error)


@contextmanager
def _quietly():
    """The engine's warnings of takeovers and losses are not printed meanwhile."""
    log = logging.getLogger("joinengine")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _again(seed: int, trace: int, bug: str | None) -> int:
    """One seed with its last steps; 1 if it fails."""
    with _quietly(), nullcontext() if bug is None else BUGS[bug]():
        try:
            trial, error = play(seed), None
        except Exception as raised:
            trial, error = raised.trial, raised
    case = trial.case
    console.print(
        f"{case.program}, {case.how} join, {'a window' if case.window else 'the full history'}, "
        f"layout {case.layout} on {case.instances} instances, exchange {case.exchange}, "
        f"faults: {', '.join(case.faults)}, {len(case.schedule)} wishes, ghosts {case.ghosts}"
    )
    for line in list(trial.scheduler.trace)[-trace:]:
        console.print(line, markup=False, highlight=False)
    console.print(f"{trial.scheduler.steps} steps, trace {trial.scheduler.digest:08x}")
    console.print("it holds" if error is None else f"it fails: {describe(error)}", markup=False)
    return 0 if error is None else 1


def _file(failed: list[tuple[int, str]]) -> None:
    """Keep the seeds that failed, so that tests play them again."""
    with REGRESSIONS.open("a") as file:
        for seed, error in failed:
            file.write(f"{seed} {error}\n")
    console.print(f"filed in {REGRESSIONS.name}")


def _summary(counts: Counter) -> Table:
    table = Table(title="what happened", box=None, title_justify="left")
    table.add_column("")
    table.add_column("times", justify="right")
    for name, times in counts.items():
        table.add_row(name, f"{times:,}")
    return table


if __name__ == "__main__":
    main()
