"""Spark's daemon, begun early: these tests are the JVM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import tests
from joinengine.spark.session import early
from joinengine.spark.session.early import VARIABLE, begun_early
from tests.waiting import soon

MODULE = "tests.unit.early"
ROOT = Path(tests.__file__).parents[1]
#: The program that makes a session, and ends.
PROGRAM = f"""
import os
from joinengine.spark.session.early import VARIABLE, begun_early
from tests.waiting import soon
with begun_early({MODULE!r}, serves=True):
    print(os.environ[VARIABLE])
"""


def is_over(number):
    """Whether a process has ended, be its parent told of it or not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def given():
    """The environment that a JVM is given while a process waits that is begun early."""
    with begun_early(MODULE, serves=True):
        found = dict(os.environ)
    assert VARIABLE not in os.environ
    return found


def folder_of(given):
    """Where the process waits."""
    return Path(given[VARIABLE]).parent


@contextmanager
def spark_starts(given, executable=sys.executable, **environment):
    """The process that Spark starts and what it hears of its daemon; at the end Spark ends."""
    path = os.pathsep.join([str(ROOT), "/added"])
    started = subprocess.Popen(
        [executable, "-m", MODULE, "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        env=given
        | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "YES", "PYTHONHASHSEED": "0"}
        | {"SPARK_MARK": "1", "PYTHONPATH": path}
        | environment,
    )
    told = json.loads(started.stdout.readline())
    try:
        yield started, told
    finally:
        with suppress(BrokenPipeError):
            started.stdin.close()
        started.wait(20)
        started.stdout.close()
        os.kill(told["child"], signal.SIGKILL)


def test_it_takes_the_place_of_the_daemon_that_spark_starts(given):
    with spark_starts(given) as (started, told):
        assert told["taken"] and told["imported"] and told["mark"] == "1"
        assert told["number"] != started.pid
        assert told["arguments"] == ["pyspark.worker"]
        assert told["folder"] == "/"
        assert "/added" in told["path"]
        assert not folder_of(given).exists()
    assert started.returncode == 0
    soon(lambda: is_over(told["number"]))


def test_it_ends_with_the_program_that_was_never_spark():
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, text=True, check=False)
    assert done.stderr == ""
    folder = Path(done.stdout.strip()).parent
    assert folder.name.startswith("joinengine-")
    soon(lambda: not folder.exists())


@pytest.mark.parametrize(
    "other", [{"OMP_NUM_THREADS": "3"}, {"PYTHONHASHSEED": "5"}, {"LD_PRELOAD": ""}]
)
def test_one_that_does_not_suit_makes_room(given, other):
    """Variables that act on imports; the user has set them for executors."""
    with spark_starts(given, **other) as (started, told):
        assert not told["taken"]
        assert told["number"] == started.pid
        soon(lambda: not folder_of(given).exists())


def test_another_python_does_not_suit(given, tmp_path):
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    packages = os.pathsep.join(path for path in sys.path if path)
    with spark_starts(given, str(other), PYTHONPATH=packages) as (_, told):
        assert not told["taken"]


def test_it_serves_once(given):
    with spark_starts(given) as (_, first), spark_starts(given) as (_, second):
        assert first["taken"]
        assert not second["taken"]


def test_one_that_was_killed_is_not_missed(monkeypatch):
    begun = []
    monkeypatch.setattr(subprocess, "Popen", kept(begun))
    with begun_early(MODULE, serves=True):
        given = dict(os.environ)
    begun[0].kill()
    soon(lambda: not folder_of(given).exists())
    with spark_starts(given) as (_, told):
        assert not told["taken"]


def kept(begun):
    """`Popen`, which keeps what it has begun."""
    real = subprocess.Popen

    def popen(*arguments, **named):
        begun.append(real(*arguments, **named))
        return begun[-1]

    return popen


def test_what_spark_has_started_ends_with_it(given):
    """Though a worker lives on."""
    with spark_starts(given) as (started, told):
        assert told["taken"]
        os.kill(told["number"], signal.SIGKILL)
        assert started.wait(20) == 0
        assert not is_over(told["child"])


def test_it_ends_with_what_spark_has_started(given):
    """Spark ends its daemon by a signal, and closes the pipes."""
    with spark_starts(given) as (started, told):
        assert told["taken"]
        started.terminate()
        started.stdin.close()
        soon(lambda: is_over(told["number"]))


def test_a_session_whose_daemon_it_would_not_be_begins_none():
    with begun_early(MODULE, serves=False):
        assert VARIABLE not in os.environ


def test_a_system_that_does_not_let_it_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def listening(_):
        raise OSError("the path of the socket is too long")

    monkeypatch.setattr(early, "listening", listening)
    with begun_early(MODULE, serves=True):
        assert VARIABLE not in os.environ
    assert not list(tmp_path.iterdir())
