"""The door through which resident tasks connect: a socket of the driver's, and a thread behind it.

Why a thread: a stranger who finds the port may connect and say nothing. No batch waits for that.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import NamedTuple

from joinengine.staying.wire import Address, Caller, Secret, admitted, listening, make_lively

#: Seconds that a caller may take for each part of its introduction.
_SAY_S = 0.5


class Hosts(NamedTuple):
    """The host at which the driver listens, and the host name by which tasks reach it."""

    bound: str
    told: str


@dataclass(eq=False)
class Resident:
    """A resident task, as the driver sees it; `known`: the functions that it has been sent."""

    there: socket.socket
    who: Caller
    known: set[str] = field(default_factory=set)

    def end(self) -> None:
        """End its connection, even while another thread waits for its answer."""
        with suppress(OSError):
            self.there.shutdown(socket.SHUT_RDWR)


class Door:
    """Lets in the tasks that know the secret.

    `hosts` is None if driver and tasks belong to one user on one machine: then they meet in a
    folder that nobody else can enter. Raises OSError if the driver cannot listen there.
    """

    def __init__(self, hosts: Hosts | None) -> None:
        self.secret = Secret.fresh()
        self._folder = tempfile.mkdtemp(prefix="joinengine-") if hosts is None else None
        where: Address = f"{self._folder}/tasks" if hosts is None else (hosts.bound, 0)
        try:
            self._listener = listening(where)
        except OSError:
            self._remove_folder()
            raise
        #: the address to which tasks connect
        self.address = where if hosts is None else (hosts.told, self._listener.getsockname()[1])
        self._inside = SimpleQueue[Resident]()
        self._is_closed = False
        threading.Thread(target=self._let_in, name="joinengine-door", daemon=True).start()

    def next(self, within_s: float) -> Resident | None:
        """The next task that has connected; None: none does within so many seconds."""
        with suppress(Empty):
            return self._inside.get(timeout=within_s) if within_s > 0 else self._inside.get(False)
        return None

    def close(self) -> None:
        """Let no more tasks in, and close the connections that `next` has not returned."""
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # otherwise the thread keeps waiting
        self._listener.close()
        self._send_away()
        self._remove_folder()

    def _let_in(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # the listener is closed
                return
            connection.settimeout(_SAY_S)
            caller = None
            with suppress(OSError, EOFError, ValueError):
                make_lively(connection)
                caller = admitted(connection, self.secret)
            if caller is None:
                connection.close()
                continue
            connection.settimeout(None)
            self._inside.put(Resident(connection, caller))
            if self._is_closed:
                self._send_away()

    def _send_away(self) -> None:
        while (caller := self.next(0.0)) is not None:
            caller.there.close()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
