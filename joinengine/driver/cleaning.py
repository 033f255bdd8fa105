"""Cleaning up behind a batch: what no manifest names any more is removed.

Law: nothing of an older driver is removed unless the newest manifest is the driver's own. Then no
older driver can commit its files any more, and of these files a newer driver can name only those
named here.
Cost: a listing of each folder. In an object store a listing is paid for, so there the files of
some batches are removed together.
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

#: In an object store files are removed once in so many batches.
REMOTE_EVERY = 16


def clean(
    checkpoint: Checkpoint,
    manifest: Manifest,
    kept: Sequence[Manifest],
    delivery: Delivery,
    store: Store | None,
) -> None:
    """Remove files of drivers up to that of `manifest`, its own and the newest, that it lacks.

    `kept`: manifests whose files stay, too, and the first of which has to be read. `store`: where
    second copies of run files lie; they go with them.
    """
    makers = range(manifest.generation + 1)
    line.retire(checkpoint, manifest, kept[0] if kept else manifest)
    if checkpoint.is_remote and manifest.batch % REMOTE_EVERY:
        return
    named = _named(manifest, kept)
    # Below the checkpoint there may be copies of an older start.
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
    """Remove what a batch has left that failed before its commit, and will be run again.

    Else each start on a disk that is full would take a part of the room that was made. Only files
    of the driver's own `generation` go, of which other drivers know by its manifests alone.
    """
    if checkpoint.is_remote:  # which has room, and may be what has failed
        return
    own = range(generation, generation + 1)
    remove_unnamed(checkpoint.runs, _named(manifest, kept), own)
    remove_unnamed(checkpoint.exchange, (), own)
    clean_staged(manifest, delivery, own)


def _named(manifest: Manifest, kept: Sequence[Manifest]) -> set[str]:
    return manifest.named_files().union(*(manifest_kept.named_files() for manifest_kept in kept))


def clean_staged(manifest: Manifest, delivery: Delivery, makers: range) -> None:
    """Remove staged results that no delivery asks for any more."""
    staged = list(manifest.results)
    if manifest.held is not None:  # merged files of what is shown have names of their own
        staged = [stored for _, files in delivery.held for stored in files]
    delivery.sink.clean(staged, makers)
