"""The connection between a resident task and its driver: its messages, and who may open it.

A message consists of parts, each of some bytes. Between machines, the connection is plain TCP, like
Spark's own unless they are encrypted. If they are, no task is resident
(`joinengine.spark.jobs.slots`).

Safety: each end proves that it knows its half of a secret, which travels only in the code of the
job. So a stranger who finds the port gets no orders. And a task obeys no stranger who has taken
over the port of a driver that is gone.
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
#: How many tasks may connect at the same moment; the system may allow fewer.
_MOST_CALLS = 1024
#: Finds machines that have lost power: after 10 s of silence, the system probes the other machine
#: 4 times, 5 s apart, and then ends the connection. A machine whose process is paused answers.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
#: Milliseconds for which sent bytes may wait until the other machine acknowledges them.
_TAKEN_NOTE_MS = 30_000


class Secret(NamedTuple):
    """The two halves of a secret: the task's, sent to the driver, and the driver's, sent back."""

    of_task: bytes
    of_driver: bytes

    @staticmethod
    def fresh() -> Secret:
        """A new random secret."""
        return Secret(secrets.token_bytes(_SECRET_BYTES), secrets.token_bytes(_SECRET_BYTES))


class Caller(NamedTuple):
    """A task's number in its job, its process, and its executor; None: not known."""

    number: int
    pid: int
    location: str | None


def introduce(driver: socket.socket, secret: Secret, caller: Caller) -> bool:
    """Introduce a task to its driver.

    False: the other end is a stranger; it has learnt only the task's half of the secret.
    """
    driver.sendall(secret.of_task)
    if not hmac.compare_digest(exactly(driver, _SECRET_BYTES), secret.of_driver):
        return False
    send(driver, b"%d" % caller.number, b"%d" % caller.pid, (caller.location or "").encode())
    return True


def admitted(connection: socket.socket, secret: Secret) -> Caller | None:
    """The task that calls; None: a stranger."""
    if not hmac.compare_digest(exactly(connection, _SECRET_BYTES), secret.of_task):
        return None
    connection.sendall(secret.of_driver)
    number, pid, location = received(connection)
    return Caller(int(number), int(pid), location.decode() or None)


def listening(address: Address) -> socket.socket:
    """A socket that listens at an address; port 0: any free port. Raises OSError."""
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
    """A connection to an address. `within_s`: the timeout of connecting and of each read.

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
    """Make a connection between machines send at once, and notice if the other machine is gone."""
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
    """The parts of the next message. Raises EOFError at the end of the connection, and OSError."""
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
