"""Results of several batches that become visible together, as files of about one size.

Why: small batches make small files, and a reader pays for each. What is visible is never rewritten,
since who lists a folder meanwhile would see rows missing or twice. So the results of up to `every`
batches are *held back* in staging; each manifest names those that no batch has shown yet. Then
tasks merge them, and a *showing* says which files count (joinengine.results.showings).

Law: each result of a committed batch becomes visible once. If a driver is killed before the showing
is created, the merged files are garbage; if after, the next driver renames them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from typing_extensions import override

from joinengine.results import showings
from joinengine.results.merging import TARGET_BYTES, MergeReport, MergeTask, packs
from joinengine.results.showings import Held, Showing
from joinengine.results.sinks import STAGING, ParquetSink, show
from joinengine.results.staging import visible_name
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.buckets import is_url
from joinengine.world.storage import StoredFile

#: Runs merging tasks, somewhere; returns their reports in the order of the tasks.
Merge = Callable[[Sequence[MergeTask]], Sequence[MergeReport]]


def merges_nothing(tasks: Sequence[MergeTask]) -> Sequence[MergeReport]:
    """For a sink that holds nothing back."""
    raise AssertionError("no files are held back")


@dataclass
class CompactingSink(ParquetSink):
    """As `ParquetSink`; with `every` above 1 it holds results back, and merges them.

    With `every` 1 it shows what an earlier start of the query has held back, and then each batch by
    itself.
    """

    merge: Merge = merges_nothing
    every: int = 1

    @override
    def check_held(self, held: Held, checkpoint: Checkpoint) -> None:
        """It can show all."""

    @override
    def deliver_held(
        self, held: Held, checkpoint: Checkpoint, generation: int, *, whole: bool
    ) -> Held:
        """Show stretches that are complete, or all that is there; what is still held back."""
        while held:
            start, through = held[0][0], held[-1][0]
            found = showings.find(checkpoint, start)
            if found is None:
                nothing = not any(files for _, files in held)
                if through - start + 1 < self.every and (nothing or not whole):
                    return held
                files = self._merged(held, generation)
                found = showings.create(checkpoint, start, through, files)
            self._show(found)
            held = found.rest(held)
        return ()

    def _show(self, showing: Showing) -> None:
        for name in showing.files:
            staged = f"{STAGING}/{self.query}/{name}"
            visible = visible_name(showing.through, self.query, name)
            show(self.storage, staged, visible, showing.through)

    def _merged(self, held: Held, generation: int) -> list[str]:
        """The staged files that hold the same results, merged where they have company."""
        staged = [stored for _, files in held for stored in files]
        tasks, names = list[MergeTask](), list[str]()
        for place, pack in packs(staged, self.cutting.target_bytes or TARGET_BYTES):
            if len(pack) == 1:
                names.append(pack[0].name)
                continue
            folder = self.staging.folder
            tasks.append(
                MergeTask(folder, tuple(pack), place, generation, self.cutting, self.fsync)
            )
        if tasks:
            with self._leaving_nothing(staged, generation):
                names += [name for report in self.merge(tasks) for name in report.files]
        return names

    @contextmanager
    def _leaving_nothing(self, staged: Sequence[StoredFile], generation: int) -> Iterator[None]:
        """What tasks have written inside is removed if they fail: the disk may be full.

        An object store has room, and may be what has failed.
        """
        try:
            yield
        except Exception:
            if not is_url(self.storage.folder):
                with suppress(Exception):  # the first error is the one to tell
                    self.clean(staged, range(generation, generation + 1))
            raise
