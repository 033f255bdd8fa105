"""The connection of a task that stays to its driver: messages, and who may open it.

A message is some parts of bytes. Between machines it is plain TCP, as Spark's own connections are
unless they are encrypted; where those are, no task stays (joinengine.spark.jobs.slots).

Safety: each end proves that it knows its half of a secret, which travels in the code of the job
alone. So a stranger who finds the port gets no order, and a task obeys no stranger who has come by
the port of a driver that is gone.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from typing import Any, NamedTuple

#: The path of a socket of this machine, or a host and a port.
Address = str | tuple[str, int]

_LENGTH = struct.Struct("!Q")
_SECRET_BYTES = 32
#: So many may call at the same moment; the system may allow fewer.
_MOST_CALLS = 1024
#: A machine that lost its power says nothing: after so many seconds of silence it is asked whether
#: it is there, so often in turn, and is taken for gone. One whose process is paused answers.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
#: For so long what was sent may wait for the other machine to take note of it.
_TAKEN_NOTE_MS = 30_000


class Secret(NamedTuple):
    """What the task tells the driver, and what the driver tells the task."""

    of_task: bytes
    of_driver: bytes

    @staticmethod
    def fresh() -> Secret:
        """One that nobody knows."""
        return Secret(secrets.token_bytes(_SECRET_BYTES), secrets.token_bytes(_SECRET_BYTES))


class Caller(NamedTuple):
    """Who a task is: its number in its job, its process, and its executor; None: not told."""

    number: int
    pid: int
    location: str | None


def introduce(driver: socket.socket, secret: Secret, caller: Caller) -> bool:
    """Tell a driver who calls; False: it is a stranger, and has learnt no more than its half."""
    driver.sendall(secret.of_task)
    if not hmac.compare_digest(exactly(driver, _SECRET_BYTES), secret.of_driver):
        return False
    send(driver, b"%d" % caller.number, b"%d" % caller.pid, (caller.location or "").encode())
    return True


def admitted(connection: socket.socket, secret: Secret) -> Caller | None:
    """Who calls; None: a stranger."""
    if not hmac.compare_digest(exactly(connection, _SECRET_BYTES), secret.of_task):
        return None
    connection.sendall(secret.of_driver)
    number, pid, location = received(connection)
    return Caller(int(number), int(pid), location.decode() or None)


def listening(address: Address) -> socket.socket:
    """A socket that takes calls at an address; port 0: any that is free. Raises OSError."""
    where: Any = address
    if isinstance(address, str):
        listener = socket.socket(socket.AF_UNIX)
    else:
        family, _, _, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind(where)
        listener.listen(_MOST_CALLS)
    except OSError:
        listener.close()
        raise
    return listener


def connected(address: Address, within_s: float) -> socket.socket:
    """A connection to whoever listens at an address; it waits so long for each answer.

    Raises OSError.
    """
    if not isinstance(address, str):
        connection = socket.create_connection(address, within_s)
        make_lively(connection)
        return connection
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(within_s)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def make_lively(connection: socket.socket) -> None:
    """Have a connection between machines send at once, and notice that the other one is gone."""
    if connection.family == getattr(socket, "AF_UNIX", None):
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (_KEEP_ALIVE | {"TCP_USER_TIMEOUT": _TAKEN_NOTE_MS}).items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def send(connection: socket.socket, *parts: bytes) -> None:
    """Send a message. Raises OSError."""
    lengths = [len(parts), *map(len, parts)]
    connection.sendall(b"".join([*map(_LENGTH.pack, lengths), *parts]))


def received(connection: socket.socket) -> list[bytes]:
    """The parts of the next message. Raises EOFError if there is none, and OSError."""
    (count,) = _LENGTH.unpack(exactly(connection, _LENGTH.size))
    lengths = struct.unpack(f"!{count}Q", exactly(connection, count * _LENGTH.size))
    return [bytes(exactly(connection, length)) for length in lengths]


def exactly(connection: socket.socket, size: int) -> bytearray:
    """The next `size` bytes. Raises EOFError if there are fewer, and OSError."""
    content = bytearray(size)
    view, have = memoryview(content), 0
    while have < size:
        n_bytes = connection.recv_into(view[have:])
        if not n_bytes:
            raise EOFError
        have += n_bytes
    return content
