"""Waiting for a query without Spark: Ctrl-C, time limits, and the line on a terminal."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import threading
from unittest.mock import Mock

import pytest

from joinengine.spark.query import waiting
from joinengine.spark.query.live_page import announce


class Waited:
    """A query that ends at its `calls`-th call, or is interrupted at `interrupt`."""

    def __init__(self, calls, interrupt=None):
        self.left, self.interrupt, self.stopped, self.made = calls, interrupt, False, 0

    def awaitTermination(self, timeout):
        assert timeout >= 0.001  # Spark takes no less
        self.made += 1
        if self.made == self.interrupt:
            signal.raise_signal(signal.SIGINT)  # to this thread, whichever others there are
        self.left -= 1
        return self.left <= 0

    def stop(self):
        self.stopped = True


def wait(query, timeout=None):
    return waiting.wait(query.awaitTermination, query.stop, timeout, line)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def line():
    return "joinengine: 3 batches, " + "9" * 500


def test_it_waits_until_the_query_ends():
    query = Waited(3)
    assert wait(query)
    assert query.made == 3
    assert not wait(Waited(10**9), 0.0)


@pytest.mark.parametrize("interactive", [False, True])
def test_ctrl_c_stops_the_query(interactive, monkeypatch, capsys):
    monkeypatch.setattr(waiting, "_is_interactive", lambda: interactive)
    query, before = Waited(9, interrupt=2), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as raised:
        wait(query)
    assert query.stopped
    assert query.made == 2
    assert isinstance(raised.value, SystemExit) is not interactive
    assert interactive or raised.value.code == 130
    assert "stopped on Ctrl-C" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("words", "said"), [("", ""), ("ended", "ended\n")])
def test_who_stops_on_ctrl_c_may_say_other_words(words, said, capsys):
    query = Waited(9, interrupt=2)
    with pytest.raises(KeyboardInterrupt):
        waiting.wait(query.awaitTermination, query.stop, None, line, words)
    assert capsys.readouterr().err == said


def test_another_thread_leaves_signals_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    class Looking(Waited):
        def awaitTermination(self, timeout):
            seen.append(signal.getsignal(signal.SIGINT))
            return True

    thread = threading.Thread(target=wait, args=(Looking(1),))
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize(("shows", "term"), [(True, "xterm"), (False, "dumb")])
def test_a_terminal_shows_a_line_and_then_none(shows, term, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(waiting, "_DRAW_S", 0.0)
    wait(Waited(3))
    drawn = terminal.getvalue().split("\r")
    assert (drawn[1:] != []) == shows
    if shows:
        assert drawn[1] == drawn[2] == f"{line()[:59]}\x1b[K"
        assert drawn[-1] == "\x1b[K"


def test_a_terminal_that_is_gone_is_no_error_of_the_query(monkeypatch):
    class Gone(Terminal):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(waiting, "_DRAW_S", 0.0)
    assert wait(Waited(3))
    announce(Mock(url="http://localhost"))


ASKING = """
import os, sys, termios
from joinengine.spark.query.waiting import wait_for_key

def is_as_before():
    return bool(termios.tcgetattr(0)[3] & termios.ICANON)

print("waited", wait_for_key("press a key"), is_as_before(), flush=True)
os.read(0, 100)
"""


@pytest.fixture
def on_terminal():
    """Runs a program on a terminal of its own; gives (process, the terminal's other end)."""
    other, own = os.openpty()
    running = []

    def run(program):
        there = f"import os; os.login_tty({own})\n"
        running.append(subprocess.Popen([sys.executable, "-c", there + program], pass_fds=[own]))
        return running[-1], other

    yield run
    for one in running:
        one.kill()
        one.wait()
    os.close(other)
    os.close(own)


def read_until(terminal, text):
    """What a program says, until it says `text`; it fails if the program falls silent."""
    said = ""
    while text not in said:
        assert select.select([terminal], [], [], 60)[0], said
        said += os.read(terminal, 1000).decode()
    return said


@pytest.mark.parametrize("key", [b"x", b"\n", b"\x1b[A", b"\x03"])
def test_on_a_terminal_a_key_is_waited_for(key, on_terminal):
    """One key of any kind is enough; its rest is not left for the shell, and Ctrl-C is a key."""
    running, terminal = on_terminal(ASKING)
    os.write(terminal, b"typed before\n")
    read_until(terminal, "press a key\r\n")
    assert running.poll() is None
    os.write(terminal, key)
    assert "waited True True" in read_until(terminal, "waited True True")
    os.write(terminal, b"more\n")
    assert running.wait(60) == 0


def test_a_program_in_the_background_does_not_wait(on_terminal):
    """A group that is not in front of its terminal would be stopped by reading."""
    program = f"""
import os, subprocess, sys
done = subprocess.run([sys.executable, "-c", {ASKING!r}.rpartition("os.read")[0]], process_group=0)
print("child", done.returncode)
"""
    running, terminal = on_terminal(program)
    said = read_until(terminal, "child 0")
    assert "waited False True" in said
    assert "press a key" not in said
    assert running.wait(60) == 0


@pytest.mark.parametrize("missing", ["stdin", "stderr"])
def test_without_a_terminal_no_key_is_waited_for(missing, on_terminal):
    program = f"import sys; sys.{missing} = open('/dev/null')\n{ASKING.rpartition('os.read')[0]}"
    running, terminal = on_terminal(program)
    assert "press a key" not in read_until(terminal, "waited False True")
    assert running.wait(60) == 0


def test_a_pipe_shows_nothing(monkeypatch):
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(waiting, "_DRAW_S", 0.0)
    wait(Waited(3))
    assert not pipe.getvalue()


def test_a_terminal_that_controls_no_job_is_one_to_wait_at():
    """As `docker exec -t` may give it, or a program that has left its session."""
    other, own = os.openpty()
    program = [sys.executable, "-c", ASKING]
    with subprocess.Popen(
        program, stdin=own, stdout=own, stderr=own, start_new_session=True
    ) as one:
        try:
            read_until(other, "press a key\r\n")
            os.write(other, b"x")
            assert "waited True True" in read_until(other, "waited True True")
        finally:
            one.kill()
    os.close(other)
    os.close(own)
