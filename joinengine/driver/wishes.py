"""The wishes of users for the layouts of a running query: for a batch, or as soon as possible."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from threading import Lock

from joinengine.state.wished import Relayout


class Wishes:
    """The wishes that wait; `schedule`: batch -> wishes to grant before it."""

    def __init__(self, schedule: Mapping[int, Sequence[Relayout]]) -> None:
        self._schedule = schedule
        self._waiting = deque[Relayout]()
        self._adding = Lock()

    @property
    def waiting(self) -> list[Relayout]:
        """The wishes that came while the query ran."""
        return list(self._waiting)

    def add(self, wish: Relayout, batch: int, check: Callable[[list[Relayout]], None]) -> None:
        """Let a wish wait for the end of the running batch, if `check` allows it beside the others.

        `batch`: as in `coming`. Two threads may bring wishes that exclude each other.
        """
        with self._adding:
            check(self.coming(batch, wish))
            self._waiting.append(wish)

    def before(self, batch: int) -> tuple[Relayout, ...]:
        """The wishes to grant before a batch: the scheduled ones, then those that have come."""
        return (*self._schedule.get(batch, ()), *self._waiting)

    def coming(self, batch: int, *new: Relayout) -> list[Relayout]:
        """All wishes in the order in which they will be granted, `new` ones before the scheduled.

        `batch`: what was scheduled for it, or for one before, is granted.
        """
        later = (self._schedule[at] for at in sorted(self._schedule) if at > batch)
        return [*self._waiting, *new, *chain.from_iterable(later)]

    def granted(self, wishes: Sequence[Relayout]) -> None:
        """Remove the waiting wishes that a committed batch of this driver has granted."""
        known = set(map(id, wishes))
        while self._waiting and id(self._waiting[0]) in known:
            self._waiting.popleft()
