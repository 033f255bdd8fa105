"""Restoring: computes the batches again whose state was lost with the executors.

Spark only moves forward: it does not repeat micro-batches that it has logged as done. So, before
the next batch, the driver itself computes the batches after the newest restorable one again. The
manifest of each says where it ends in its sources, its clock, the wishes granted after it and its
watermarks. So the same tuples are late, and the same results are made. These results were delivered
after the commits, and are dropped.

Law: the state equals that of the newest manifest, in other files. Nothing is committed: the next
batch commits the whole state. If the driver is killed before that, the next driver restores again.
Source: ours; sources that can be read again take the place of a log of tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from joinengine.driver import step
from joinengine.driver.computation import Computing, end_of
from joinengine.driver.jobs import Jobs
from joinengine.driver.recovery.durability import Uploaded, files_of
from joinengine.driver.stages import Counts, Moment
from joinengine.model.errors import DamagedState
from joinengine.results.targets import Discard
from joinengine.state import line
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest
from joinengine.state.wished import Relayout


class Line(NamedTuple):
    """The newest restorable manifest (None: the query begins anew), and the manifests after it."""

    restorable: Manifest | None
    lost: Sequence[Manifest]


def line_to(checkpoint: Checkpoint, newest: Manifest) -> Line:
    """From where a checkpoint is restored. Raises DamagedState, naming a file, if it cannot be."""
    if newest.restorable >= newest.batch:  # a missing file is damage: its reader reports it
        return Line(newest, ())
    there, lost, manifest = set(checkpoint.runs.names()), list[Manifest](), newest
    while missing := files_of(manifest) - there:
        lost.insert(0, manifest)
        if manifest.batch == newest.restorable:
            raise DamagedState(
                f"run file {checkpoint.runs.folder}/{min(missing)} is missing; restore it from a "
                "copy"
            )
        if manifest.batch == 0:
            return Line(None, lost)
        manifest = line.before(checkpoint.manifests, manifest)
    return Line(manifest, lost)


def restored(
    checkpoint: Checkpoint,
    jobs: Jobs,
    computing: Computing,
    uploaded: Uploaded,
    generation: int,
    start: tuple[Manifest, Counts],
    lost: Sequence[Manifest],
) -> tuple[Manifest, Counts]:
    """The newest manifest with its state in new files, and its counts.

    `start`: the restorable manifest and its counts; `lost`: the manifests after it.
    """
    program, world = computing.program, checkpoint.world
    last, counts = start
    for known in lost:
        uploaded.share(last)
        opened = computing.open(last, counts, end_of(jobs, known), generation, known.clock_s)
        opened = replace(opened, handed=known.handed)
        computed = computing.run(computing.route(None, opened), Discard)
        wishes = _wishes(last, known) if known.wishes is None else known.wishes
        draft = step.close(program, computed, Moment(world.now_s(), world.nonce(), wishes))
        for name, content in draft.sealed.items():
            checkpoint.runs.put(name, content)
        states = zip(draft.outcome.operators, known.operators, strict=True)
        operators = tuple(replace(state, clock=was.clock) for state, was in states)
        serials = max(known.serials, draft.outcome.serials)  # now there may be more tasks
        last = replace(known, operators=operators, serials=serials, chain=None)
        counts = draft.counts
    return last, counts


def _wishes(last: Manifest, known: Manifest) -> tuple[Relayout, ...]:
    """The wish granted after a batch whose manifest, of an earlier version, does not note it."""
    for ours, theirs in zip(last.operators, known.operators, strict=True):
        was, wanted = ours.layouts.newest, theirs.layouts.newest
        if (was.choice, was.wanted) != (wanted.choice, wanted.wanted):
            return (Relayout(wanted.choice, wanted.wanted),)
    return ()
