"""Cleans up after a batch: removes the files that no manifest names any more.

Law: a driver removes files of older drivers only if the newest manifest is its own. Then no older
driver can commit its files any more, and a newer driver can name only those files of older drivers
that this manifest or a kept one names.
Cost: a listing of each folder. An object store charges for listings, so there the files of several
batches are removed together.
"""

from __future__ import annotations

from collections.abc import Sequence

from joinengine.results import showings
from joinengine.results.delivery import Delivery
from joinengine.state import line
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest
from joinengine.state.store import Store
from joinengine.world.storage import remove_unnamed

#: In an object store, files are removed every so many batches.
REMOTE_EVERY = 16


def clean(
    checkpoint: Checkpoint,
    manifest: Manifest,
    kept: Sequence[Manifest],
    delivery: Delivery,
    store: Store | None,
) -> None:
    """Remove the files of this and older drivers that neither `manifest` nor `kept` names.

    `manifest`: the newest, committed by this driver. `kept`: manifests whose files also stay; the
    first must remain readable. `store`: where second copies of run files lie; a copy goes with its
    run file.
    """
    makers = range(manifest.generation + 1)
    line.retire(checkpoint, manifest, kept[0] if kept else manifest)
    if checkpoint.is_remote and manifest.batch % REMOTE_EVERY:
        return
    named = _named(manifest, kept)
    # An earlier start may have left copies below the checkpoint.
    folders = {storage.folder: storage for storage in (checkpoint.runs, checkpoint.store)}
    if store is not None:
        folders[store.copies.folder] = store.copies
    for folder in folders.values():
        remove_unnamed(folder, named, makers)
    clean_staged(manifest, delivery, makers)
    if delivery.sink.every > 1:
        showings.thin(checkpoint)
    if delivery.aside is not None:
        delivery.aside.clean(manifest.refused, makers)
    remove_unnamed(checkpoint.exchange, (), makers)


def clean_failed(
    checkpoint: Checkpoint,
    manifest: Manifest,
    kept: Sequence[Manifest],
    delivery: Delivery,
    generation: int,
) -> None:
    """Remove the files of a batch that has failed before its commit and will run again.

    Otherwise each start on a full disk would use up some of the space that the user has freed. Only
    files of the driver's own `generation` go: other drivers know these only from its manifests.
    """
    if checkpoint.is_remote:  # an object store has room, and may itself be what has failed
        return
    own = range(generation, generation + 1)
    remove_unnamed(checkpoint.runs, _named(manifest, kept), own)
    remove_unnamed(checkpoint.exchange, (), own)
    clean_staged(manifest, delivery, own)


def _named(manifest: Manifest, kept: Sequence[Manifest]) -> set[str]:
    return manifest.named_files().union(*(manifest_kept.named_files() for manifest_kept in kept))


def clean_staged(manifest: Manifest, delivery: Delivery, makers: range) -> None:
    """Remove the staged results of `makers` that no delivery needs any more."""
    staged = list(manifest.results)
    if manifest.held is not None:  # results that are visible lie in merged files of other names
        staged = [stored for _, files in delivery.held for stored in files]
    delivery.sink.clean(staged, makers)
