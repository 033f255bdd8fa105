"""Makes the results of several batches visible together, as files of about one size.

Why: small batches make small files, and readers pay for each. Visible files are never rewritten,
since a reader that lists the folder meanwhile would miss rows or see them twice. So the results of
up to `every` batches are *held back* in staging; each manifest names those that are not visible
yet. Then tasks merge them, and a *showing* says which files count (`joinengine.results.showings`).

Law: each result of a committed batch becomes visible once. If a driver is killed before it has
created the showing, the merged files are garbage; if later, the next driver renames them.
"""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from joinengine.results import showings
from joinengine.results.merging import Merge, merges_nothing, together
from joinengine.results.showings import Held, Showing, still_held
from joinengine.results.sinks import STAGING, ParquetSink, show
from joinengine.results.staging import visible_name
from joinengine.state.checkpoint import Checkpoint


@dataclass
class CompactingSink(ParquetSink):
    """As `ParquetSink`; with `every` above 1, it holds results back and merges them.

    With `every` 1, it shows the results that an earlier start of the query has held back, and then
    each batch by itself.
    """

    merge: Merge = merges_nothing
    every: int = 1

    @override
    def check_held(self, held: Held, checkpoint: Checkpoint) -> None:
        """Refuse results that a sink has held back in the checkpoint; it can show all others."""
        files = (file for _, files in still_held(checkpoint, held) for file in files)
        others = (file.name for file in files if not self.staging.exists(file.name))
        if any(checkpoint.results.exists(name) for name in others):
            super().check_held(held, checkpoint)

    @override
    def deliver_held(
        self, held: Held, checkpoint: Checkpoint, generation: int, *, whole: bool
    ) -> Held:
        """Show complete stretches or, with `whole`, all results; returns those still held back."""
        while held:
            start, through = held[0][0], held[-1][0]
            showing = showings.find(checkpoint, start)
            if showing is None:
                nothing = not any(files for _, files in held)
                if through - start + 1 < self.every and (nothing or not whole):
                    return held
                staged = [stored for _, files in held for stored in files]
                merged = together(
                    staged, self.staging, generation, self.cutting, self.fsync, self.merge
                )
                names = [stored.name for stored in merged]
                showing = showings.create(checkpoint, start, through, names)
            self._show(showing)
            held = showing.rest(held)
        return ()

    def _show(self, showing: Showing) -> None:
        for name in showing.files:
            staged = f"{STAGING}/{self.query}/{name}"
            visible = visible_name(showing.through, self.query, name)
            show(self.storage, staged, visible, showing.through)
