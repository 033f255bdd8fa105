"""`World`: the side effects of driver, operators and state as one value.

Why: a test that chooses the clock, the nonces and the storage can pause a driver at any step, lose
a write, or run a whole query in memory, and the same seed gives the same run. So no module through
which a tuple passes reads a clock, draws a random name or opens a file by itself
(tests/unit/test_imports.py). The exceptions find and read the user's own source files
(joinengine.sources: listing, notices, sourcefiles).
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
        """The `host` and the `pid` of this process, for messages to people."""

    @abstractmethod
    def storage(
        self, folder: str, *, fsync: bool = False, cache_bytes: int = 0, is_behind: bool = False
    ) -> Storage:
        """The files below a folder: a path, or a URL of an object store.

        `fsync`: whether files written to a path survive a power loss. `cache_bytes`: how many bytes
        of copies the local disk may hold; files below a URL never change and are read again.
        `is_behind`: whether streams are written to the local disk first and reach other executors
        later (joinengine.world.behind).
        """


class Machine(World):
    """The real world: this machine's clock and file system."""

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
