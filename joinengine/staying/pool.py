"""The pool of resident tasks of one session: they carry out orders, batch after batch.

Why: starting a job takes tens of milliseconds, even if its work takes only a few. So one job holds
the session's slots, with one task in each, and its tasks carry out the orders that the driver
sends. A round trip takes a tenth of a millisecond (docs/decisions/0025).

The slots are leased, not owned. The pool gives them back as soon as another job of the session
waits for them, when executors come or go, when no order has come for a while, and before the
session ends. Queries then run jobs instead, for a time that doubles while other jobs keep coming.

Law: a resident task never holds the only copy of anything that a batch needs. If a task is lost, a
job carries out the orders again, and Spark may retry each task of it. So a task may have several
attempts; the attempt whose report arrives counts.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Protocol

from joinengine.staying.door import Door, Hosts, Resident
from joinengine.staying.orders import Function, Order, answers, give

_log = logging.getLogger("joinengine")
#: Seconds that a batch waits for tasks to connect; then it begins with those that have.
_CONNECT_S = 0.5
#: Seconds that a process that ends waits for the job to end.
_LEAVE_S = 3.0
#: Seconds between two looks for waiting jobs of the session, and seconds without an order after
#: which the slots are given back.
_WATCH_S, _IDLE_S = 0.1, 10.0
#: Seconds for which the slots are left to other jobs, at first and at most.
_LEFT_S, _LONGEST_LEFT_S = 1.0, 60.0


class Lost(Exception):
    """Orders were cut short (`Pool.cut`)."""


class Slots(Protocol):
    """The slots of a session, and the jobs that occupy them."""

    @property
    @abstractmethod
    def hosts(self) -> Hosts | None:
        """Where tasks reach the driver; None: they run on its machine, as its user."""

    @abstractmethod
    def count(self) -> int:
        """How many tasks run at a time."""

    @abstractmethod
    def executors(self) -> Collection[str]:
        """The executors that are alive; empty if tasks run in the driver's process.

        Raises an error of any kind if the session has ended.
        """

    @abstractmethod
    def is_on(self, location: str, executors: Collection[str]) -> bool:
        """Whether one of the executors is at `location`."""

    @abstractmethod
    def occupy(self, group: str, count: int, door: Door) -> threading.Thread:
        """Start a job whose tasks connect to a door and stay; the thread ends with the job."""

    @abstractmethod
    def cancel(self, group: str) -> None:
        """End the job `group`; the session may have ended."""

    @abstractmethod
    def settle(self, within_s: float) -> None:
        """Wait until the tasks of ended jobs have also ended; the session may have ended."""

    @abstractmethod
    def others_wait(self, group: str) -> bool:
        """Whether the session has a job other than `group`: it waits, as all slots are taken."""

    @abstractmethod
    def unreached(self, group: str) -> str | None:
        """Why a task of the job `group` could not reach its door, in words; None: not reported."""

    @abstractmethod
    def code(self, function: Function) -> bytes:
        """A function as bytes that tasks can load."""


class Pool:
    """The resident tasks of one session; all of its queries give them orders."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        #: held while orders are out, and while slots are taken or given back
        self._turn = threading.Lock()
        self._tasks = list[Resident]()
        self._door: Door | None = None
        self._count, self._group = 0, ""
        #: the executors that were alive when the slots were taken
        self._executors: Collection[str] = ()
        #: whether a task has ever reached the driver
        self._is_reached = False
        #: held while orders are cut short, so that it does not reach the next orders
        self._cutting = threading.Lock()
        self._owner: object = None
        self._job: threading.Thread | None = None
        self._is_wanted = False
        self._used_s = self._taken_s = time.monotonic()
        #: until when the slots are left to other jobs, and for how many seconds the next time
        self._left_until_s, self._left_s = 0.0, _LEFT_S
        #: why tasks cannot stay after all, in words; None: they can
        self.obstacle: str | None = None

    @property
    def holds(self) -> bool:
        """Whether it has the slots of the session."""
        return bool(self._tasks)

    def carry_out(
        self,
        owner: object,
        name: str,
        function: Function,
        orders: Sequence[Order],
        places: Sequence[str | None] | None = None,
    ) -> list[bytes] | str:
        """The answers of `function` to the orders; a text says why a job must do the work instead.

        `owner`: identifies the giver, for `cut`. `name`: of the function, in this process.
        `places`: the executor for each order; None: any. Raises Failed if an order fails, and Lost
        if the orders are cut short.
        """
        wanted = places or [None] * len(orders)
        with self._turn:
            self._owner = owner
            try:
                if (why := self._take(wanted)) is not None:
                    return why
                if self._owner is None:
                    raise EOFError  # as if `cut` had come a moment later
                return answers(self._tasks, name, self._code_of(function), orders, wanted)
            except (OSError, EOFError):
                self._give_back(cancel=True)
                if self._owner is None:
                    raise Lost("the running batch was interrupted") from None
                _log.warning("joinengine: a resident task was lost; a job does its work")
                return "a resident task was lost"
            finally:
                with self._cutting:
                    is_cut, self._owner = self._owner is None, None
                self._used_s = time.monotonic()
                if is_cut:  # after the last answer: the tasks have ended all the same
                    self._give_back()
                if self._is_wanted and self.holds:
                    self._leave_to_others()

    def hint(self, name: str, function: Function, orders: Sequence[Order]) -> None:
        """Give orders without an answer: order i to the task that also gets the next order i.

        A hint waits for nothing: orders without a task are dropped, and all of them are if another
        thread has the turn. `function` must not fail.
        """
        if not self._turn.acquire(blocking=False):
            return
        try:
            with suppress(OSError):  # the next order finds out which task is lost
                if not self._is_wanted:
                    for task, order in zip(self._tasks, orders, strict=False):
                        give(task, name, self._code_of(function), order)
        finally:
            self._turn.release()

    def cut(self, owner: object) -> None:
        """Cut the orders short that `owner` has given."""
        with self._cutting:
            if self._owner is owner:
                self._owner = None
                self._slots.cancel(self._group)
                for task in list(self._tasks):
                    task.end()

    def release(self) -> None:
        """Give the slots back, because the query runs a job next."""
        with self._turn:
            self._give_back()

    def leave(self) -> None:
        """Before the session ends: give the slots back, unless orders are out; wait for the job.

        Why: Spark prints an error for each task that still runs when it ends.
        """
        if self._turn.acquire(blocking=False):
            try:
                self._give_back()
            finally:
                self._turn.release()
            if self._job is not None:
                self._job.join(_LEAVE_S)

    def end(self) -> None:
        """At the end of the process: give the slots back, and wait a little for the job to end."""
        self._give_back()
        if self._job is not None:
            self._job.join(_LEAVE_S)
            self._slots.settle(_LEAVE_S)

    def _code_of(self, function: Function) -> Callable[[], bytes]:
        return lambda: self._slots.code(function)

    def _take(self, wanted: Sequence[str | None]) -> str | None:
        """Get tasks, at least one at each place in `wanted`. A text says why this failed."""
        if self.obstacle is not None:
            return self.obstacle
        if not self._tasks:
            if time.monotonic() < self._left_until_s:
                return "other jobs of the session occupy the slots"
            try:
                self._job = self._begun()
            except OSError as error:  # the path of the socket is too long, say
                return self._never(f"the driver cannot listen on a port ({error})")
            self._meet(self._job)
        self._fetch(0.0)
        if (why := self._slots.unreached(self._group)) is not None:
            self._give_back(cancel=True)
            return self._never(why)
        missing = set(wanted) - {None} - {task.who.location for task in self._tasks}
        if self._tasks and not missing:
            return None
        self._give_back(cancel=not self._tasks)
        self._leave_to_others()
        return "no slot was free where state is"

    def _begun(self) -> threading.Thread:
        """Start the job that holds the slots; the thread that runs it."""
        self._executors = self._slots.executors()
        self._count = self._slots.count()
        self._door = door = Door(self._slots.hosts)
        self._group = f"joinengine-tasks-{secrets.token_hex(8)}"
        job = self._slots.occupy(self._group, self._count, door)
        self._taken_s, self._is_wanted = time.monotonic(), False
        watch: Any = {"target": self._watch, "args": (door,), "name": "joinengine-slots"}
        threading.Thread(**watch, daemon=True).start()
        return job

    def _meet(self, job: threading.Thread) -> None:
        """Wait for tasks of a job that has just begun to connect, as many as do so soon.

        If none does, because the workers of a new session are still starting, any other job would
        wait for them, too. So this waits until a first task connects, or reports that it cannot.
        """
        self._fetch(_CONNECT_S)
        while not (self._tasks or self._is_reached or self._is_wanted or self._owner is None):
            if not job.is_alive() or self._slots.unreached(self._group) is not None:
                return
            self._fetch(_WATCH_S)
        self._is_reached = self._is_reached or bool(self._tasks)

    def _fetch(self, seconds: float) -> None:
        """Let tasks in until each slot has one, or the time is over."""
        end_s = time.monotonic() + seconds
        while self._door is not None and len(self._tasks) < self._count:
            task = self._door.next(end_s - time.monotonic())
            if task is None:
                return
            if any(resident.who.number == task.who.number for resident in self._tasks):
                task.there.close()  # a second attempt of the same task
            else:
                self._tasks.append(task)

    def _never(self, why: str) -> str:
        """Note, and log, why this session cannot have resident tasks; the same text."""
        _log.warning("joinengine: tasks cannot stay resident: %s; each step runs as a job", why)
        self.obstacle = why
        return why

    def _watch(self, door: Door) -> None:
        """Give the slots back when other jobs want them, or after a while without orders."""
        waits = False
        while self._door is door:
            time.sleep(_WATCH_S)
            waited, waits = waits, self._slots.others_wait(self._group)
            self._is_wanted = self._is_wanted or (waited and waits)
            has_changed = self._have_executors_changed()
            if not self._turn.acquire(blocking=False):
                continue  # orders are out: `carry_out` gives the slots back after them
            try:
                if self._door is not door:
                    return
                if self._is_wanted:
                    self._leave_to_others()
                elif has_changed or time.monotonic() - self._used_s > _IDLE_S:
                    self._give_back()
            finally:
                self._turn.release()

    def _have_executors_changed(self) -> bool:
        """Whether executors have come or gone. Ends the connections to tasks of lost executors."""
        try:
            alive = self._slots.executors()
        except Exception:  # the session is being stopped
            return True
        for task in list(self._tasks):
            place = task.who.location
            if place is not None and not self._slots.is_on(place, alive):
                task.end()
        return alive != self._executors

    def _leave_to_others(self) -> None:
        """Give the slots back, and leave them to other jobs for a while."""
        now_s = time.monotonic()
        if now_s - self._taken_s > _IDLE_S:
            self._left_s = _LEFT_S
        self._left_until_s = now_s + self._left_s
        self._left_s = min(2 * self._left_s, _LONGEST_LEFT_S)
        self._give_back()

    def _give_back(self, *, cancel: bool = False) -> None:
        """End the tasks, and so free their slots; `cancel`: also those that carry out an order."""
        if self._door is None:
            return
        self._door.close()
        self._door = None
        for task in self._tasks:
            task.there.close()
        self._tasks = []
        if cancel:
            self._slots.cancel(self._group)
