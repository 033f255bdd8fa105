"""`World`: the effects of driver, operators and state as one value.

Why: whoever can choose the clock, the nonces and the storage can pause a driver at any step, lose
a write, or run a whole query in memory, and gets the same run again from the same seed. So no
module of the rooms `state`, `exchange`, `operators` and `driver` reads a clock, draws a random
name or opens a file by itself (tests/unit/test_imports.py). Exceptions are the user's own source
files (joinengine.exchange.feeds).
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from typing import Protocol

from joinengine.world.storage import LocalStorage, Storage


class World(Protocol):
    """Time, nonces and storage."""

    def now_s(self) -> float:
        """The time, in seconds since the epoch."""

    def timer_s(self) -> float:
        """Seconds since some fixed moment; two readings tell how long something took."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def nonce(self) -> str:
        """A string of 12 characters that no call has returned before, in any process."""

    def process(self) -> dict[str, str | int]:
        """Which process this is, for people: its `host` and its `pid`."""

    def storage(self, folder: str, *, fsync: bool = False) -> Storage:
        """The files below a folder; `fsync`: what is written survives power loss."""


class Machine:
    """The world as it is: this machine's clock and file system."""

    def now_s(self) -> float:
        """The system's clock."""
        return time.time()

    def timer_s(self) -> float:
        """The system's performance counter."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Block the thread."""
        time.sleep(seconds)

    def nonce(self) -> str:
        """48 random bits."""
        return uuid.uuid4().hex[:12]

    def process(self) -> dict[str, str | int]:
        """Host name and process id."""
        return {"host": socket.gethostname(), "pid": os.getpid()}

    def storage(self, folder: str, *, fsync: bool = False) -> Storage:
        """A folder of a POSIX file system."""
        return LocalStorage(folder, fsync=fsync)


#: The world of every process that is not a test.
MACHINE: World = Machine()
