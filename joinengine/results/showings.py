"""Showings: by which files the results of several batches have become visible together.

Why: results that are held back are merged by whoever shows them, and two drivers that merge make
different files. One of them must count, whichever driver slept, and however far each has come.

A showing is a create-only file. Its name is the first batch of a stretch, its content the last one
and the files. Drivers that show the same stretch compete for one name. Who loses shows the winner's
files; what lies behind the winner's last batch is a stretch of its own.

Law: stretches do not overlap. The log of sources works alike (joinengine.sources.sourcelog).
Why it holds: a manifest may still hold back batches that another driver has shown meanwhile, but it
names the batch of each file, and whoever takes it up asks for showings from the first batch on.
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

#: Per batch its result files, which no batch has shown yet; batches follow one another.
Held = tuple[tuple[int, tuple[StoredFile, ...]], ...]


@dataclass(frozen=True, slots=True)
class Showing:
    """A stretch of batches, up to `through`, is visible as the files that are staged as `files`."""

    through: int
    files: tuple[str, ...]

    def rest(self, held: Held) -> Held:
        """The batches of `held` that lie behind the stretch."""
        return tuple((batch, files) for batch, files in held if batch > self.through)


def staged(last: Manifest) -> Held:
    """What the manifest `last` names of results that are held back; some may be shown since."""
    return () if last.held is None else (*last.held, (last.batch, last.results))


def find(checkpoint: Checkpoint, start: int) -> Showing | None:
    """The showing of the stretch that begins with batch `start`; None: there is none yet.

    Raises DamagedState if it is not whole.
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
    """The showing of the stretch from `start` on: this one, unless another driver was first.

    Raises TakenOver if the batch `through` is closed.
    """
    content = sealed({"first": start, "through": through, "files": list(files)})
    checkpoint.showings.create(f"{start:08d}", content)
    # After the create: before a showing is removed, all batches up to one behind it are closed.
    fence.check_boundary(checkpoint, through)
    showing = find(checkpoint, start)
    assert showing is not None, f"the showing of batch {start} is missing"
    return showing


def still_held(checkpoint: Checkpoint, held: Held) -> Held:
    """What of `held` is in no showing."""
    while held and (showing := find(checkpoint, held[0][0])) is not None:
        held = showing.rest(held)
    return held


def thin(checkpoint: Checkpoint) -> None:
    """Remove showings that no driver can ask for: the batch after their last one is closed."""
    closed = fence.greatest(checkpoint.boundary, -1)
    for start, following in pairwise(numbers(checkpoint.showings)):
        if following <= closed:
            checkpoint.showings.delete(f"{start:08d}")
