"""The line of manifests behind the newest: which of them stay, and how they are read.

Why: while the newest manifest is restorable, its chain is enough. While the files of some batches
are on their way to the store, the manifests from the restorable one on are what tells a start how
to compute these batches again (joinengine.driver.recovery.durability).

Law: a manifest is removed only once its batch is closed; each one is followed by its link, never by
its number alone.
"""

from __future__ import annotations

from joinengine.model.errors import DamagedState
from joinengine.state import fence
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest
from joinengine.state.manifests import batches_of, name_of, read
from joinengine.world.storage import Storage


def retire(checkpoint: Checkpoint, manifest: Manifest, restorable: Manifest) -> None:
    """Remove the manifests that are needed no more once `manifest` is committed.

    These are the ones before it if it is full, and none if it is not; those to read `restorable`
    and what follows it stay. Their batches are closed before: a name that is gone cannot stop an
    older driver.
    """
    if restorable.chain is None or not (manifest.is_full or restorable.is_full):
        return  # the query is restored from its beginning, or nothing has changed
    last = min(manifest.batch, restorable.chain.full.batch) - 1
    if last < 0:
        return
    fence.raise_boundary(checkpoint, last)
    for old in batches_of(checkpoint.manifests):
        if old <= last:
            checkpoint.manifests.delete(name_of(old))


def before(manifests: Storage, manifest: Manifest) -> Manifest:
    """The manifest that `manifest` follows. Raises DamagedState if it is not there, or another."""
    parent = manifest.parent
    try:
        earlier = read(manifests, parent.batch)
    except FileNotFoundError:
        earlier = None
    if earlier is None or earlier.link != parent:
        raise DamagedState(
            f"manifest {manifests.folder}/{name_of(parent.batch)}, from which batch "
            f"{manifest.batch} must be restored, is missing or was replaced; restore it from a "
            "copy"
        )
    return earlier
