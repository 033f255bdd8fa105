"""The machines themselves: what they see of each other."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from tests.cluster import machines
from tests.cluster.machines import Machine, obstacle
from tests.objects import wait_until


def python(machine, text):
    done = machine.run(sys.executable, "-c", text, timeout_s=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def two(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    made = [Machine(name, tmp_path, [shared]) for name in ("worker-1", "worker-2")]
    yield made
    for machine in made:
        machine.kill()


def test_a_path_of_one_machine_is_not_there_for_another(two, tmp_path):
    one, other = two
    python(one, f"open({one.disk + '/file'!r}, 'w').write('of one')")
    assert python(one, f"print(open({one.disk + '/file'!r}).read())") == "of one"
    asks = f"import os; print(os.path.exists({one.disk!r}), os.listdir({str(tmp_path)!r}))"
    assert python(other, asks) == "False ['shared']"
    assert python(other, "import socket; print(socket.gethostname())") == "worker-2"


def test_the_system_is_read_only_and_a_shared_folder_is_shared(two, tmp_path):
    one, other = two
    path = str(tmp_path / "shared" / "file")
    python(one, f"open({path!r}, 'w').write('shared')")
    assert python(other, f"print(open({path!r}).read())") == "shared"
    for place in ("/etc/joinengine", __file__ + ".new", sys.prefix + "/new"):
        text = f"try: open({place!r}, 'w')\nexcept OSError as error: print(error.errno)"
        assert python(one, text) == str(errno.EROFS), place


def test_who_opens_a_path_of_another_machine_is_noted(two):
    one, other = two
    python(one, f"open({one.disk + '/own'!r}, 'w').close()")
    assert one.trespasses() == []
    path = f"{other.disk}/checkpoint"
    python(one, f"import os\ntry: os.listdir({path!r})\nexcept OSError: pass")
    assert one.trespasses() == [path]


def test_a_killed_machine_has_no_process_left(two):
    one, _ = two
    mark = f"{one.disk}/alive"
    child = f"import time; open({mark!r}, 'w').close(); time.sleep(600)"
    program = one.start(
        sys.executable,
        "-c",
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])",
        log="log",
    )
    wait_until((one.folder / "alive").exists, "the child runs")
    one.kill()
    assert program.returncode is not None
    wait_until(lambda: not running(mark), "the child is gone")


def running(text):
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if text in (process / "cmdline").read_text():
                return True
        except OSError:
            continue
    return False


def test_a_system_that_forbids_machines_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(machines, "namespaces", lambda: ["sh", "-c", "echo no >&2; false"])
    obstacle.cache_clear()
    try:
        assert obstacle() == "this system forbids mount namespaces (no)"
    finally:
        obstacle.cache_clear()
