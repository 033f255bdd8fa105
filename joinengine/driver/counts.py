"""The counts that planners see, as a checkpoint keeps them."""

from __future__ import annotations

from joinengine.balancing.statistics import Interval
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest
from joinengine.world.storage import verify


def read_counts(checkpoint: Checkpoint, manifest: Manifest) -> dict[str, Interval]:
    """The counts that a manifest names. Raises DamagedState if a file differs from what was sealed.

    Returns name of the statistics file -> its counts.
    """
    named = [stored for state in manifest.operators for stored in state.layouts.history]
    return {
        stored.name: Interval.from_bytes(
            verify(checkpoint.runs, stored, "statistics file").to_pybytes()
        )
        for stored in named
    }
