"""The errors that joinengine raises on purpose.

Why: a user must be able to tell a request that cannot be served from state that is damaged. Every
message says what was asked, the value, and what to change.
"""

from __future__ import annotations


class JoinEngineError(Exception):
    """The base of all errors that joinengine raises on purpose."""


class InvalidRequest(JoinEngineError):
    """The request cannot be served as it stands; nothing was started."""


class CheckpointMismatch(InvalidRequest):
    """The checkpoint belongs to another query, or is of another format."""


class TakenOver(JoinEngineError):
    """Another driver has taken the checkpoint over; this one has stopped and changed nothing."""


class _TakenOver(TakenOver, CheckpointMismatch):
    """Programs that catch a `CheckpointMismatch`, as it was before 0.2, catch it until 0.3."""


_TakenOver.__name__ = _TakenOver.__qualname__ = TakenOver.__name__


def taken_over(message: str) -> TakenOver:
    """The error of a driver that another one has followed."""
    return _TakenOver(message)


class StoreUnreachable(JoinEngineError):
    """An object store did not do what it was asked, however often; nothing was committed."""


class CannotWrite(JoinEngineError):
    """A disk is full, over its quota, read-only or not ours; the batch was not committed."""


class DamagedState(JoinEngineError):
    """A file of the checkpoint is missing, truncated or altered; the message names it."""


class UnreadableFile(DamagedState):
    """A file of a source cannot be read as it was logged; `reason`: why, without the way on."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message
