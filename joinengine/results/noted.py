"""Finds where a checkpoint has delivered its results, from the notes of its sinks."""

from __future__ import annotations

import json

from joinengine.results import kafka_target, outputs, table_sinks
from joinengine.state.checkpoint import Checkpoint

#: Note of a sink -> the entry that names the place.
_PLACES = {outputs.NOTE: "folder", table_sinks.NOTE: "table", kafka_target.NOTE: "topic"}


def delivered_to(checkpoint: Checkpoint) -> str | None:
    """The folder, table or topic that has the results of a checkpoint; None: none is noted.

    A note that cannot be read counts as none: the sink that made it refuses it by name.
    """
    for note, entry in _PLACES.items():
        try:
            place = json.loads(checkpoint.storage.get(note))[entry]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            continue
        if place:
            return str(place)
    return None
