"""Bugs of the loop, and of the hand-over of micro-batches, that are planted into the engine."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from unittest.mock import patch

from joinengine.driver import batch
from joinengine.driver import computation as computing
from joinengine.model.errors import JoinEngineError
from joinengine.state.manifest import Handed
from tests.simulator import jobs


@contextmanager
def _position_first():
    """How far a batch goes is written down before it is done, and believed afterwards."""
    real, opened, written = computing.end_of, computing.Computing.open, {}

    def open_batch(self, last, counts, end, *others, **named):
        found = opened(self, last, counts, end, *others, **named)
        written["end"] = end
        return found

    def end_of(jobs, found):
        return written.get("end") or real(jobs, found)

    with (
        patch.object(computing.Computing, "open", open_batch),
        patch.object(computing, "end_of", end_of),
        patch.object(batch, "end_of", end_of),
    ):
        yield


@contextmanager
def _position_of_the_loser():
    """A driver that has lost a batch to another goes on where its own attempt has ended."""
    opened, adopt = computing.Computing.open, batch.BatchRunner._adopt

    def open_batch(self, last, counts, end, *others, **named):
        self.end = end
        return opened(self, last, counts, end, *others, **named)

    def adopting(self, found):
        adopt(self, found)
        own = getattr(self._computing, "end", found.position)
        self.manifest = replace(self.manifest, position=own)

    with (
        patch.object(computing.Computing, "open", open_batch),
        patch.object(batch.BatchRunner, "_adopt", adopting),
    ):
        yield


def _callback_without_a_manifest():
    """Spark is told that a micro-batch is done which has failed."""
    real = batch.BatchRunner.take

    def take(self, frame, handed, end):
        with suppress(OSError, JoinEngineError, jobs.JobFailed):
            real(self, frame, handed, end)

    return patch.object(batch.BatchRunner, "take", take)


def _micro_batches_at_or_below():
    """A micro-batch with a number that was noted, or a smaller one, is taken for a replay."""

    def is_replay_of(self, noted):
        return self.batch <= noted.batch

    return patch.object(Handed, "is_replay_of", is_replay_of)


def _micro_batch_not_noted():
    """A batch without a micro-batch forgets the last one."""
    real = batch.BatchRunner.run

    def run(self, end, handed=None):
        real(self, end)

    return patch.object(batch.BatchRunner, "run", run)


#: Name -> the engine with the bug.
LOOP_BUGS = {
    "position first": _position_first,
    "position of the loser": _position_of_the_loser,
    "a callback without a manifest": _callback_without_a_manifest,
    "micro-batches at or below": _micro_batches_at_or_below,
    "a micro-batch not noted": _micro_batch_not_noted,
}
