"""Decides which files a batch waits for before its commit, and which batch is restorable.

Why: under durability "batch", the store has all files that a manifest names, so the newest manifest
is enough for a restart. Under "replicas", these files may be only on the disks of executors, each
tuple on two of them, and are uploaded in the background. If the query ends, these disks are gone.
So a batch is *restorable* once the store has all its files. Each manifest names the batch that was
restorable at its commit. Manifests and files from that batch on are kept, and a start computes the
later batches again (`joinengine.driver.recovery.restoration`).

Law: there is always a restorable batch among the last LAG, or the query has just begun. A batch
with tuples that have no second copy on another executor is restorable at its commit. Tasks take
over moved state from the store.
Cost: a listing of the run files every few batches.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from joinengine.driver.settings import Settings
from joinengine.layouts.copies import Refill
from joinengine.model.errors import StoreUnreachable
from joinengine.model.recovery import Durability
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest, Outcome
from joinengine.state.operator_state import Move, Rehome

_log = logging.getLogger("joinengine")
#: Batches that may be committed after the restorable one.
LAG = 8
#: How long a batch waits for uploads, in seconds.
PATIENCE_S = 60.0
_PAUSE_S = 0.02


class Uploaded:
    """Tracks uploads: knows the newest restorable manifest, and waits for files."""

    def __init__(self, checkpoint: Checkpoint, settings: Settings) -> None:
        self._checkpoint = checkpoint
        self.is_behind = settings.durability is Durability.REPLICAS
        #: the restorable manifest, and those after it
        self._line: list[Manifest] = []
        #: files that the store was seen to have
        self._seen = frozenset[str]()

    def start(self, restorable: Manifest) -> None:
        """Begin behind a manifest all of whose files are in the store."""
        self._line = [restorable]

    @property
    def kept(self) -> Sequence[Manifest]:
        """The restorable manifest and those after it, whose files must stay."""
        return self._line

    def restorable(self, after: Outcome, *, is_copied: bool) -> int:
        """The restorable batch once `after` is committed; waits until there is one.

        `is_copied`: each tuple of the batch is on two executors.
        """
        if not self.is_behind:
            return after.batch
        self._advance()
        if is_copied and self._line and after.batch - self._line[0].batch < LAG:
            return self._line[0].batch
        self.wait_for(after)
        self._line = []
        return after.batch

    def committed(self, manifest: Manifest) -> None:
        """Take note of a committed manifest, and sometimes list which files the store has."""
        if not self.is_behind:
            self._line = [manifest]
            return
        self._line.append(manifest)
        if not self._checkpoint.is_remote or len(self._line) > LAG // 2:
            self._look()

    def share(self, last: Manifest) -> None:
        """Before a batch: wait until tasks can read the state that they take over from others."""
        if self.is_behind and any(_is_taken(state.layouts.pending) for state in last.operators):
            self.wait_for(last)

    def wait_for(self, manifest: Outcome) -> None:
        """Wait until the store has all files of a manifest. Raises StoreUnreachable."""
        world = self._checkpoint.world
        end, pause_s = world.timer_s() + PATIENCE_S, _PAUSE_S
        while missing := files_of(manifest) - self._seen:
            self._look()
            if files_of(manifest) <= self._seen:
                return
            if world.timer_s() > end:
                raise StoreUnreachable(
                    f"{len(missing)} run files of batch {manifest.batch}, such as {min(missing)}, "
                    f"were not uploaded to {self._checkpoint.runs.folder} within {PATIENCE_S:.0f} "
                    "s, because the store does not take them (the log of the executors says why) "
                    "or their executor is gone; the batch is not committed. Start the query again"
                )
            world.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.5)

    def settle(self) -> None:
        """Wait until the newest manifest is restorable, since executors are about to end."""
        if not (self.is_behind and self._line):
            return
        try:
            self.wait_for(self._line[-1])
        except StoreUnreachable:
            _log.warning(
                "joinengine: the store lacks some files of the last batches; the next start "
                "computes these batches again"
            )

    def _look(self) -> None:
        self._seen = frozenset(self._checkpoint.runs.names())
        self._advance()

    def _advance(self) -> None:
        for place in range(len(self._line) - 1, 0, -1):
            if files_of(self._line[place]) <= self._seen:
                del self._line[:place]
                return


def _is_taken(pending: Move | Rehome | Refill | None) -> bool:
    """Whether tasks take over state; they do not if homes and backups only change roles."""
    return bool(pending.moves.pulls) if isinstance(pending, Move) else pending is not None


def files_of(manifest: Outcome) -> set[str]:
    """The files that must be in the folder of runs; inlined ones are in the manifest."""
    inlined = {
        name
        for state in manifest.operators
        for name, stored in state.shelves.files.items()
        if stored.content is not None
    }
    return manifest.named_files() - inlined
