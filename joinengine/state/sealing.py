"""Sealing: writes the runs of one task in one batch to files.

Why: fewer files are faster. So a task writes the runs of all its instances, of both sides, into one
file, and runs that are sealed together onto one page of it (`joinengine.state.run_file`). But a
file stays until its last run is gone, so sides that leave at different times have their own files.

Law: the task can probe a sealed run at once; no other task sees it before a manifest names it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joinengine.kernels.probing import Ints
from joinengine.model.keys import Side
from joinengine.state.run import OpenRun, Run, RunStore
from joinengine.state.run_file import Allowance, Page, RunWriter
from joinengine.state.upkeep import Changes, Upkeep
from joinengine.world.storage import Storage, tagged


class Sealer:
    """Seals the runs of a keeper, and notes them in `changes`."""

    def __init__(self, upkeep: Upkeep, storage: Storage, store: RunStore, changes: Changes) -> None:
        self._upkeep = upkeep
        self._storage = storage
        self._store = store
        self._changes = changes
        #: by instance and side, if each has its own files; else under None
        self._writers: dict[tuple[int | None, Side | None], tuple[str, RunWriter]] = {}
        self._groups = upkeep.batch << 20

    def seal(
        self,
        instances: Sequence[int],
        bounds: Ints,
        side: Side,
        page: Page,
        oldest_input: int | None,
        *,
        own_file: bool,
    ) -> list[OpenRun]:
        """See `Keeper.seal_all`."""
        if self._upkeep.apart and len(instances) > 1:
            return [
                run
                for i, instance in enumerate(instances)
                for run in self._together(
                    [instance],
                    np.array([0, bounds[i + 1] - bounds[i]]),
                    side,
                    _part_of(page, *bounds[i : i + 2].tolist()),
                    oldest_input,
                    own_file=own_file,
                )
            ]
        return self._together(instances, bounds, side, page, oldest_input, own_file=own_file)

    def _together(
        self,
        instances: Sequence[int],
        bounds: Ints,
        side: Side,
        page: Page,
        oldest_input: int | None,
        *,
        own_file: bool,
    ) -> list[OpenRun]:
        if own_file:
            name, writer = self._new_file(None)
            runs = self._write(name, writer, instances, bounds, side, page, oldest_input)
            stored = writer.close()
            self._changes.files.append(stored)
            self._store.trust(name)
            return [self._store.open(run, stored) for run in runs]
        keep = self._upkeep
        whose = instances[0] if keep.apart else None, side if keep.shelf.divides_sides else None
        if whose not in self._writers:
            self._writers[whose] = self._new_file(self._upkeep.allowance)
        runs = self._write(*self._writers[whose], instances, bounds, side, page, oldest_input)
        starts = bounds[:-1].tolist()
        return [OpenRun(run, page, start) for start, run in zip(starts, runs, strict=True)]

    def close(self) -> None:
        """Seal the files."""
        for name, writer in self._writers.values():
            self._changes.files.append(writer.close())
            self._store.trust(name)

    def next_group(self) -> int:
        """A number for a merge group that no run of the task has yet."""
        self._groups += 1
        return self._groups

    def _write(
        self,
        name: str,
        writer: RunWriter,
        instances: Sequence[int],
        bounds: Ints,
        side: Side,
        page: Page,
        oldest_input: int | None,
    ) -> list[Run]:
        schema = self._upkeep.shelf.schema(side)
        times = self._upkeep.shelf.times(side, page.columns)
        n = len(instances)
        oldest: Sequence[int | None] = [None] * n
        newest = oldest
        if times is not None:
            oldest = np.minimum.reduceat(times, bounds[:-1]).tolist()
            newest = np.maximum.reduceat(times, bounds[:-1]).tolist()
        sizes = np.diff(bounds).tolist()
        runs = list[Run]()
        for i, (part, size) in enumerate(writer.add(page, bounds, schema)):
            run = Run(
                file=name,
                part=part,
                side=side,
                instance=instances[i],
                version=self._upkeep.version,
                rows=sizes[i],
                size_bytes=size,
                group=self.next_group(),
                min_time=oldest[i],
                max_time=newest[i],
                settled_time=newest[i] if oldest_input is None else oldest_input,
            )
            self._changes.change(run)
            runs.append(run)
        return runs

    def _new_file(self, allowance: Allowance | None) -> tuple[str, RunWriter]:
        keep = self._upkeep
        name = f"{keep.shelf.label}-{keep.batch:08d}-{keep.task}"
        name = tagged(keep.generation, f"{name}-{keep.nonce()}.arrow")
        return name, RunWriter(self._storage, name, allowance)


def _part_of(page: Page, start: int, stop: int) -> Page:
    return Page(page.words[start:stop], page.columns.slice(start, stop - start))
