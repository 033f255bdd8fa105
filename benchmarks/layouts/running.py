"""Runs cells in a shuffled order, several times each, and validates them; skips runs already done.

Why shuffled: a slow hour of the machine should not hit one layout alone. The order follows from the
seed, and each cell runs once before any runs twice.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.keeping import append, lines
from benchmarks.layouts.cells import Cell
from joinengine.lab.queries.runs import Places, run
from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import in_a_line

#: A run of a cell: what was run, how long it took with its validation, and its `report`; in its
#: place `refused`, the words with which joinengine refuses the cell, or `failed`, an error's.
Line = dict[str, Any]


class Plan(NamedTuple):
    """How often each cell runs, and the seed of the order."""

    repeat: int
    seed: int

    def order(self, cells: Sequence[Cell]) -> list[tuple[int, Cell]]:
        """All runs: each repeat has all cells, in an order of its own."""
        found = list[tuple[int, Cell]]()
        for number in range(self.repeat):
            some = list(cells)
            random.Random(f"{self.seed} {number}").shuffle(some)
            found += [(number, cell) for cell in some]
        return found


def run_all(
    spark: Any, cells: Sequence[Cell], path: Path, plan: Plan, console: Console
) -> list[Line]:
    """The lines of all runs, in the order of the cells; `path` has each as soon as it is known.

    Runs that the file has are not run again, unless they failed.
    """
    order = plan.order(cells)
    known = {line["run"]: line for line in lines(path)}
    due = [one for one in order if "failed" in known.get(_name(*one), {"failed": None})]
    if len(due) < len(order):
        console.print(f"{len(order) - len(due)} of {len(order)} runs are done, in {path}")
    for at, (number, cell) in enumerate(due):
        line = _ran(spark, number, cell)
        known[line["run"]] = line
        append(path, line)
        left = remaining_s([one for _, one in due[at + 1 :]], list(known.values()))
        done = len(order) - len(due) + at + 1
        console.print(
            f"{done} of {len(order)}: {line['run']}: {words(line)}; {_time(left)} left",
            style="red" if is_bad(line) else "",
            highlight=False,
        )
    names = [_name(number, cell) for cell in cells for number in range(plan.repeat)]
    return [known[name] for name in names]


def is_bad(line: Line) -> bool:
    """Whether a run was neither valid nor refused."""
    return "failed" in line or ("report" in line and line["report"]["valid"] is not True)


def words(line: Line) -> str:
    """The outcome of a run in words."""
    if "report" not in line:
        kind = "failed" if "failed" in line else "refused"
        return f"{kind}: {line[kind]}"
    report = line["report"]
    valid = {True: "valid", False: "NOT VALID", None: "NOT COMPARED"}[report["valid"]]
    return f"{report['elapsed_s']:.1f} s, {valid}"


def remaining_s(due: Sequence[Cell], known: Sequence[Line]) -> float:
    """Seconds that the due runs may take, each as long as the median run of its part."""
    if not known:
        return 0.0
    took = dict[str, list[float]]()
    for line in known:
        took.setdefault(line["part"], []).append(line["took_s"])
    usual = median(line["took_s"] for line in known)
    return sum(median(took.get(cell.part, [usual])) for cell in due)


def _ran(spark: Any, number: int, cell: Cell) -> Line:
    start = time.perf_counter()
    found: dict[str, Any]
    try:
        found = {"report": run(spark, cell.query, cell.options, Places(), validate=True)}
    except InvalidRequest as error:
        found = {"refused": str(error)}
    except Exception as error:  # the other cells still run, and the command fails
        found = {"failed": f"{type(error).__name__}: {in_a_line(error)}"}
    took_s = time.perf_counter() - start
    about = {"run": _name(number, cell), "part": cell.part, "case": cell.case}
    return about | {"layout": cell.layout, "repeat": number, "took_s": took_s} | found


def _name(number: int, cell: Cell) -> str:
    """A name for a cell; cells with other options, such as instances, have other names."""
    options = hashlib.sha256(repr(cell.options).encode()).hexdigest()[:6]
    return f"{cell}, options {options}, run {number + 1}"


def _time(seconds: float) -> str:
    """In words.

    >>> _time(40.2), _time(300), _time(9000)
    ('40 s', '5 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
