"""Showings: record the files in which the results of several batches become visible together.

Why: the driver that shows held-back results merges them first, and two drivers make different
merged files. Only those of one driver may count, whichever driver slept, and however far each has
come.

A showing is a create-only file. Its name is the first batch of a stretch; its content is the last
batch and the files. Drivers that show the same stretch compete for one name. The loser shows the
winner's files; later batches than the winner's last one begin a new stretch.

Law: stretches do not overlap. The source log works alike (`joinengine.sources.sourcelog`).
Why it holds: a manifest may still hold back batches that another driver has shown meanwhile. But it
names the batch of each file, and a driver that takes it up looks for showings from the first batch
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from joinengine.model.errors import DamagedState
from joinengine.state import fence
from joinengine.state.checkpoint import Checkpoint, sealed, unsealed
from joinengine.state.manifest import Manifest
from joinengine.world.storage import StoredFile, numbers

#: (batch, its result files that are not visible yet), for consecutive batches.
Held = tuple[tuple[int, tuple[StoredFile, ...]], ...]


@dataclass(frozen=True, slots=True)
class Showing:
    """A stretch of batches, up to `through`, is visible as the files that are staged as `files`."""

    through: int
    files: tuple[str, ...]

    def rest(self, held: Held) -> Held:
        """The batches of `held` after the stretch."""
        return tuple((batch, files) for batch, files in held if batch > self.through)


def staged(last: Manifest) -> Held:
    """The held-back results that the manifest `last` names; some may have become visible since."""
    return () if last.held is None else (*last.held, (last.batch, last.results))


def find(checkpoint: Checkpoint, start: int) -> Showing | None:
    """The showing of the stretch that begins with batch `start`; None: there is none yet.

    Raises DamagedState if it is incomplete.
    """
    name = f"{start:08d}"
    try:
        plain = unsealed(checkpoint.showings.get(name), "through", "files")
        if plain.get("first", start) == start:  # an older version did not say it
            return Showing(plain["through"], tuple(plain["files"]))
    except FileNotFoundError:
        return None
    except ValueError:
        pass
    raise DamagedState(
        f"showing {checkpoint.showings.folder}/{name} is truncated or was altered; restore it from "
        "a copy"
    )


def create(checkpoint: Checkpoint, start: int, through: int, files: Sequence[str]) -> Showing:
    """Create the showing of the stretch from `start` on; another driver's if that was first.

    Raises TakenOver if the batch `through` is closed.
    """
    content = sealed({"first": start, "through": through, "files": list(files)})
    checkpoint.showings.create(f"{start:08d}", content)
    # This must follow the creation: before a showing is removed, all batches up to one after it
    # are closed.
    fence.check_boundary(checkpoint, through)
    showing = find(checkpoint, start)
    assert showing is not None, f"the showing of batch {start} is missing"
    return showing


def still_held(checkpoint: Checkpoint, held: Held) -> Held:
    """The part of `held` that is in no showing."""
    while held and (showing := find(checkpoint, held[0][0])) is not None:
        held = showing.rest(held)
    return held


def thin(checkpoint: Checkpoint) -> None:
    """Remove showings that no driver can need: the batch after their last one is closed."""
    closed = fence.greatest(checkpoint.boundary, -1)
    for start, following in pairwise(numbers(checkpoint.showings)):
        if following <= closed:
            checkpoint.showings.delete(f"{start:08d}")
