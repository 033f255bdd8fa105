"""The line of manifests before the newest one: decides which of them stay, and reads them.

Why: if the newest manifest is restorable, its chain is enough. While files of some batches are
still being uploaded to the store, a start needs the manifests from the restorable one on, to
compute these batches again (`joinengine.driver.recovery.durability`).

Law: a manifest is removed only once its batch is closed. A parent is found by its link, never only
by its number.
"""

from __future__ import annotations

from joinengine.model.errors import DamagedState
from joinengine.state import fence
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest
from joinengine.state.manifests import batches_of, name_of, read
from joinengine.world.storage import Storage


def retire(checkpoint: Checkpoint, manifest: Manifest, restorable: Manifest) -> None:
    """Remove the manifests that are no longer needed once `manifest` is committed.

    The chain of `restorable` and all later manifests stay; nothing is removed unless one of the two
    is full. Batches are closed first: a manifest that is gone cannot stop an older driver.
    """
    if restorable.chain is None or not (manifest.is_full or restorable.is_full):
        return  # a start would begin with the first batch, or the full manifest is the same
    last = min(manifest.batch, restorable.chain.full.batch) - 1
    if last < 0:
        return
    fence.raise_boundary(checkpoint, last)
    for old in batches_of(checkpoint.manifests):
        if old <= last:
            checkpoint.manifests.delete(name_of(old))


def before(manifests: Storage, manifest: Manifest) -> Manifest:
    """The parent of `manifest`. Raises DamagedState if it is missing or another manifest."""
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
