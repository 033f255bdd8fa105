"""Restoring: the batches whose state the executors have taken with them are computed again.

Spark only moves forward: what it has logged as done it does not bring again. So the driver itself
computes these batches, from the newest restorable one on, before it goes on with the next. Where
each ends in its sources, its clock, what was wished and the watermarks after it are in its
manifest, so the same tuples are late, and the same results are made. They were delivered by the
manifests' word, and are dropped.

Law: the state is that which the newest manifest had named, in other files. Nothing is committed:
the next batch commits the whole state, and if the driver is killed before, the next one restores
again.
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
    """The newest restorable manifest, None: that before the first batch; and those after it."""

    restorable: Manifest | None
    lost: Sequence[Manifest]


def line_to(checkpoint: Checkpoint, newest: Manifest) -> Line:
    """From where a checkpoint is restored. Raises DamagedState, naming a file, if it cannot be."""
    if newest.restorable >= newest.batch:  # what is missing is damage, and its reader will tell
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
    """The newest manifest with its state in files that are there, and its counts.

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
        serials = max(known.serials, draft.outcome.serials)  # there may be more tasks than then
        last = replace(known, operators=operators, serials=serials, chain=None)
        counts = draft.counts
    return last, counts


def _wishes(last: Manifest, known: Manifest) -> tuple[Relayout, ...]:
    """The wish that was granted after a batch of an earlier version, if there was one."""
    for ours, theirs in zip(last.operators, known.operators, strict=True):
        was, wanted = ours.layouts.newest, theirs.layouts.newest
        if (was.choice, was.wanted) != (wanted.choice, wanted.wanted):
            return (Relayout(wanted.choice, wanted.wanted),)
    return ()
