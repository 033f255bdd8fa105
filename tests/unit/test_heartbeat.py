"""Whether a driver still runs on a checkpoint: by its process, and elsewhere by its beats."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from joinengine.lab.commands.shell_words import at_a_shell
from joinengine.model.errors import InvalidRequest
from joinengine.spark.query import heartbeat
from joinengine.spark.query.heartbeat import Heartbeat, Takeover, beating, check_alone, claim_after
from joinengine.state import fence
from joinengine.state.checkpoint import Checkpoint
from tests.waiting import soon


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """One that a driver of generation 1 has claimed; beats are quick."""
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.05)
    monkeypatch.setattr(heartbeat, "DEAD_S", 0.6)
    monkeypatch.setattr(heartbeat, "_LOOK_S", 0.02)
    monkeypatch.setattr(heartbeat, "_BEGIN_S", 0.5)
    made = Checkpoint.below(tmp_path / "checkpoint")
    made.create()
    assert fence.claim(made) == 1
    return made


@pytest.fixture
def other():
    """Another process of this machine."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.wait()


def write(checkpoint, pid=None, generation=1, **more):
    """The heartbeat of a process of this machine, changed by `more`."""
    mine = heartbeat._process(checkpoint.world)
    known = {"pid": pid, "started": heartbeat._started(pid)} if pid is not None else {}
    beat = {**mine, **known, "beats": 0, **more}
    checkpoint.heartbeats.put(f"{generation:08d}", json.dumps(beat).encode())
    return beat


def is_free(checkpoint, takeover=Takeover.WAIT):
    """Whether a start would go on."""
    try:
        check_alone(checkpoint, takeover)
    except InvalidRequest as error:
        assert "is running on checkpoint" in str(error)
        assert "--takeover take" in at_a_shell(str(error))
        return False
    return True


def test_a_process_that_lives_is_in_the_way(checkpoint, other, caplog):
    assert is_free(checkpoint)  # nobody has ever beaten
    write(checkpoint, other.pid)
    assert not is_free(checkpoint)
    assert is_free(checkpoint, Takeover.TAKE)
    (line,) = caplog.messages
    assert f"process {other.pid}) is running on checkpoint {checkpoint.location}" in line
    assert "this driver takes over and stops it" in line


def test_a_process_that_has_died_is_not(checkpoint, other):
    write(checkpoint, other.pid)
    other.kill()
    soon(lambda: heartbeat._started(other.pid) is None)  # nobody has waited for it yet
    assert is_free(checkpoint)
    other.wait()
    assert is_free(checkpoint)


def test_a_driver_that_has_only_claimed_is_waited_for(checkpoint, other):
    said = json.dumps({**checkpoint.world.process(), "pid": other.pid}).encode()
    fence.mark(checkpoint.generations, 2, said)
    assert is_free(checkpoint)  # its query ended long ago, and the process goes on
    late = threading.Timer(0.1, lambda: write(checkpoint, other.pid, generation=2))
    late.start()
    assert not is_free(checkpoint)
    late.join()


def test_of_two_starts_at_once_one_is_refused(checkpoint, other):
    """The other one claims, and beats, between this one's look and its claim."""
    last = check_alone(checkpoint, Takeover.WAIT)
    assert fence.claim(checkpoint) == 2
    write(checkpoint, other.pid, generation=2)
    with pytest.raises(InvalidRequest, match=f"process {other.pid}. is running on checkpoint"):
        claim_after(checkpoint, last, Takeover.WAIT)
    assert fence.greatest(checkpoint.generations, 0) == 2  # the other one goes on
    assert claim_after(checkpoint, last, Takeover.TAKE) == 3


def test_a_claim_is_followed_by_a_beat_before_anything_else(checkpoint, monkeypatch):
    put = type(checkpoint.heartbeats).put

    def slowly(*beat):
        time.sleep(0.2)
        put(*beat)

    monkeypatch.setattr(type(checkpoint.heartbeats), "put", slowly)
    with beating(checkpoint, 1):
        assert checkpoint.heartbeats.names() == ["00000001"]


@pytest.mark.parametrize("who", ["this process", "another with its number", "one that has ended"])
def test_others_are_not_taken_for_it(who, checkpoint, other):
    if who == "this process":
        write(checkpoint)
    elif who == "another with its number":
        write(checkpoint, other.pid, started="1")
    else:
        write(checkpoint, other.pid)
        assert fence.claim(checkpoint) == 2
    assert is_free(checkpoint)


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"pid": 1', b"\xff", b"[" * 200_000])
def test_a_heartbeat_that_is_damaged_is_none(content, checkpoint):
    checkpoint.heartbeats.put("00000001", content)
    assert is_free(checkpoint)


def test_a_heartbeat_that_is_a_folder_is_none(checkpoint):
    checkpoint.heartbeats.at("00000001").make()
    assert is_free(checkpoint)


def test_a_process_that_does_not_say_when_it_began_does_not_live_for_ever(checkpoint, other):
    other.kill()
    other.wait()
    write(checkpoint, other.pid, started=None)
    assert is_free(checkpoint)


def test_a_start_that_fails_leaves_no_heartbeat(checkpoint):
    with pytest.raises(ValueError, match="no start"), beating(checkpoint, 1):
        soon(lambda: checkpoint.heartbeats.names() == ["00000001"])
        raise ValueError("no start")
    assert checkpoint.heartbeats.names() == []


def test_elsewhere_the_next_beat_is_waited_for(checkpoint):
    write(checkpoint, machine=["elsewhere"], pid=os.getpid())
    assert is_free(checkpoint)  # no beat has come
    beating = threading.Timer(0.2, lambda: write(checkpoint, machine=["elsewhere"], beats=1))
    beating.start()
    assert not is_free(checkpoint)
    beating.join()
    ending = threading.Timer(0.2, lambda: checkpoint.heartbeats.delete("00000001"))
    ending.start()
    assert is_free(checkpoint)
    ending.join()


def test_who_takes_over_waits_for_nobody(checkpoint, monkeypatch, caplog):
    monkeypatch.setattr(heartbeat, "_beats_again", lambda *_: pytest.fail("it waits"))
    write(checkpoint, machine=["elsewhere"])
    assert is_free(checkpoint, Takeover.TAKE)
    (line,) = caplog.messages
    assert f"may be running on checkpoint {checkpoint.location}" in line


def test_a_driver_beats_until_it_ends(checkpoint, monkeypatch):
    write(checkpoint)
    assert fence.claim(checkpoint) == 2
    beats = Heartbeat(checkpoint, 2)
    beats.start()
    soon(lambda: checkpoint.heartbeats.names() == ["00000002"])

    def count():
        return json.loads(checkpoint.heartbeats.get("00000002"))["beats"]

    soon(lambda: count() > 1)
    monkeypatch.setattr(heartbeat, "_machine", lambda host: ["another"])
    assert not is_free(checkpoint)
    beats.stop()
    assert checkpoint.heartbeats.names() == []
    assert is_free(checkpoint)


def test_a_disk_that_is_full_ends_nothing(checkpoint, monkeypatch):
    beats, failed = Heartbeat(checkpoint, 2), threading.Event()

    def fails(*_):
        failed.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(checkpoint.heartbeats), "put", fails)
    beats.start()
    assert failed.wait(20)
    beats.stop()


def test_a_store_that_does_not_answer_keeps_no_query_from_ending(checkpoint, monkeypatch):
    monkeypatch.setattr(heartbeat, "_PATIENCE_S", 0.1)
    asked, answer = threading.Event(), threading.Event()

    def waits(*_):
        asked.set()
        answer.wait(20)

    monkeypatch.setattr(type(checkpoint.heartbeats), "put", waits)
    beats = Heartbeat(checkpoint, 2)
    beats.start()
    assert asked.wait(20)
    beats.stop()
    assert beats._thread.is_alive()
    answer.set()
    beats._thread.join(20)
    assert not beats._thread.is_alive()


def test_where_the_system_does_not_tell_a_number_has_to_do(other, monkeypatch, tmp_path):
    monkeypatch.setattr(heartbeat, "_PROC", tmp_path)
    assert heartbeat._machine("here") == ["here"]
    assert heartbeat._started(other.pid) == "is there"
    other.kill()
    other.wait()
    assert heartbeat._started(other.pid) is None
    assert heartbeat._started(None) is None
