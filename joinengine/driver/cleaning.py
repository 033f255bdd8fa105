"""Cleaning up behind a batch: what no manifest names any more is removed.

Law: nothing is removed unless the newest manifest is the driver's own. Then no older driver can
commit its files any more, and of these files a newer driver can name only those named here.
Cost: a listing of each folder. In an object store a listing is paid for, so there the files of
some batches are removed together.
"""

from __future__ import annotations

from joinengine.driver import showings
from joinengine.driver.showings import Held
from joinengine.driver.sinks import SideOutput, Sink
from joinengine.state import manifest as manifests
from joinengine.state.checkpoint import Checkpoint, tick_name
from joinengine.state.manifest import Manifest
from joinengine.world.storage import remove_unnamed

#: In an object store files are removed once in so many batches.
REMOTE_EVERY = 16


def clean(
    checkpoint: Checkpoint, manifest: Manifest, sink: Sink, aside: SideOutput | None, held: Held
) -> None:
    """Remove files of drivers up to that of `manifest`, its own and the newest, that it lacks.

    `held`: results that are held back after it.
    """
    own = manifest.generation
    manifests.retire(checkpoint, manifest)
    if checkpoint.is_remote and manifest.batch % REMOTE_EVERY:
        return
    for folder in (checkpoint.runs, checkpoint.store):  # also if only an older start kept one
        remove_unnamed(folder, manifest.named_files(), own)
    clean_staged(manifest, sink, held)
    if sink.every > 1:
        showings.thin(checkpoint)
    if aside is not None:
        aside.clean(manifest.refused, own)
    remove_unnamed(checkpoint.exchange, (), own)
    remove_unnamed(checkpoint.ticks, [tick_name(own)], own)


def clean_staged(manifest: Manifest, sink: Sink, held: Held) -> None:
    """Remove staged results that no delivery asks for any more."""
    staged = list(manifest.results)
    if manifest.held is not None:  # merged files of what is shown have names of their own
        staged = [stored for _, files in held for stored in files]
    sink.clean(staged, manifest.generation)
