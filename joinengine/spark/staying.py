"""Tasks that stay: Python tasks of one Spark job that take orders, batch after batch.

Why: to start a job for milliseconds of work costs tens of them. So one job holds the session's
slots, with one task for each, and its tasks carry out what the driver sends them; a round trip
takes a tenth of a millisecond (docs/decisions/0025).

A *lease*, not a possession: the slots go back as soon as another job of the session waits for
them, when no order has come for a while, and before the session ends. Whoever gives orders then
runs jobs of its own, for a time that doubles while others keep coming.

Law: nothing that a batch needs exists in such a task alone. If one is lost, its order is carried
out by a job: attempts of a task may be many, and the one whose report arrives counts.

Safety: tasks connect to a socket that only this user can open, and prove a random token that has
travelled in the code of the job alone.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import re
import secrets
import selectors
import shutil
import socket
import struct
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.serializers import CloudPickleSerializer

from joinengine.spark.daemon import end_quietly

_log = logging.getLogger("joinengine")
#: A master under which all of Spark runs in one process, and its cores.
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_LENGTH = struct.Struct("!Q")
#: How an answer begins.
_DONE, _FAILED = b"+", b"-"
_TOKEN_BYTES = 32
#: How long a batch waits for tasks to connect: with those that have, it begins.
_CONNECT_S = 0.5
#: How long a process that ends waits for the job to end.
_LEAVE_S = 3.0
#: How often the session is looked at for jobs that wait, and after how long without an order the
#: slots are given back.
_WATCH_S, _IDLE_S = 0.1, 10.0
#: For so long the slots are left to others, at first and at most.
_LEFT_S, _LONGEST_LEFT_S = 1.0, 60.0

#: Carries out one order: bytes in, bytes out. Code travels as Spark sends its own.
Function = Callable[..., bytes]
Order = tuple[bytes, ...]
_CODE: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]


class Lost(Exception):
    """A task that stays was lost, or its order was cut short."""


class Failed(Exception):
    """An order failed where it was carried out; the text is the trace."""


# The task's part


@dataclass(frozen=True)
class Stay:
    """Takes orders until the driver has no more; for `mapPartitionsWithIndex`."""

    path: str
    token: bytes

    def __call__(self, index: int, rows: Iterable[Any]) -> Iterator[bytes]:
        """Nothing."""
        for _ in rows:
            pass
        end_quietly()
        with socket.socket(socket.AF_UNIX) as driver, suppress(OSError, EOFError):
            driver.connect(self.path)
            driver.sendall(self.token + _LENGTH.pack(os.getpid()))
            _serve(driver)
        return iter(())


def _serve(driver: socket.socket) -> None:
    functions = dict[str, Function]()
    while True:
        told, code, *order = _received(driver)
        name = told.decode()
        try:
            if code:
                functions[name] = _CODE.loads(code)
            answer = _DONE, functions[name](*order)
        except Exception:
            answer = _FAILED, traceback.format_exc().encode()
        _send(driver, *answer)


def _send(there: socket.socket, *parts: bytes) -> None:
    lengths = [len(parts), *map(len, parts)]
    there.sendall(b"".join([*map(_LENGTH.pack, lengths), *parts]))


def _received(there: socket.socket) -> list[bytes]:
    """The parts of the next message; EOFError: there is none."""
    (count,) = _LENGTH.unpack(_exactly(there, _LENGTH.size))
    lengths = struct.unpack(f"!{count}Q", _exactly(there, count * _LENGTH.size))
    return [bytes(_exactly(there, length)) for length in lengths]


def _exactly(there: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    view, have = memoryview(content), 0
    while have < size:
        got = there.recv_into(view[have:])
        if not got:
            raise EOFError
        have += got
    return content


# The driver's part


@dataclass
class _Task:
    """A task that stays; `pid`: its process, `known`: the functions that it has been sent."""

    there: socket.socket
    pid: int
    known: set[str] = field(default_factory=set)


class Pool:
    """The tasks that stay of one session; all of its queries give them orders."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._slots = slots_of(context)
        #: held while orders are out, and while slots are taken or given back
        self._turn = threading.Lock()
        self._tasks = list[_Task]()
        self._listener: socket.socket | None = None
        self._token, self._group = b"", ""
        self._owner: object = None
        self._job: threading.Thread | None = None
        self._is_wanted = False
        self._used_s = self._taken_s = time.monotonic()
        #: until when, and next time for how long, the slots are left to others
        self._left_until_s, self._left_s = 0.0, _LEFT_S

    @property
    def holds(self) -> bool:
        """Whether it has the slots of the session."""
        return bool(self._tasks)

    def carry_out(
        self, owner: object, name: str, function: Function, orders: Sequence[Order]
    ) -> list[bytes] | None:
        """What `function` makes of each order; None: a job is to do it, as the slots are others'.

        `owner`: who gives the orders, for `cut`; `name`: of the function, in this process. Raises
        Failed if an order fails, and Lost if it is cut short.
        """
        with self._turn:
            if not self._take():
                return None
            self._owner = owner
            try:
                return self._answers(name, function, orders)
            except (OSError, EOFError):
                self._give_back(cancel=True)
                if self._owner is None:
                    raise Lost("the running batch is cut short") from None
                _log.warning("joinengine: a task that stays was lost; a job does its work")
                return None
            finally:
                self._owner, self._used_s = None, time.monotonic()
                if self._is_wanted:
                    self._leave_to_others()

    def cut(self, owner: object) -> None:
        """Cut the orders short that `owner` has given."""
        if self._owner is owner:
            self._owner = None
            with suppress(Exception):  # there may be no JVM any more
                self._context.cancelJobGroup(self._group)
            for task in list(self._tasks):
                with suppress(OSError):
                    task.there.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Give the slots back: a job of ours comes next."""
        with self._turn:
            self._give_back()

    def _take(self) -> bool:
        """Have tasks that take orders, if slots can be had."""
        if self._tasks:
            self._accept(0.0)
            return True
        if time.monotonic() < self._left_until_s:
            return False
        try:
            self._begin()
        except OSError as error:  # the path of the socket is too long, say
            _log.warning("joinengine: tasks cannot stay (%s): each step is a job", error)
            self._left_until_s = math.inf
            return False
        self._accept(_CONNECT_S)
        if not self._tasks:
            self._give_back(cancel=True)
            self._leave_to_others()
            return False
        threading.Thread(target=self._watch, name="joinengine-slots", daemon=True).start()
        return True

    def _begin(self) -> None:
        """Start the job whose tasks connect."""
        folder = tempfile.mkdtemp(prefix="joinengine-")  # of this user alone
        path = f"{folder}/tasks"
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(path)
        except OSError:
            listener.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        listener.listen(self._slots)
        self._listener, self._token = listener, secrets.token_bytes(_TOKEN_BYTES)
        self._group = f"joinengine-tasks-{secrets.token_hex(8)}"
        told = self._context, self._group, self._slots, Stay(path, self._token)
        self._job = threading.Thread(
            target=_run_job, args=told, name="joinengine-tasks", daemon=True
        )
        self._job.start()
        self._taken_s, self._is_wanted = time.monotonic(), False

    def _accept(self, seconds: float) -> None:
        """Let tasks connect, until all slots have or the time is over."""
        end_s = time.monotonic() + seconds
        while self._listener is not None and len(self._tasks) < self._slots:
            self._listener.settimeout(max(end_s - time.monotonic(), 0.0))
            try:
                there, _ = self._listener.accept()
            except (TimeoutError, BlockingIOError):
                return
            there.settimeout(_CONNECT_S)
            with suppress(OSError, EOFError):
                if secrets.compare_digest(bytes(_exactly(there, _TOKEN_BYTES)), self._token):
                    (pid,) = _LENGTH.unpack(_exactly(there, _LENGTH.size))
                    there.settimeout(None)
                    self._tasks.append(_Task(there, pid))
                    continue
            there.close()

    def _answers(self, name: str, function: Function, orders: Sequence[Order]) -> list[bytes]:
        answers, waiting = dict[int, bytes](), deque(enumerate(orders))
        code, failed = b"", None

        def give(task: _Task) -> int:
            nonlocal code
            number, order = waiting.popleft()
            if name not in task.known:
                code = code or _CODE.dumps(function)
            _send(task.there, name.encode(), b"" if name in task.known else code, *order)
            task.known.add(name)
            return number

        with selectors.DefaultSelector() as busy:
            for task in self._tasks[: len(orders)]:
                busy.register(task.there, selectors.EVENT_READ, [task, give(task)])
            while busy.get_map():  # also once one has failed: none may write on behind its back
                for key, _ in busy.select():
                    task, number = key.data
                    how, answers[number] = _received(task.there)
                    if how != _DONE:
                        failed = failed or Failed(answers[number].decode())
                        waiting.clear()
                    if waiting:
                        key.data[1] = give(task)
                    else:
                        busy.unregister(task.there)
        if failed is not None:
            raise failed
        return [answers[number] for number in range(len(orders))]

    def _watch(self) -> None:
        """Give the slots back when others want them, or nobody has used them for a while."""
        tasks, waits = self._tasks, False
        while self._tasks is tasks and tasks:
            time.sleep(_WATCH_S)
            waited, waits = waits, self._others_wait()
            self._is_wanted = self._is_wanted or (waited and waits)
            if not self._turn.acquire(blocking=False):
                continue  # who has given the orders that are out will see to it
            try:
                if self._tasks is not tasks:
                    return
                if self._is_wanted:
                    self._leave_to_others()
                elif time.monotonic() - self._used_s > _IDLE_S:
                    self._give_back()
            finally:
                self._turn.release()

    def _others_wait(self) -> bool:
        """Whether the session has another job: all slots are taken, so it waits."""
        try:
            tracker = self._context.statusTracker()
            ours = set(tracker.getJobIdsForGroup(self._group))
            return bool(set(tracker.getActiveJobsIds()) - ours)
        except Exception:  # Spark is being stopped
            return True

    def _leave_to_others(self) -> None:
        """Give the slots back, and leave them for a while."""
        now_s = time.monotonic()
        if now_s - self._taken_s > _IDLE_S:
            self._left_s = _LEFT_S
        self._left_until_s = now_s + self._left_s
        self._left_s = min(2 * self._left_s, _LONGEST_LEFT_S)
        self._give_back()

    def _give_back(self, *, cancel: bool = False) -> None:
        """End the tasks; `cancel`: they may be at work."""
        if self._listener is None:
            return
        folder = Path(self._listener.getsockname()).parent
        self._listener.close()
        self._listener = None
        for task in self._tasks:
            task.there.close()
        self._tasks = []
        if cancel:
            with suppress(Exception):  # there may be no JVM any more
                self._context.cancelJobGroup(self._group)
        shutil.rmtree(folder, ignore_errors=True)


def _run_job(context: SparkContext, group: str, slots: int, stay: Stay) -> None:
    with suppress(Exception):  # whoever gives orders sees that its tasks are gone
        context.setJobGroup(group, "joinengine: tasks that stay", interruptOnCancel=True)
        context.parallelize(range(slots), slots).mapPartitionsWithIndex(stay).count()


def slots_of(context: SparkContext) -> int:
    """How many tasks run at a time under a local master."""
    found = _LOCAL.fullmatch(str(context.master))
    assert found is not None, "tasks stay under a local master alone"
    jvm: Any = context._jvm
    cores = found[1] or "1"
    count = jvm.Runtime.getRuntime().availableProcessors() if cores == "*" else int(cores)
    return max(count // int(context.getConf().get("spark.task.cpus", "1") or 1), 1)


def obstacle(context: SparkContext) -> str | None:
    """Why tasks cannot stay in a session, in words; None: they can."""
    if _LOCAL.fullmatch(str(context.master)) is None:
        return f"under master {context.master} state is where a job finds it"
    if not hasattr(socket, "AF_UNIX"):
        return "this system has no sockets of its own"
    return None


_pools = dict[str, Pool]()
_making = threading.Lock()


def pool_of(context: SparkContext) -> Pool:
    """The pool of a session."""
    with _making:
        application = str(context.applicationId)
        if application not in _pools:
            _pools[application] = Pool(context)
        return _pools[application]


@atexit.register
def _end_all() -> None:
    for pool in _pools.values():
        pool._give_back()
        if pool._job is not None:  # Spark takes note of the end of its tasks, by this process
            pool._job.join(_LEAVE_S)
