"""`World`: the effects of driver, operators and state as one value.

Why: whoever can choose the clock, the nonces and the storage can pause a driver at any step, lose
a write, or run a whole query in memory, and gets the same run again from the same seed. So no
module of the rooms that are for the way of a tuple reads a clock, draws a random name or opens a
file by itself (tests/unit/test_imports.py). Exceptions are those that look for the user's own
source files and read them (joinengine.sources: listing, notices, sourcefiles).
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from abc import abstractmethod
from typing import Protocol

from typing_extensions import override

from joinengine.world.behind import behind
from joinengine.world.buckets import is_url
from joinengine.world.local import LocalStorage
from joinengine.world.remote import RemoteStorage
from joinengine.world.storage import Storage


class World(Protocol):
    """Time, nonces and storage."""

    @abstractmethod
    def now_s(self) -> float:
        """The time, in seconds since the epoch."""

    @abstractmethod
    def timer_s(self) -> float:
        """Seconds since some fixed moment; two readings tell how long something took."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    @abstractmethod
    def nonce(self) -> str:
        """A string of 12 characters that no call has returned before, in any process."""

    @abstractmethod
    def process(self) -> dict[str, str | int]:
        """Which process this is, for people: its `host` and its `pid`."""

    @abstractmethod
    def storage(
        self, folder: str, *, fsync: bool = False, cache_bytes: int = 0, is_behind: bool = False
    ) -> Storage:
        """The files below a folder, a path or the URL of a place in an object store.

        `fsync`: what is written to a path survives power loss. `cache_bytes`: the files of the URL
        never change and are read again, so the local disk may hold copies of so many bytes.
        `is_behind`: what is written as a stream lies on the local disk first, and is there for
        others later (joinengine.world.behind).
        """


class Machine(World):
    """The world as it is: this machine's clock and file system."""

    @override
    def now_s(self) -> float:
        return time.time()

    @override
    def timer_s(self) -> float:
        return time.perf_counter()

    @override
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @override
    def nonce(self) -> str:
        """48 random bits."""
        return uuid.uuid4().hex[:12]

    @override
    def process(self) -> dict[str, str | int]:
        return {"host": socket.gethostname(), "pid": os.getpid()}

    @override
    def storage(
        self, folder: str, *, fsync: bool = False, cache_bytes: int = 0, is_behind: bool = False
    ) -> Storage:
        if is_url(folder):
            storage: Storage = RemoteStorage(folder, cache_bytes)
        else:
            storage = LocalStorage(folder, fsync=fsync)
        return behind(storage) if is_behind else storage


#: The world of every process that is not a test.
MACHINE: World = Machine()
