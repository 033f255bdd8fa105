"""Merges the runs of the spines of one task, as far as its allowance goes.

Why: `joinengine.state.spine` says which runs of a spine to merge. The merges of several spines are
carried out together, so that many small merges cost little more than one.

Law: a merge neither loses nor doubles a row that is still needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.probing import Ints
from joinengine.model.keys import Side
from joinengine.state.gathering import gathered, merged_order
from joinengine.state.run import OpenRun, Run, excluded_rows
from joinengine.state.run_file import Page
from joinengine.state.sealing import Sealer
from joinengine.state.spine import MergeStep, cut_word, plan_merges
from joinengine.state.upkeep import Changes, Upkeep

#: The most rows of several merges that are gathered together.
MERGE_TOGETHER = 1 << 16

#: The runs of one spine, by name.
_Spine = dict[tuple[str, int], OpenRun]


@dataclass(frozen=True, slots=True)
class _Copy:
    """A step of a merge in the spine number `place`."""

    place: int
    step: MergeStep
    inputs: list[OpenRun]


def _batches(copies: Sequence[_Copy], most_bytes: int) -> Iterator[list[_Copy]]:
    """Batches of copies, each of at most MERGE_TOGETHER rows and `most_bytes`, or of one copy."""
    batch, part = list[_Copy](), 0.0
    for copy in copies:
        rows = sum(run.run.live for run in copy.inputs)
        size = sum(run.run.live_bytes for run in copy.inputs)
        more = max(rows / MERGE_TOGETHER, size / most_bytes)
        if batch and part + more > 1:
            yield batch
            batch, part = [], 0.0
        batch.append(copy)
        part += more
    if batch:
        yield batch


def _parts(chosen: Sequence[Ints], most: int) -> Iterator[list[Ints]]:
    """Rows of several runs, at most `most` of them at a time. If there are more, all have one word.

    For example, entries of watchers have one word if they close at the end of the same window. So
    their order does not matter.
    """
    while any(map(len, chosen)):
        part, left = list[Ints](), most
        for rows in chosen:
            part.append(rows[:left])
            left -= len(part[-1])
        yield part
        chosen = [rows[len(taken) :] for rows, taken in zip(chosen, part, strict=True)]


class Merger:
    """Merges the runs of a keeper, and notes the merges in `changes`."""

    def __init__(self, upkeep: Upkeep, sealer: Sealer, changes: Changes) -> None:
        self._upkeep = upkeep
        self._sealer = sealer
        self._changes = changes
        self._merge_rows = upkeep.merge_rows

    def merge(self, spines: Sequence[Sequence[OpenRun]], first: int = 0) -> list[list[OpenRun]]:
        """Merge runs of several spines, of ascending instances and one side; the spines after it.

        `first`: the spine that gets the allowance first.
        """
        after, whole = dict[int, _Spine](), list[_Copy]()
        for place in (*range(first, len(spines)), *range(first)):
            for step in self._steps(spines[place]):
                if place not in after:
                    after[place] = {run.run.ident: run for run in spines[place]}
                self._merge_rows -= self._merge_parts(place, step, after[place], whole)
        whole.sort(key=lambda copy: copy.place)
        for copies in _batches(whole, self._upkeep.gather_bytes):
            self._merge_whole(copies, after)
        merged = {
            place: [run for run in spine.values() if run.run.live] for place, spine in after.items()
        }
        return [merged.get(place, [*spine]) for place, spine in enumerate(spines)]

    def _steps(self, spine: Sequence[OpenRun]) -> Iterator[MergeStep]:
        if len(spine) < 2:
            return
        span = self._upkeep.shelf.span_us
        by_version = defaultdict[int, list[Run]](list)
        for run in spine:
            by_version[run.run.version].append(run.run)
        for _, runs in sorted(by_version.items()):
            if self._merge_rows > 0 and len(runs) > 1:
                yield from plan_merges(runs, self._merge_rows, span)

    def _merge_parts(self, place: int, step: MergeStep, spine: _Spine, whole: list[_Copy]) -> int:
        """Merge the part of a step that is too large to copy at once; put the rest into `whole`.

        Returns the number of rows, including the rest: at most what the step allows.
        """
        done = 0
        while True:
            inputs = [spine[run.ident] for run in step.inputs]
            rows = sum(run.run.live for run in inputs)
            limit = min(step.max_rows - done, self._room(inputs))
            if rows <= limit:
                whole.append(_Copy(place, step, inputs))
                return done + rows
            step = replace(step, group=self._group(step))
            done += self._merge_part(_Copy(place, step, inputs), limit, spine)
            left = [run for run in step.inputs if spine[run.ident].run.live]
            if done >= step.max_rows or not left:
                return done
            step = replace(step, inputs=tuple(left))

    def _room(self, inputs: Sequence[OpenRun]) -> int:
        """How many rows of `inputs` may be gathered at a time."""
        rows = sum(run.run.live for run in inputs)
        size = sum(run.run.live_bytes for run in inputs)
        return max(rows * self._upkeep.gather_bytes // max(size, 1), 1)

    def _merge_part(self, copy: _Copy, limit: int, spine: _Spine) -> int:
        """Copy the rows with the lowest words of the inputs into `spine`; returns their number."""
        live = [run.live_rows() for run in copy.inputs]
        words = [run.words[rows] for run, rows in zip(copy.inputs, live, strict=True)]
        cut = cut_word(words, limit)
        below = [len(w) if cut >> 64 else int(np.searchsorted(w, np.uint64(cut))) for w in words]
        group = self._group(copy.step)
        chosen = [rows[:n] for rows, n in zip(live, below, strict=True)]
        room = self._room(copy.inputs)
        is_wide = sum(map(len, live)) > room  # all pieces together would not fit into memory
        for part in _parts(chosen, room):
            self._copy([copy], [group], [part], [spine], own_file=is_wide)
        for run in copy.inputs:
            rest = run.run._replace(into=group).without([(0, cut)], run.words)
            gone = excluded_rows(run.words, rest.exclusions)
            spine[rest.ident] = run._replace(run=rest, gone=gone)
            self._changes.change(rest)
        return sum(below)

    def _merge_whole(self, copies: list[_Copy], spines: Mapping[int, _Spine]) -> None:
        """Copy all live rows of the inputs, those of each copy into one run."""
        groups = [self._group(copy.step) for copy in copies]
        chosen = [[run.live_rows() for run in copy.inputs] for copy in copies]
        self._copy(copies, groups, chosen, [spines[copy.place] for copy in copies])
        for copy in copies:
            for run in copy.inputs:
                del spines[copy.place][run.run.ident]
                self._changes.remove(run.run)

    def _group(self, step: MergeStep) -> int:
        """The merge group of a step: a new one, unless the merge is in progress."""
        return self._sealer.next_group() if step.group is None else step.group

    def _copy(
        self,
        copies: list[_Copy],
        groups: list[int],
        chosen: list[list[Ints]],
        spines: list[_Spine],
        *,
        own_file: bool = False,
    ) -> None:
        """Copy the chosen rows of the inputs of copies[i] into one run of spines[i].

        Rows that are no longer needed are left out. `own_file`: see `Keeper.seal`.
        """
        side = copies[0].inputs[0].run.side
        page, numbers = gathered([copy.inputs for copy in copies], chosen)
        kept = self._unexpired(side, page.columns)
        if kept is not None:
            page, numbers = self._only(page, numbers, kept)
        if not len(numbers):
            return
        order = merged_order(page.words, numbers, len(copies))
        page = Page(page.words[order], page.columns.take(pa.array(order)))
        reduced = self._upkeep.shelf.reduced(side, page, numbers[order], self._upkeep.watermark)
        if reduced is not None:
            columns, kept = reduced
            page, numbers = self._only(Page(page.words, columns), numbers[order], kept)
            if not len(numbers):  # all rows have cancelled each other
                return
        sizes = np.bincount(numbers, minlength=len(copies))
        filled = np.flatnonzero(sizes).tolist()
        instances = [copies[i].inputs[0].run.instance for i in filled]
        ends = np.concatenate([[0], np.cumsum(sizes[filled])])
        pieces = self._sealer.seal(instances, ends, side, page, None, own_file=own_file)
        for i, piece in zip(filled, pieces, strict=True):
            inputs = copies[i].inputs
            settled = [run.run.settled_time for run in inputs if run.run.settled_time is not None]
            run = piece.run._replace(
                version=inputs[0].run.version,
                group=groups[i],
                settled_time=min(settled, default=None),
            )
            self._changes.change(run)
            spines[i][run.ident] = piece._replace(run=run)

    def _only(self, page: Page, numbers: Ints, kept: NDArray[np.bool_]) -> tuple[Page, Ints]:
        """The rows of a page where `kept` is true, and their numbers; counts others as expired."""
        self._changes.expired_rows += int((~kept).sum())
        return Page(page.words[kept], page.columns.filter(pa.array(kept))), numbers[kept]

    def _unexpired(self, side: Side, columns: pa.RecordBatch) -> NDArray[np.bool_] | None:
        """(n,) which rows are still needed; None: all are."""
        times = self._upkeep.shelf.times(side, columns)
        if times is None:
            return None
        kept = self._upkeep.shelf.last_needed(side, times) >= self._upkeep.watermark
        return None if kept.all() else np.asarray(kept)
