"""Gathers rows of several runs at once, for a merge or for a search.

Why: runs that were sealed together lie on one page. If a few rows of each of many runs are needed,
they are taken from the page in one step; run by run, it would cost some microseconds a column.

Law: runs stay in order, and so do the rows of a run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Exclusions, Ints
from joinengine.kernels.seating import Parts, Stretch, seated_order
from joinengine.state.run import OpenRun, Run
from joinengine.state.run_file import Page


class Sheet(NamedTuple):
    """The runs of a team that lie on one page and have one layout version.

    `parts`: the rows of each run, with the seat of its instance. `gone`: the excluded rows. `span`:
    the least and the greatest time of its runs; None: not known.
    """

    version: int
    page: Page
    parts: Parts
    gone: Exclusions | None
    span: tuple[int, int] | None

    @property
    def stretch(self) -> Stretch:
        """The arguments of a search: words, parts and excluded rows."""
        return self.page.words, self.parts, self.gone


def sheets_of(spines: Sequence[Iterable[OpenRun]]) -> list[Sheet]:
    """The runs of a team as sheets; `spines`: in the order of its seats."""
    layers = defaultdict[tuple[int, int, int], list[tuple[int, OpenRun]]](list)
    for seat, spine in enumerate(spines):
        for run in spine:
            page, layer = id(run.page), 0
            # An instance may have two runs on a page, but a sheet has only one run of each.
            while (runs := layers[page, run.run.version, layer]) and runs[-1][0] == seat:
                layer += 1
            runs.append((seat, run))
    return [_sheet(version, runs_there) for (_, version, _), runs_there in layers.items()]


def _sheet(version: int, runs: Sequence[tuple[int, OpenRun]]) -> Sheet:
    starts = np.array([run.start for _, run in runs])
    stops = starts + np.array([run.run.rows for _, run in runs])
    gone = [(run.start, run.gone) for _, run in runs if run.gone is not None]
    parts = Parts(np.array([seat for seat, _ in runs]), starts, stops)
    return Sheet(
        version, runs[0][1].page, parts, _united(gone), _span([run.run for _, run in runs])
    )


def _span(runs: Sequence[Run]) -> tuple[int, int] | None:
    """The least and the greatest time of some runs; None: not known for some run."""
    first = [run.min_time for run in runs if run.min_time is not None]
    last = [run.max_time for run in runs if run.max_time is not None]
    return (min(first), max(last)) if len(first) == len(last) == len(runs) else None


def _united(gone: Sequence[tuple[int, Exclusions]]) -> Exclusions | None:
    """The exclusions of a page from those of its runs; `gone`: (first row of a run, exclusions)."""
    if not gone:
        return None
    if len(gone) == 1 and gone[0][0] == 0:
        return gone[0][1]
    starts = np.concatenate([start + exclusions.starts for start, exclusions in gone])
    stops = np.concatenate([start + exclusions.stops for start, exclusions in gone])
    shifts = np.concatenate([[0], np.cumsum(stops - starts)])
    return Exclusions(starts, stops, np.concatenate([[0], stops]) - shifts, shifts)


def gathered(
    inputs: Sequence[Sequence[OpenRun]], rows: Sequence[Sequence[Ints]]
) -> tuple[Page, Ints]:
    """The chosen rows of the runs of several groups, and (n,) the group of each row.

    `rows[i][j]`: the rows chosen of run `inputs[i][j]` of group i, in order.
    """
    pages = dict[int, Page]()
    rows_by_page = defaultdict[int, list[Ints]](list)
    numbers = defaultdict[int, list[int]](list)
    for number, (group, chosen) in enumerate(zip(inputs, rows, strict=True)):
        for run, run_rows in zip(group, chosen, strict=True):
            key = id(run.page)
            pages[key] = run.page
            rows_by_page[key].append(run_rows + run.start if run.start else run_rows)
            numbers[key].append(number)
    words, columns, groups = list[Words](), list[pa.RecordBatch](), list[Ints]()
    for key, page in pages.items():
        all_rows = np.concatenate(rows_by_page[key])
        words.append(page.words[all_rows])
        columns.append(page.columns.take(pa.array(all_rows)))
        groups.append(np.repeat(numbers[key], [len(of_run) for of_run in rows_by_page[key]]))
    return Page(np.concatenate(words), pa.concat_batches(columns)), np.concatenate(groups)


def merged_order(words: Words, groups: Ints, n_groups: int) -> NDArray[np.intp]:
    """(n,) words of sorted runs, (n,) groups -> (n,) the order that sorts by group and word."""
    if n_groups == 1:
        # A stable sort is a merge sort, which is fastest on concatenated sorted inputs.
        return np.argsort(words, kind="stable")
    return seated_order(words, groups.astype(np.uint16))
