"""The driver's wall time by step, and what happens if the clock of its machine is set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from joinengine.driver import clock
from joinengine.state.manifest import Manifest
from joinengine.world.world import World


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Measures steps. `clock_s`: when it was started; `seconds`: step -> its wall time."""

    world: World
    clock_s: float
    _start_s: float
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def started(cls, world: World) -> Stopwatch:
        """A stopwatch that starts now."""
        return cls(world, world.now_s(), world.timer_s())

    def now_s(self) -> float:
        """The time, in seconds since the epoch, on a clock that nobody has set since the start."""
        return self.clock_s + self.world.timer_s() - self._start_s

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Take the wall time of a step."""
        start = self.world.timer_s()
        yield
        self.seconds[step] = self.world.timer_s() - start


class WallClock:
    """The clock of a machine, which may be set at any moment, by a person, NTP or a pause.

    Why: an hour by which the clock is set forward is not an hour in which a side was silent. The
    timer says how much time has passed; on Linux, it stands still while the machine is suspended.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._offset_s = world.now_s() - world.timer_s()

    def followed(self, manifest: Manifest) -> Manifest:
        """The manifest, its times moved by as much as the clock was set since the last call."""
        now_s = self._world.now_s()
        before_s, self._offset_s = self._offset_s, now_s - self._world.timer_s()
        return clock.stepped(manifest, self._offset_s - before_s, now_s)
