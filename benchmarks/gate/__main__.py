"""`make bench-gate`: whether the tree is slower than the version that it comes from.

Both versions run on the same machine in alternation, each time in a process of its own, and in the
other order in every other round. Ratios of medians are compared (`benchmarks.gate.verdict`). The
base is the commit where this branch left the main branch; on that commit, the one before it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.gate.verdict import FEWEST, LIMIT, Compared, compared
from benchmarks.keeping import ROOT, append, commit, folder
from joinengine.lab.comparison.provenance import made_by
from joinengine.lab.comparison.tables import figures_table

MAIN = "main"
#: Version -> measure -> the seconds of each round.
Rounds = Mapping[str, Sequence[Mapping[str, float]]]
console = Console(soft_wrap=True, width=120)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/bench"))
@click.option("--base", default="", help="A revision. [default: where this branch left main]")
@click.option("--rounds", default=9, show_default=True, help="At most so many of each version.")
@click.option("--minutes", default=9.0, show_default=True, help="No round begins that ends later.")
def main(out: Path, base: str, rounds: int, minutes: float) -> None:
    """Measure both versions; fail if this tree is slower."""
    against = _git("rev-parse", "--short=7", f"{base or base_of()}^{{commit}}")
    place = folder(out, commit())
    console.print(
        f"gate: {commit()} beside {against}; at most {rounds} rounds, {minutes:g} minutes"
    )
    with _checked_out(against) as tree:
        by_version = _measured(
            {"base": tree, "now": ROOT}, place / "gate.jsonl", rounds, minutes * 60
        )
    comparisons = verdicts(by_version)
    with (place / "gate.txt").open("w") as file:
        for printed in (console, Console(file=file, width=120)):
            printed.print(_table(comparisons, against, len(by_version["now"])))
    console.print(f"figures: {place / 'gate.jsonl'}, table: {place / 'gate.txt'}")
    slower = [comparison.measure for comparison in comparisons if comparison.is_slower]
    if slower:
        raise click.ClickException(
            f"slower than {against} by more than {LIMIT - 1:.0%} and the noise: {', '.join(slower)}"
        )


def base_of() -> str:
    """The commit to compare with, unless one is named."""
    head = _git("rev-parse", "HEAD")
    fork = _git("merge-base", "HEAD", MAIN)
    return f"{head}~1" if fork == head else fork


def verdicts(by_version: Rounds) -> list[Compared]:
    """Of each measure that both versions have; raises ClickException for too few rounds."""
    if len(by_version["now"]) < FEWEST:
        raise click.ClickException(
            f"{len(by_version['now'])} rounds of each version were over in time, "
            f"and a verdict needs {FEWEST}; give --minutes more"
        )
    both = [name for name in by_version["now"][0] if name in by_version["base"][0]]
    return [
        compared(
            name,
            *([seconds[name] for seconds in by_version[version]] for version in ("base", "now")),
        )
        for name in both
    ]


def _measured(trees: Mapping[str, Path], path: Path, rounds: int, most_s: float) -> Rounds:
    """The rounds of each version; the file has a line for each as soon as it is known."""
    path.unlink(missing_ok=True)
    append(path, {"made_by": made_by()})
    by_version: dict[str, list[dict[str, float]]] = {version: [] for version in trees}
    begin, longest_s = time.monotonic(), 0.0
    for number in range(rounds):
        start = time.monotonic()
        if start - begin + longest_s > most_s:
            break
        for version in list(trees)[:: -1 if number % 2 else 1]:
            seconds = _seconds(trees[version])
            by_version[version].append(seconds)
            line = {"round": number, "version": version, "commit": commit(trees[version])}
            append(path, line | {"seconds": seconds})
        longest_s = max(longest_s, time.monotonic() - start)
        console.print(f"gate: round {number + 1} took {time.monotonic() - start:.0f} s")
    return by_version


def _seconds(tree: Path) -> dict[str, float]:
    """Measure -> seconds of processor time, of one process over a tree."""
    script = Path(__file__).with_name("measuring.py")
    with tempfile.TemporaryDirectory() as passing:
        done = subprocess.run(
            [sys.executable, "-P", str(script), passing],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise click.ClickException(f"{tree} cannot be measured:\n{done.stderr[-3000:]}")
    output = json.loads(done.stdout.splitlines()[-1])
    if Path(output["tree"]) != tree:
        raise click.ClickException(f"asked for {tree}, but {output['tree']} was measured")
    return dict(output["seconds"])


@contextmanager
def _checked_out(revision: str) -> Iterator[Path]:
    """A tree of a revision, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="joinengine-gate-") as passing:
        tree = Path(passing).resolve() / "base"
        _git("worktree", "add", "--quiet", "--detach", str(tree), revision)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> str:
    """What git prints. Raises ClickException with git's own words."""
    command = ["git", "-C", str(ROOT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(
            f"{done.stderr.strip()}; name the version to compare with: make bench-gate BASE=rev"
        )
    return done.stdout.strip()


def _table(comparisons: Sequence[Compared], against: str, rounds: int) -> Table:
    title = f"ms of processor time, medians of {rounds} rounds; limit {LIMIT:g} beyond the spread"
    columns = "measure", against, "now", "ratio", "spread", ""
    table = figures_table(columns, title, words=("measure", ""))
    for comparison in sorted(comparisons, key=lambda comparison: -comparison.ratio):
        table.add_row(
            comparison.measure,
            *(f"{1e3 * seconds:,.2f}" for seconds in (comparison.base_s, comparison.now_s)),
            *(f"{comparison.ratio:.3f}", f"{comparison.spread:.3f}", comparison.words),
            style="red" if comparison.is_slower else "",
        )
    return table


if __name__ == "__main__":
    main()
