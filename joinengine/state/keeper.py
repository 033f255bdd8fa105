"""The keeper: opens, moves, seals and merges the runs of one task in one batch.

Why: a task asks for the runs of an instance and hands over tuples to keep. The keeper does all
else: it drops and pulls state that moves, writes run files, and merges runs. It reports the changes
to the driver; none of them counts until a manifest names it.

Law: at any moment each live tuple of an instance is in exactly one of its runs, per layout version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints, rows_between
from joinengine.model.keys import Side
from joinengine.state.gathering import gathered, merged_order
from joinengine.state.run import OpenRun, Run, RunStore, excluded_rows
from joinengine.state.run_file import Page
from joinengine.state.run_merging import Merger
from joinengine.state.sealing import Sealer
from joinengine.state.upkeep import Changes, Upkeep
from joinengine.world.storage import Storage, StoredFile

#: The most rows that are copied at a time when state moves.
MOVE_ROWS = 1 << 18


class _Pulled(NamedTuple):
    """Rows of a run that become a run of `instance`."""

    instance: int
    source: OpenRun
    rows: Ints


class Keeper:
    """The state of one task's instances during one batch; `close` seals what it wrote."""

    def __init__(
        self, upkeep: Upkeep, storage: Storage, store: RunStore, files: Mapping[str, StoredFile]
    ) -> None:
        self._upkeep = upkeep
        self._store = store
        self._files = files
        self._schemas = dict[Side, pa.Schema]()
        self._changes = Changes()
        self._sealer = Sealer(upkeep, storage, store, self._changes)
        self._merger = Merger(upkeep, self._sealer, self._changes)

    @property
    def apart(self) -> bool:
        """Whether each instance has its own run files."""
        return self._upkeep.apart

    def fetch(self, runs: Iterable[Run]) -> None:
        """Prepare runs; the task needs nothing else of their files."""
        self._store.fetch(runs, self._files)

    def open(self, runs: Iterable[Run], drops: Sequence[tuple[int, int]] = ()) -> list[OpenRun]:
        """Open the runs of one spine, and exclude the word ranges in `drops`."""
        spine = [self._opened(run) for run in runs]
        if not drops:
            return spine
        return [run for run in (self.cut(run, drops) for run in spine) if run.run.live]

    def _opened(self, run: Run) -> OpenRun:
        """Open a run, with the present columns of its shelf."""
        schema = self._schemas.get(run.side)
        if schema is None:
            schema = self._schemas[run.side] = self._upkeep.shelf.schema(run.side)
        return self._store.open(run, self._files[run.file], schema)

    def cut(
        self,
        opened: OpenRun,
        ranges: Iterable[tuple[int, int]],
        oldest: Callable[[OpenRun], int] | None = None,
    ) -> OpenRun:
        """Exclude word ranges from a run; `oldest`: computes the least time of the rows left."""
        less = opened.run.without(ranges, opened.words)
        if less.excluded == opened.run.excluded:
            return opened
        gone = excluded_rows(opened.words, less.exclusions)
        rest = opened._replace(run=less, gone=gone)
        if oldest is not None and less.live:
            rest = rest._replace(run=less._replace(min_time=oldest(rest)))
        self._changes.change(rest.run)
        return rest

    def forget(self, run: Run) -> None:
        """Drop a run that is no longer needed."""
        self._changes.remove(run)

    def relabel(self, opened: OpenRun, version: int) -> OpenRun:
        """Give a run another layout version; its tuples stay where they are."""
        after = opened._replace(run=opened.run._replace(version=version))
        self._changes.change(after.run)
        return after

    def expired(self, rows: int) -> None:
        """Count rows that have expired."""
        self._changes.expired_rows += rows

    def moved(self, rows: int, size_bytes: int) -> None:
        """Count rows that have moved to another instance."""
        self._changes.moved_rows += rows
        self._changes.moved_bytes += size_bytes

    def pull_all(
        self, pulls: Iterable[tuple[int, Iterable[Run], Iterable[tuple[int, int]]]]
    ) -> list[OpenRun]:
        """Seal word ranges of other instances' runs as runs of new homes.

        `pulls`: (new home, runs, word ranges), of one side, ascending. The new runs are sealed
        together, as far as they fit into memory.
        """
        sealed, waiting, part = list[OpenRun](), list[_Pulled](), 0.0
        for instance, runs, ranges in pulls:
            for pulled in self._chosen(instance, runs, ranges):
                # The sort numbers pieces in 16 bits, so a piece counts as at least 8 rows.
                more = max(len(pulled.rows), 8) / self._step(pulled.source.run)
                if waiting and part + more > 1:
                    sealed += self._seal_pulled(waiting)
                    waiting, part = [], 0.0
                waiting.append(pulled)
                part += more
        return sealed + self._seal_pulled(waiting)

    def _chosen(
        self, instance: int, runs: Iterable[Run], ranges: Iterable[tuple[int, int]]
    ) -> Iterator[_Pulled]:
        ordered = sorted(ranges)
        lower = np.array([low for low, _ in ordered], np.uint64)
        upper = np.array([high % (1 << 64) for _, high in ordered], np.uint64)
        for run in runs:
            opened = self._opened(run)
            rows = rows_between(opened.words, lower, upper, opened.gone)
            step = self._step(run)
            for start in range(0, len(rows), step):
                yield _Pulled(instance, opened, rows[start : start + step])

    def _step(self, run: Run) -> int:
        """How many rows of a run are copied at a time when state moves."""
        return min(MOVE_ROWS, run.rows_within(self._upkeep.gather_bytes))

    def _seal_pulled(self, pulled: Sequence[_Pulled]) -> list[OpenRun]:
        """Seal pulled rows, a run for each piece."""
        if not pulled:
            return []
        page, numbers = gathered(
            [[pull.source] for pull in pulled], [[pull.rows] for pull in pulled]
        )
        order = merged_order(page.words, numbers, len(pulled))
        page = Page(page.words[order], page.columns.take(pa.array(order)))
        bounds = np.append(0, np.cumsum([len(pull.rows) for pull in pulled]))
        instances = [pull.instance for pull in pulled]
        sealed = self.seal_all(instances, bounds, pulled[0].source.run.side, page)
        for run in sealed:
            self.moved(run.run.rows, run.run.size_bytes)
        return sealed

    def recover(
        self,
        instance: int,
        run: Run,
        words: tuple[int, int],
        chosen: Callable[[Words], NDArray[np.bool_]],
    ) -> Iterator[OpenRun]:
        """Seal rows of another instance's run as runs of `instance`, which has lost them.

        `words`: the range of the rows; `chosen`: (n,) words -> (n,) which of them to copy.
        """
        opened = self._opened(run)
        lower, upper = (np.array([word % (1 << 64)], np.uint64) for word in words)
        rows = rows_between(opened.words, lower, upper, opened.gone)
        rows = rows[chosen(opened.words[rows])]
        step = self._step(run)
        for start in range(0, len(rows), step):
            rows_copied = rows[start : start + step]
            columns = opened.columns.take(pa.array(rows_copied))
            self._changes.recovered_rows += len(rows_copied)
            yield self.seal(instance, run.side, opened.words[rows_copied], columns)

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

        `own_file`: write the run to a separate file and map that, so that the memory of the tuples
        can be freed. `oldest_input`: the settled time of the run; None: the newest time of the
        tuples.
        """
        bounds = np.array([0, len(words)])
        (sealed,) = self.seal_all(
            [instance],
            bounds,
            side,
            Page(words, columns),
            own_file=own_file,
            oldest_input=oldest_input,
        )
        return sealed

    def seal_all(
        self,
        instances: Sequence[int],
        bounds: Ints,
        side: Side,
        page: Page,
        *,
        own_file: bool = False,
        oldest_input: int | None = None,
    ) -> list[OpenRun]:
        """Write one run for each of `instances`, on one page.

        Run i has the rows bounds[i]:bounds[i + 1] of `page`, at least one, sorted by word. An
        instance may occur several times in a row. Otherwise as `seal`.
        """
        return self._sealer.seal(instances, bounds, side, page, oldest_input, own_file=own_file)

    def merge(self, spine: Sequence[OpenRun]) -> list[OpenRun]:
        """Merge runs of a spine, as far as the allowance goes; returns the spine after it."""
        (after,) = self.merge_all([spine])
        return after

    def merge_all(self, spines: Sequence[Sequence[OpenRun]], first: int = 0) -> list[list[OpenRun]]:
        """Merge runs of several spines, of ascending instances and one side; the spines after it.

        `first`: the spine that gets the allowance first.
        """
        return self._merger.merge(spines, first)

    def close(self) -> Changes:
        """Seal the files, and return the changes."""
        self._sealer.close()
        return self._changes
