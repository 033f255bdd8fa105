"""What users wish of the layouts while a query runs: at a batch, or as soon as can be."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from joinengine.driver.relayout import Relayout


class Wishes:
    """The wishes that wait; `schedule`: batch -> wishes to grant before it."""

    def __init__(self, schedule: Mapping[int, Sequence[Relayout]]) -> None:
        self._schedule = schedule
        self._waiting = deque[Relayout]()
        self._granted: Sequence[Relayout] = ()

    @property
    def waiting(self) -> list[Relayout]:
        """Those that came while the query ran."""
        return list(self._waiting)

    def add(self, wish: Relayout) -> None:
        """Let a wish wait for the end of the running batch."""
        self._waiting.append(wish)

    def before(self, batch: int) -> Sequence[Relayout]:
        """The wishes to grant before a batch: the scheduled ones, then those that have come."""
        wishes = list(self._schedule.get(batch, ()))
        while self._waiting:
            wishes.append(self._waiting.popleft())
        self._granted = wishes
        return wishes

    def give_back(self) -> None:
        """Let those that were granted last wait again: the batch was another driver's."""
        self._waiting.extend(self._granted)
