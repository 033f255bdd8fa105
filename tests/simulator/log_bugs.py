"""Bugs of the source log that are planted into the engine (tests.simulator.bugs)."""

from __future__ import annotations

from unittest.mock import patch

from joinengine.sources.sourcelog import SourceLog


def _removed_before_it_is_folded():
    """What is to be folded is removed at once, and the fold is written afterwards."""
    real = SourceLog.fold

    def fold(self, logged):
        before, create = list(self._known), type(self.storage).create

        def late(storage, name, content):
            storage.delete(*(piece.name for piece in before[:-1]))
            return create(storage, name, content)

        with patch.object(type(self.storage), "create", late):
            real(self, logged)

    return patch.object(SourceLog, "fold", fold)


#: Name -> the engine with the bug.
LOG_BUGS = {
    "removed before it is folded": _removed_before_it_is_folded,
}
