"""The keeper: opens, moves, seals and merges the runs of one task in one batch.

Why: a task asks for the runs of an instance and hands over tuples to keep. The keeper takes care of
all else: state that moved away or in, the file of a run, and when runs are merged. It reports the
changes to the driver; none of them counts until a manifest names it.

Law: at any moment each live tuple of an instance is in exactly one of its runs, per layout version.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints, rows_between
from joinengine.model.keys import Side
from joinengine.state.run import OpenRun, Run, RunStore, RunWriter, excluded_rows
from joinengine.state.spine import MergeStep, cut_word, plan_merges
from joinengine.world.storage import Storage, StoredFile, tagged

#: Rows of one run that are copied at a time when state moves.
MOVE_ROWS = 1 << 18


@dataclass(slots=True)
class Changes:
    """The changes of one task: runs that are new, have fewer live rows, or are gone."""

    runs: dict[tuple[str, int], Run] = field(default_factory=dict)
    gone: set[tuple[str, int]] = field(default_factory=set)
    files: list[StoredFile] = field(default_factory=list)
    expired_rows: int = 0
    moved_rows: int = 0
    moved_bytes: int = 0
    #: copies that were lost and made anew
    recovered_rows: int = 0

    def change(self, run: Run) -> None:
        """Note a run that is new or has fewer live rows."""
        if run.live:
            self.runs[run.ident] = run
        else:
            self.remove(run)

    def remove(self, run: Run) -> None:
        """Note that a run is gone."""
        self.runs.pop(run.ident, None)
        self.gone.add(run.ident)


class Shelf(Protocol):
    """One kind of tuples that a keeper keeps: their columns, and how long each is needed."""

    __slots__ = ()

    @property
    @abstractmethod
    def label(self) -> str:
        """The beginning of the names of its files."""

    @property
    @abstractmethod
    def span_us(self) -> int | None:
        """How long, in event time, a tuple is needed; None: for ever."""

    @abstractmethod
    def schema(self, side: Side) -> pa.Schema:
        """The columns of a side."""

    @abstractmethod
    def times(self, side: Side, columns: pa.RecordBatch) -> Ints | None:
        """(n,) the time of each tuple; None: they have none."""

    @abstractmethod
    def last_needed(self, side: Side, times: Ints) -> Ints:
        """(n,) the last watermark at which each tuple is needed."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The facts of its task that a keeper needs.

    `generation`: of the driver. `merge_rows`: how many rows the keeper may merge. `nonce`: makes
    strings that no file name has had before. `apart`: the runs of each instance lie in files of
    their own, so that the instances of a task do not lose their state together.
    """

    shelf: Shelf
    batch: int
    task: int
    generation: int
    version: int
    watermark: float
    merge_rows: int
    nonce: Callable[[], str]
    apart: bool = False


class Keeper:
    """The state of one task's instances during one batch; `close` seals what it wrote."""

    def __init__(
        self, upkeep: Upkeep, storage: Storage, store: RunStore, files: Mapping[str, StoredFile]
    ) -> None:
        self._upkeep = upkeep
        self._storage = storage
        self._store = store
        self._files = files
        self._writers: dict[tuple[Side, int | None], tuple[str, RunWriter]] = {}
        self._merge_rows = upkeep.merge_rows
        self._groups = upkeep.batch << 20
        self._changes = Changes()

    @property
    def apart(self) -> bool:
        """Whether the runs of each instance lie in files of their own."""
        return self._upkeep.apart

    def open(self, runs: Iterable[Run], drops: Sequence[tuple[int, int]] = ()) -> list[OpenRun]:
        """The runs of one spine, less the word ranges in `drops`."""
        spine = list[OpenRun]()
        for run in runs:
            opened = self._opened(run)
            if drops:
                opened = self.cut(opened, drops)
            if opened.run.live:
                spine.append(opened)
        return spine

    def _opened(self, run: Run) -> OpenRun:
        """A run with the columns that its shelf has now."""
        schema = self._upkeep.shelf.schema(run.side)
        return self._store.open(run, self._files[run.file], schema)

    def cut(
        self,
        opened: OpenRun,
        ranges: Iterable[tuple[int, int]],
        oldest: Callable[[OpenRun], int] | None = None,
    ) -> OpenRun:
        """A run without some word ranges; `oldest` computes the least time of the rows left."""
        less = opened.run.without(ranges, opened.words)
        if less.excluded == opened.run.excluded:
            return opened
        gone = excluded_rows(opened.words, less.exclusions)
        rest = OpenRun(less, opened.words, opened.columns, gone)
        if oldest is not None and less.live:
            rest = replace(rest, run=replace(less, min_time=oldest(rest)))
        self._changes.change(rest.run)
        return rest

    def forget(self, run: Run) -> None:
        """Drop a run that is needed no more."""
        self._changes.remove(run)

    def relabel(self, opened: OpenRun, version: int) -> OpenRun:
        """Give a run another layout version; its tuples stay where they are."""
        after = replace(opened, run=replace(opened.run, version=version))
        self._changes.change(after.run)
        return after

    def expired(self, rows: int) -> None:
        """Count rows that have left the state, since no later tuple needs them."""
        self._changes.expired_rows += rows

    def moved(self, rows: int, size_bytes: int) -> None:
        """Count rows that have left their instance."""
        self._changes.moved_rows += rows
        self._changes.moved_bytes += size_bytes

    def pull(
        self, instance: int, runs: Iterable[Run], ranges: Iterable[tuple[int, int]]
    ) -> Iterator[OpenRun]:
        """Seal the word ranges of another instance's `runs` as runs of `instance`."""
        ordered = sorted(ranges)
        lower = np.array([low for low, _ in ordered], np.uint64)
        upper = np.array([high % (1 << 64) for _, high in ordered], np.uint64)
        for run in runs:
            opened = self._opened(run)
            rows = rows_between(opened.words, lower, upper, opened.gone)
            for start in range(0, len(rows), MOVE_ROWS):
                some = rows[start : start + MOVE_ROWS]
                columns = opened.columns.take(pa.array(some))
                moved = self.seal(instance, run.side, opened.words[some], columns)
                self.moved(moved.run.rows, moved.run.size_bytes)
                yield moved

    def recover(
        self,
        instance: int,
        run: Run,
        words: tuple[int, int],
        chosen: Callable[[Words], NDArray[np.bool_]],
    ) -> Iterator[OpenRun]:
        """Seal rows of another instance's run as runs of `instance`, which has lost them.

        `words`: the rows are of this range; `chosen`: (n,) words -> which of them are to be copied.
        """
        opened = self._opened(run)
        lower, upper = (np.array([word % (1 << 64)], np.uint64) for word in words)
        rows = rows_between(opened.words, lower, upper, opened.gone)
        rows = rows[chosen(opened.words[rows])]
        for start in range(0, len(rows), MOVE_ROWS):
            some = rows[start : start + MOVE_ROWS]
            columns = opened.columns.take(pa.array(some))
            self._changes.recovered_rows += len(some)
            yield self.seal(instance, run.side, opened.words[some], columns)

    def seal(
        self,
        instance: int,
        side: Side,
        words: Words,
        columns: pa.RecordBatch,
        *,
        own_file: bool = False,
        oldest_input: int | None = None,
    ) -> OpenRun:
        """Write a run; the returned run can be probed at once.

        `own_file`: write it to a file of its own and map that, so that the memory of the tuples can
        be freed. `oldest_input`: the settled time of the run; None: the newest time of the tuples.
        """
        if own_file:
            name, writer = self._new_file(side)
            run = self._write(name, writer, instance, side, words, columns, oldest_input)
            stored = writer.close()
            self._changes.files.append(stored)
            self._store.trust(name)
            return self._store.open(run, stored)
        group = side, instance if self._upkeep.apart else None
        if group not in self._writers:
            self._writers[group] = self._new_file(side)
        run = self._write(*self._writers[group], instance, side, words, columns, oldest_input)
        return OpenRun(run, words, columns, None)

    def merge(self, spine: Sequence[OpenRun]) -> list[OpenRun]:
        """Merge runs of one layout version, as far as the allowance goes; the spine after it."""
        opened = {one.run.ident: one for one in spine}
        after = dict(opened)
        span = self._upkeep.shelf.span_us
        for version in sorted({one.run.version for one in spine}):
            ours = [one.run for one in spine if one.run.version == version]
            if self._merge_rows <= 0 or len(ours) < 2:
                continue
            for step in plan_merges(ours, self._merge_rows, span):
                inputs = [opened[run.ident] for run in step.inputs]
                rows, found = self._merge(inputs, step)
                self._merge_rows -= rows
                after.update({one.run.ident: one for one in found})
        return [one for one in after.values() if one.run.live]

    def close(self) -> Changes:
        """Seal the files, and return the changes."""
        for name, writer in self._writers.values():
            self._changes.files.append(writer.close())
            self._store.trust(name)
        return self._changes

    def _merge(self, inputs: list[OpenRun], step: MergeStep) -> tuple[int, list[OpenRun]]:
        """Copy the lowest words of `inputs` into one run; how many rows, and the runs after it."""
        live = [one.live_rows() for one in inputs]
        words = [one.words[rows] for one, rows in zip(inputs, live, strict=True)]
        cut = cut_word(words, step.max_rows)
        below = [len(w) if cut >> 64 else int(np.searchsorted(w, np.uint64(cut))) for w in words]
        merged, columns = _taken(inputs, live, below)
        side = inputs[0].run.side
        kept = self._unexpired(side, columns)
        if kept is not None:
            self._changes.expired_rows += int((~kept).sum())
            merged, columns = merged[kept], columns.filter(pa.array(kept))
        group = self._next_group() if step.group is None else step.group
        found = list[OpenRun]()
        if len(merged):
            # A stable sort is a merge sort, which is fastest on concatenated sorted inputs.
            order = np.argsort(merged, kind="stable")
            columns = columns.take(pa.array(order))
            piece = self.seal(inputs[0].run.instance, side, merged[order], columns)
            settled = [one.run.settled_time for one in inputs if one.run.settled_time is not None]
            run = replace(
                piece.run,
                version=inputs[0].run.version,
                group=group,
                settled_time=min(settled, default=None),
            )
            found.append(replace(piece, run=run))
        for one in inputs:
            rest = replace(one.run, into=group).without([(0, cut)], one.words)
            gone = excluded_rows(one.words, rest.exclusions)
            found.append(replace(one, run=rest, gone=gone))
        for one in found:
            self._changes.change(one.run)
        return sum(below), found

    def _write(
        self,
        name: str,
        writer: RunWriter,
        instance: int,
        side: Side,
        words: Words,
        columns: pa.RecordBatch,
        oldest_input: int | None,
    ) -> Run:
        part, size = writer.add(words, columns)
        times = self._upkeep.shelf.times(side, columns)
        oldest, newest = (None, None) if times is None else (int(times.min()), int(times.max()))
        run = Run(
            file=name,
            part=part,
            side=side,
            instance=instance,
            version=self._upkeep.version,
            rows=len(words),
            size_bytes=size,
            group=self._next_group(),
            min_time=oldest,
            max_time=newest,
            settled_time=newest if oldest_input is None else oldest_input,
        )
        self._changes.change(run)
        return run

    def _new_file(self, side: Side) -> tuple[str, RunWriter]:
        keep = self._upkeep
        name = f"{keep.shelf.label}-{keep.batch:08d}-{int(side)}-{keep.task}"
        name = tagged(keep.generation, f"{name}-{keep.nonce()}.arrow")
        return name, RunWriter(self._storage, name, keep.shelf.schema(side))

    def _next_group(self) -> int:
        self._groups += 1
        return self._groups

    def _unexpired(self, side: Side, columns: pa.RecordBatch) -> NDArray[np.bool_] | None:
        """(n,) which rows are still needed; None: all."""
        times = self._upkeep.shelf.times(side, columns)
        if times is None:
            return None
        kept = self._upkeep.shelf.last_needed(side, times) >= self._upkeep.watermark
        return None if kept.all() else np.asarray(kept)


def _taken(
    inputs: list[OpenRun], live: list[Ints], below: list[int]
) -> tuple[Words, pa.RecordBatch]:
    """The first below[i] live rows of each input, one input after another."""
    rows = [some[:n] for some, n in zip(live, below, strict=True)]
    words = [one.words[some] for one, some in zip(inputs, rows, strict=True)]
    columns = [one.columns.take(pa.array(some)) for one, some in zip(inputs, rows, strict=True)]
    return np.concatenate(words), pa.concat_batches(columns)
