"""The parts of `Jobs` that do nothing if one process runs all tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from joinengine.model.errors import InvalidRequest
from joinengine.operators.base import Operator
from joinengine.state.manifest import Position


class OneProcess:
    """The answers of `Jobs` in one process, which loses no executor and keeps no log."""

    __slots__ = ()

    @property
    def done_by(self) -> str:
        """A constant: all tasks run here."""
        return "one process"

    def logged(self, batch: int) -> Mapping[str, str]:
        """None."""
        return {}

    def logged_end(self, batch: int, logged: Mapping[str, str]) -> Position:
        """The beginning of all sources."""
        return {}

    def read_ahead(self, start: Position) -> None:
        """Do nothing: nothing is read ahead."""

    def cut_short(self) -> None:
        """Do nothing: a step ends by itself."""

    def gone(self, operator: Operator, instances: int) -> Collection[int]:
        """None."""
        return ()

    def is_apart(self, operator: Operator, instances: int, domains: int) -> bool:
        """False: everything is in one place."""
        return False

    def kill(self) -> str:
        """Raise InvalidRequest: there is no executor."""
        raise InvalidRequest(
            "kill: this query runs in one process, so there is no executor to kill; use a cluster"
        )
