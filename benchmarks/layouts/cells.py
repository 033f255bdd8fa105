"""The cells of `make bench` and `make bench-full`: a part, a case of it, and a layout.

The full parts have the largest scale for whose streams there is room on the disk. Nothing is
emulated there but the speed of the store from which lost state is read again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from joinengine.lab.queries import Options, Query, find
from joinengine.lab.queries.named_query import Events, check
from joinengine.lab.simulation.planner_runs import SLOW
from joinengine.layouts import LAYOUTS
from joinengine.model.errors import InvalidRequest

Say = Callable[[str], None]

SKEWS = (0.0, 0.8, 1.5)
#: Of `make bench`: query -> TPC-H scale, and rows of each of its eight batches.
SMALL = {"eq5": (0.02, 15_200), "bnci": (0.02, 15_100)}
#: QUICK: the baseline, and one layout of each kind. QUICK_FULL: for a full run of two minutes.
QUICK = ("hash", "mixed", "mnrt", "w-choices", "dynamic", "bi-k", "auto")
QUICK_FULL = ("hash", "mnrt", "auto")
#: TPC-H scales of a full run, the largest first; of a quick one; GB that streams take at scale 1.
SCALES, QUICK_SCALE, STREAMS_GB = (1.0, 0.5, 0.2, 0.1), 0.01, 8.0
#: Rows of a batch at scale 1: some twelve batches of lineitem.
BATCH_ROWS = 500_000
#: (query, skew) -> the greatest scale: the hottest key alone would have billions of pairs at 1.
MOST_SCALE = {("bnci", 1.5): 0.05}
#: Batches before which a join grows to so many instances, and one loses its state.
GROWTH, LOSS = (4, 16), (6, 3)


@dataclass(frozen=True)
class Cell:
    """One combination that is run, validated, and repeated."""

    part: str
    case: str
    query: Query
    options: Options

    @property
    def layout(self) -> str:
        """The name of the layout, with settings that are not the default."""
        return self.options.layout.label

    def __str__(self) -> str:
        return f"{self.part}, {self.case}, {self.layout}"


def small(name: str, base: Options, *, quick: bool, say: Say) -> list[Cell]:
    """The cells of a query of `make bench`; `base`: without skew and layout."""
    query = find(name)
    return [
        cell
        for z in SKEWS
        for cell in served(
            name, f"z={z:g}", query, replace(base, zipf=z), QUICK if quick else LAYOUTS, say
        )
    ]


def full(scale: float, instances: int, *, quick: bool, say: Say) -> list[Cell]:
    """The cells of `make bench-full`."""
    layouts = QUICK_FULL if quick else [name for name in LAYOUTS if name not in SLOW]
    found = list[Cell]()
    for part, name, z, change in _full_parts(quick=quick):
        size = min(scale, MOST_SCALE.get((name, z), scale))
        base = Options(
            scale=size, zipf=z, interval_rows=round(BATCH_ROWS * size), instances=instances
        )
        case = f"sf={size:g} z={z:g} n={instances}"
        found += map(change, served(part, case, find(name), base, layouts, say))
    return found


def served(
    part: str, case: str, query: Query, base: Options, layouts: Iterable[str], say: Say
) -> Iterator[Cell]:
    """The cells of the layouts that serve a query; the others are named."""
    for name in layouts:
        try:
            options = replace(base, layout=LAYOUTS[name]())
            check(query, options)
        except InvalidRequest as error:
            say(f"{part} {case} {name}: left out: {error}")
        else:
            yield Cell(part, case, query, options)


def scale_for(folder: Path, say: Say) -> float:
    """The largest scale for whose streams the disk of a folder has room."""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    free_gb = shutil.disk_usage(there).free / 1e9
    scale = next((one for one in SCALES if one * STREAMS_GB < free_gb), SCALES[-1])
    if scale < SCALES[0]:
        say(f"{free_gb:.0f} GB are free, so the scale is {scale:g} instead of {SCALES[0]:g}")
    return scale


def _full_parts(*, quick: bool) -> Sequence[tuple[str, str, float, Callable[[Cell], Cell]]]:
    """Part, query, skew, and what else is asked of a cell."""
    skews = SKEWS[-1:] if quick else SKEWS
    return (
        *((name, name, z, _as_is) for name in SMALL for z in skews),
        ("q5-shifts", "q5", 0.8, _as_is),  # other keys are hot after each quarter
        ("growth", "eq5", 0.8, _grown),
        ("loss", "eq5", 0.8, _lost),
    )


def _as_is(cell: Cell) -> Cell:
    return cell


def _grown(cell: Cell) -> Cell:
    batch, instances = GROWTH
    return replace(
        cell, options=replace(cell.options, events=Events(relayouts=((batch, None, instances),)))
    )


def _lost(cell: Cell) -> Cell:
    """The cell with a loss: recovered from copies if the layout keeps some, else from a store."""
    options = replace(cell.options, events=Events(losses=(LOSS,)))
    copies = options.layout.copying is not None
    return replace(cell, options=options if copies else options.under(recovery="store"))
