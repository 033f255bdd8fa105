"""A store that lies on the same machine and seems to lie far away.

Each instance asks for what it writes and reads by a request of its own, and those of a batch, or
after a loss, go side by side: the longest one counts.
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
    """A store that waits for as long as its requests would take at a speed."""

    note: ClassVar[str] = " (emulated)"

    def __init__(self, checkpoint: Checkpoint, copies: Storage, speed: Speed) -> None:
        super().__init__(checkpoint, copies)
        self._speed = speed

    @override
    def fetch(self, state: OperatorState, instances: Collection[int]) -> Fetched:
        """In the seconds that its speed takes for all bytes of an instance."""
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
