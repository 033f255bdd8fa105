"""The commit of a batch, in steps between any two of which a driver may be killed.

Before step 3 the batch has not happened: it has left only files that no manifest names. After
step 3 all of it has happened, and any driver can repeat what follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joinengine.driver.jobs import Jobs
from joinengine.driver.recovery.attempts import Attempts
from joinengine.driver.recovery.durability import Uploaded
from joinengine.driver.stages import Draft
from joinengine.operators.base import QuerySpec
from joinengine.state import manifests
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Handed, Manifest
from joinengine.state.store import Store


@dataclass(frozen=True, slots=True, eq=False)
class Committing:
    """Commits the batches of one start of a driver."""

    query: QuerySpec
    checkpoint: Checkpoint
    jobs: Jobs
    store: Store | None
    attempts: Attempts
    uploaded: Uploaded

    def commit(self, draft: Draft, last: Manifest, generation: int) -> tuple[Manifest, bool]:
        """Commit the draft; the manifest that counts, and whether it is that of the draft.

        It is not if an older driver was faster. `last`: the previous manifest, as this driver has
        it. Raises TakenOver if a newer driver has taken the checkpoint over.
        """
        # 1. The driver writes its own files.
        for name, content in draft.sealed.items():
            self.checkpoint.runs.put(name, content)
        if self.store is not None:
            self.store.keep(draft.outcome.operators)
        # 2. The files that the manifest will name become durable.
        restorable = self._wait_until_durable(draft)
        # 3. The manifest is created, under a name that only one driver can take.
        ours = Manifest.finished(
            draft.outcome,
            generation=generation,
            nonce=self.checkpoint.world.nonce(),
            parent=last.link,
            restorable=restorable,
            spark=self._carried(draft.outcome.handed, last),
        )
        newest = manifests.commit(self.checkpoint, ours, last)
        return newest, newest.nonce == ours.nonce

    def _carried(self, handed: Handed | None, last: Manifest) -> Mapping[str, str]:
        """Name -> content of the files from which Spark repeats its last micro-batch."""
        if handed is None:
            return {}
        return last.spark if handed == last.handed else self.jobs.logged(handed.batch)

    def _wait_until_durable(self, draft: Draft) -> int:
        """The restorable batch once the draft is committed; waits until there is one."""
        computed, query = draft.computed, self.query
        states = [ran.state for ran in computed.operators]
        is_copied = self.attempts.is_copied(query.operators, states)
        is_copied &= computed.opened.last.batch >= 0 or not query.tables  # tables are read once
        return self.uploaded.restorable(draft.outcome, is_copied=is_copied)
