"""The driver's wall time by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from joinengine.world.world import World


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Measures steps. `seconds`: step -> its wall time."""

    world: World
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Take the wall time of a step."""
        start = self.world.timer_s()
        yield
        self.seconds[step] = self.world.timer_s() - start
