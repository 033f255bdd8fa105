"""The door by which tasks that stay come in, and the connections that they have."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from joinengine.staying.door import Door, Hosts
from joinengine.staying.wire import Caller, Secret, connected, exactly, introduce
from tests.waiting import soon

LOOPBACK = Hosts("127.0.0.1", "localhost")


@pytest.fixture(params=[None, LOOPBACK], ids=["here", "network"])
def door(request):
    found = Door(request.param)
    yield found
    found.close()


def call(door, secret=None, number=0):
    there = connected(door.address, 5)
    return there, introduce(there, secret or door.secret, Caller(number, 7, "a"))


def test_who_knows_the_secret_comes_in(door):
    there, is_known = call(door)
    assert is_known
    task = door.next(5)
    assert task.who == Caller(0, 7, "a")
    there.close()
    task.there.close()


def test_who_does_not_know_it_learns_nothing(door):
    with connected(door.address, 5) as there:
        there.sendall(Secret.fresh().of_task)
        assert there.recv(1) == b""
    assert door.next(0.1) is None


def test_who_says_nothing_keeps_nobody_out(door):
    with connected(door.address, 5) as silent:
        there, is_known = call(door)
        assert is_known
        task = door.next(5)
        assert task is not None
        assert silent.recv(1) == b""
        there.close()
        task.there.close()


def test_a_task_obeys_no_stranger(door):
    """Who listens where the driver did is told one half, and asked for the other."""
    secret = door.secret._replace(of_driver=Secret.fresh().of_driver)
    there, is_known = call(door, secret)
    assert not is_known
    there.close()


def test_a_door_that_closes_sends_everybody_away(door):
    there, _ = call(door)
    soon(lambda: not door._inside.empty())
    door.close()
    with suppress(ConnectionError):
        assert there.recv(1) == b""
    there.close()
    with pytest.raises(OSError):
        connected(door.address, 1)
    if isinstance(door.address, str):
        assert not Path(door.address).parent.exists()
    soon(lambda: "joinengine-door" not in {one.name for one in threading.enumerate()})


def test_a_machine_that_says_nothing_any_more_is_noticed():
    """Both ends ask whether the other is there; a process that is paused answers by its system."""
    door = Door(LOOPBACK)
    there, _ = call(door)
    task = door.next(5)
    for end in (there, task.there):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            idle, every, count = (
                end.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{what}"))
                for what in ("IDLE", "INTVL", "CNT")
            )
            assert idle + every * count <= 60
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000
        end.close()
    door.close()


def test_what_is_too_short_is_no_message():
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b"abc")
        here.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            exactly(there, 4)
