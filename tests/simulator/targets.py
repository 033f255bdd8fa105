"""An outside system with transactions, as drivers reach it: each verb is a step that may fail.

A driver may be killed or held before, between and after the steps of a delivery; a commit may fail
with nothing done, or be done with its reply lost. Seeds from `TOKENS_FROM` on deliver to one. Bugs
of such a delivery are planted here.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from unittest.mock import patch

from joinengine.driver import batch
from joinengine.results.token_sinks import NOTHING, OutcomeUnknown, ShutOut, Target
from tests.reference.target import staged_rows
from tests.simulator.disk import DELAYS_S, Broken

#: Seeds from here on are those from 0 on, with a target in the place of an output folder.
TOKENS_FROM = 1_000_000
#: How likely a driver is held before a step of a delivery, beside all other faults.
HELD = 0.05


class SimulatedTarget(Target):
    """A writer of an `Outside`, in the world of its driver."""

    def __init__(self, outside, world, storage):
        self.outside, self.world, self.storage = outside, world, storage
        self.epoch = None
        # A stream of its own: what other parts draw stays as it was.
        self.rng = random.Random(f"{world.actor.name} {world.scheduler.digest}")

    def _step(self, what, verb="get"):
        if self.world.faults.left > 0 and self.rng.random() < HELD:
            self.world.sleep(self.rng.choice(DELAYS_S))
        fault = self.world.step(f"{what} the target", verb)
        if fault == "fails before" and verb == "get":
            raise Broken(5, "injected: the target is away")
        return fault

    name = "outside"

    def may_hold(self):
        return self.outside.token >= 0

    def open(self, generation):
        self._step("open")
        self.epoch = self._begin()
        self._step("have opened")

    def _begin(self):
        """The epoch of a new writer, which shuts all others out."""
        self.outside.epoch += 1
        return self.outside.epoch

    def token(self):
        self._step("read the token of")
        return self._token()

    def _token(self):
        return self.outside.token

    def _is_shut_out(self):
        return self.epoch != self.outside.epoch

    def commit(self, batches):
        self._step("begin a transaction at")
        rows = staged_rows(self.storage, batches)
        fault = self._step("commit at", "put")
        if fault == "fails before":
            raise OutcomeUnknown("injected: nothing happened")
        if self._is_shut_out():
            raise ShutOut("another writer has opened the target")
        self._apply(batches[-1][0], rows)
        if fault == "fails after":
            raise OutcomeUnknown("injected: it happened all the same")
        self._step("have committed at")

    def _apply(self, through, rows):
        """All of it, at once."""
        self.outside.commits.append((through, rows))
        self.outside.token = through

    def close(self):
        self.epoch = None


def _token_outside():
    """The token is written behind the transaction that delivers."""

    def apply(self, through, rows):
        self.outside.commits.append((through, rows))
        self._step("write the token of")
        self.outside.token = through

    return patch.object(SimulatedTarget, "_apply", apply)


def _no_look():
    """Nobody reads the token before a delivery."""
    return patch.object(SimulatedTarget, "_token", lambda self: NOTHING)


def delivery_first():
    """A batch is delivered before its manifest is committed."""
    real = batch.BatchRunner._commit

    def commit(self, draft):
        self.delivery.sink.deliver(draft.outcome.batch, draft.outcome.results, self.generation)
        return real(self, draft)

    return patch.object(batch.BatchRunner, "_commit", commit)


@contextmanager
def _ids_per_generation():
    """Each driver has producers of its own, so that a newer one shuts no older one out."""
    with (
        patch.object(SimulatedTarget, "_begin", lambda self: 0),
        patch.object(SimulatedTarget, "_is_shut_out", lambda self: False),
    ):
        yield


#: Found by seeds from `TOKENS_FROM` on.
TOKEN_BUGS = {
    "token outside the transaction": _token_outside,
    "no look before a delivery": _no_look,
    "delivery before the manifest": delivery_first,
    "producer ids per generation": _ids_per_generation,
}
