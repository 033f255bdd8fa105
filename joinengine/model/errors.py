"""The errors that joinengine raises on purpose.

Why: a user must be able to tell a request that cannot be served from state that is damaged. Every
message says what was asked, the value, and what to change.
"""

from __future__ import annotations

from joinengine.model.spelling import printed_lines


class JoinEngineError(Exception):
    """The base class of all errors that joinengine raises on purpose."""

    def __init__(self, *parts: object) -> None:
        super().__init__(
            *(printed_lines(part) if isinstance(part, str) else part for part in parts)
        )


class InvalidRequest(JoinEngineError):
    """joinengine cannot do what was asked; it has started nothing.

    A running query raises it if a source has changed so that the query cannot read it.
    """


class CheckpointMismatch(InvalidRequest):
    """The checkpoint belongs to another query, or has another format."""


class TakenOver(JoinEngineError):
    """Another driver has taken over the checkpoint. This driver has stopped; nothing is lost."""


class _TakenOver(TakenOver, CheckpointMismatch):
    """Also a CheckpointMismatch, until 0.3, for programs that catch the error of before 0.2."""


_TakenOver.__name__ = _TakenOver.__qualname__ = TakenOver.__name__


def taken_over(message: str) -> TakenOver:
    """The error for a driver whose checkpoint another driver has taken over."""
    return _TakenOver(message)


class StoreUnreachable(JoinEngineError):
    """An object store failed again and again. The next start of the query goes on."""


class CannotWrite(JoinEngineError):
    """A disk is full, over quota, read-only or not permitted. The next start goes on."""


class DamagedState(JoinEngineError):
    """A file of the checkpoint is missing, truncated or changed; the message names it."""


class DataLost(JoinEngineError):
    """A source no longer has what the query would read next."""


class UnreadableMessage(JoinEngineError):
    """A message of a source cannot be decoded; the text names its topic, partition and offset."""


class UnreadableFile(DamagedState):
    """A file of a source cannot be read as it was logged; `reason`: why, without advice."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message
