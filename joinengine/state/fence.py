"""The fence: decides which driver may go on, and which batches are closed for ever.

Why: a driver may sleep at any step, for any time, while another driver takes its checkpoint over,
and then go on as if nothing had happened. An existing manifest of its batch stops it, but a
manifest that was removed in the meantime does not. So drivers are numbered, and a batch is closed
before its manifest is removed.

Both numbers, generation and boundary, are *markers*: files that are created and never changed, with
a number as their name; the greatest counts. No driver can undo the marker of another, since no
marker is overwritten. Smaller markers may be removed. This needs no compare-and-swap.

Law: no two drivers have the same generation; the boundary never falls; a manifest at or below the
boundary is not committed, even if it was created.
Cost: a listing is 10 us, a marker 0.1 ms on a local disk.
"""

from __future__ import annotations

import json

from joinengine.model.errors import DamagedState, JoinEngineError, taken_over
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.storage import Storage, numbers

#: How many markers stay: the one that counts, and the previous one, since a listing may miss a
#: marker that is just being created.
_KEPT = 2


def greatest(markers: Storage, none: int) -> int:
    """The marker that counts, the greatest; `none` if there is no marker."""
    return max(numbers(markers), default=none)


def mark(markers: Storage, number: int, content: bytes = b"") -> bool:
    """Create a marker; False if it existed."""
    return markers.create(f"{number:08d}", content)


def thin(markers: Storage) -> None:
    """Remove markers that do not count, except the greatest of these."""
    for number in numbers(markers)[:-_KEPT]:
        markers.delete(f"{number:08d}")


def claim(checkpoint: Checkpoint) -> int:
    """Claim a generation for a driver that starts now: greater than all earlier ones."""
    while True:
        generation = greatest(checkpoint.generations, 0) + 1
        if claims(checkpoint, generation):
            return generation


def claims(checkpoint: Checkpoint, generation: int) -> bool:
    """Try to claim `generation` for a driver that starts now; False: another driver has it."""
    driver = json.dumps(checkpoint.world.process()).encode()
    # If the number was used earlier and its marker is removed, a greater marker exists.
    created = mark(checkpoint.generations, generation, driver)
    if not created or greatest(checkpoint.generations, 0) != generation:
        return False
    thin(checkpoint.generations)
    return True


def claimed_by(generations: Storage, generation: int) -> dict[str, object]:
    """The host and process that a driver noted at its start; empty: not known."""
    try:
        driver = json.loads(generations.get(f"{generation:08d}"))
    except (OSError, ValueError, RecursionError, JoinEngineError):
        return {}
    return driver if isinstance(driver, dict) else {}


def check_markers(checkpoint: Checkpoint) -> None:
    """Raise DamagedState if all generation markers, or all manifests above the boundary, are gone.

    Without the markers, a driver would get the number of an earlier driver, and so the names of its
    files. There is always a manifest above the boundary: it rises only below one that stays.
    """
    markers, manifests = checkpoint.generations, checkpoint.manifests
    boundary = greatest(checkpoint.boundary, -1)
    if manifests.names() and greatest(markers, 0) == 0:
        raise DamagedState(
            f"{markers.folder}, which lists the drivers of the checkpoint, is missing or empty; "
            "restore it from a copy"
        )
    if boundary >= 0 and max(numbers(manifests, ".json"), default=-1) <= boundary:
        raise DamagedState(
            f"{manifests.folder} is missing or holds no manifest after batch {boundary}, but the "
            "checkpoint has gone on; restore it from a copy"
        )


def check_generation(generations: Storage, generation: int) -> None:
    """Raise TakenOver if a driver with a greater generation was started.

    Safety does not depend on this check: another driver may be started right after it.
    """
    newest = greatest(generations, 0)
    if newest <= generation:
        return
    driver = claimed_by(generations, newest)
    by = f"on {driver.get('host')}, process {driver.get('pid')}" if driver else "no longer running"
    location = generations.folder.rsplit("/", 2)[0]
    raise taken_over(
        f"another driver ({by}) has taken over checkpoint {location}: it has generation {newest}, "
        f"and this driver has generation {generation}; nothing is lost. Leave this driver stopped"
    )


def check_boundary(checkpoint: Checkpoint, batch: int) -> None:
    """Raise TakenOver if `batch` is closed: another driver has committed batches far beyond it."""
    boundary = greatest(checkpoint.boundary, -1)
    if batch <= boundary:
        raise taken_over(
            f"another driver has taken over checkpoint {checkpoint.location} and gone on, so "
            f"batch {batch} and all others up to {boundary} are closed; nothing is lost. Leave "
            "this driver stopped"
        )


def raise_boundary(checkpoint: Checkpoint, batch: int) -> None:
    """Close all batches up to `batch`; a higher boundary stays."""
    if batch > greatest(checkpoint.boundary, -1):
        mark(checkpoint.boundary, batch)
        thin(checkpoint.boundary)
