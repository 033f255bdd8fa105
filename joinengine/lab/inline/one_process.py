"""What the tasks of a batch never meet where one process runs them all."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from joinengine.model.errors import InvalidRequest
from joinengine.operators.base import Operator
from joinengine.state.manifest import Position


class OneProcess:
    """What `Jobs` answer that run in one process: it loses no executor, and nobody keeps a log."""

    __slots__ = ()

    @property
    def done_by(self) -> str:
        """Always the same."""
        return "one process"

    def logged(self, batch: int) -> Mapping[str, str]:
        """None."""
        return {}

    def logged_end(self, batch: int, logged: Mapping[str, str]) -> Position:
        """The begin of all sources."""
        return {}

    def read_ahead(self, start: Position) -> None:
        """Nothing is read before it is asked for."""

    def cut_short(self) -> None:
        """A step ends by itself."""

    def gone(self, operator: Operator, instances: int) -> Collection[int]:
        """None."""
        return ()

    def is_apart(self, operator: Operator, instances: int, domains: int) -> bool:
        """All is in one place."""
        return False

    def kill(self) -> str:
        """There is no executor."""
        raise InvalidRequest(
            "kill: this query runs in one process, so there is no executor to kill; use a cluster"
        )
