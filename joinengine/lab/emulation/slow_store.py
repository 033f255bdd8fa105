"""A store on the same machine that seems to be far away.

Each instance makes one request for what it writes or reads. The requests of a batch, or after a
loss, are parallel: the longest one counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

from typing_extensions import override

from joinengine.model.speeds import Speed
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.operator_state import OperatorState
from joinengine.state.store import Fetched, Store, runs_of
from joinengine.world.storage import Storage


class SlowStore(Store):
    """A store that waits as long as its requests would take at a speed."""

    note: ClassVar[str] = " (emulated)"

    def __init__(self, checkpoint: Checkpoint, copies: Storage, speed: Speed) -> None:
        super().__init__(checkpoint, copies)
        self._speed = speed

    @override
    def fetch(self, state: OperatorState, instances: Collection[int]) -> Fetched:
        """Fetch in the seconds that all bytes of an instance take at this speed."""
        fetched = super().fetch(state, instances)
        seconds = {
            instance: self._speed.seconds([size]) for instance, size in fetched.sizes.items()
        }
        self._world.sleep(max(seconds.values()))
        return replace(fetched, seconds=seconds)

    @override
    def _copy(self, states: list[OperatorState], *, checked: bool) -> set[str]:
        copied = super()._copy(states, checked=checked)
        sizes = defaultdict[tuple[int, int], int](int)
        for number, state in enumerate(states):
            for run in runs_of(state):
                if run.file in copied:
                    sizes[number, run.instance] += run.size_bytes
        self._world.sleep(self._speed.seconds(sizes.values()))
        return copied
