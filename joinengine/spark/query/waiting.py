"""Waits for a query in a program: draws the line on a terminal, and handles Ctrl-C and a last key.

Ctrl-C reaches only the driver's Python: PySpark starts the JVM so that it ignores the signal, and
workers have their own process group. PySpark's own handler would cancel all jobs, so that the
running batch fails with a trace of the JVM. It would also leave the answer to the waiting call
unread on the connection to the JVM. So the signal is only noted, and the query is stopped between
two short calls.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

#: Whether the system has POSIX terminals.
_SINGLE_KEYS = find_spec("termios") is not None
_LAST_WORDS = "joinengine: stopped on Ctrl-C; nothing is lost. Start the query again to go on"
#: Seconds that one call waits, and so the longest delay of Ctrl-C.
_POLL_S = 0.2
#: The shortest wait that Spark accepts, in seconds.
_SHORTEST_S = 0.001
#: Seconds between two drawings of the line, and before the first.
_DRAW_S = 1.0


class Interrupted(KeyboardInterrupt, SystemExit):
    """Ctrl-C has stopped the query: a KeyboardInterrupt that ends a script with exit code 130."""

    def __init__(self) -> None:
        super().__init__()
        self.code = 128 + signal.SIGINT


def wait(
    ended: Callable[[float], bool | None],
    stop: Callable[[], None],
    timeout_s: float | None,
    tell: Callable[[], str],
    last_words: str | None = None,
) -> bool:
    """Wait until a query ends; False: it has not ended after `timeout_s` seconds.

    `ended(seconds)` waits as Spark's `awaitTermination` does. `tell()` gives the line for a
    terminal. On Ctrl-C, this calls `stop()`, prints `last_words` (None: that the next start goes
    on; empty: nothing), and raises a KeyboardInterrupt; in a script, an Interrupted.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    with _noted_interrupt() as asked, _line_on_terminal(tell) as draw:
        while True:
            left = _POLL_S if end is None else min(_POLL_S, end - time.monotonic())
            if ended(max(left, _SHORTEST_S)):
                return True
            if asked():
                draw("joinengine: stopping")
                stop()
                break
            if end is not None and time.monotonic() >= end:
                return False
            draw(None)
    words = _LAST_WORDS if last_words is None else last_words
    if words:
        say(words)
    raise KeyboardInterrupt if _is_interactive() else Interrupted


def say(text: str, end: str = "\n") -> None:
    """Print a text on a terminal. Ignores that the terminal may be gone: the query goes on."""
    with suppress(OSError, ValueError):
        print(text, end=end, file=sys.stderr, flush=True)


def wait_for_key(text: str) -> bool:
    """Print `text` and wait for a key on a terminal; elsewhere, return False at once.

    A pipe, a notebook, a prompt (which does not end) and a program in the background do not count.
    Ctrl-C is also a key. On a system that does not report single keys, the key is Enter.
    """
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()) or _is_interactive():
        return False
    terminal = sys.stdin.fileno()
    if _SINGLE_KEYS and _is_in_background(terminal):
        return False  # reading would stop the process
    with suppress(KeyboardInterrupt), _single_keys(terminal):
        say(text)
        os.read(terminal, 1)
    return True


def _is_in_background(terminal: int) -> bool:
    """Whether another job has the terminal; False if the terminal controls no jobs."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:
        return False


@contextmanager
def _single_keys(terminal: int) -> Iterator[None]:
    """In the block, keys arrive without Enter; keys typed before or after the first are dropped."""
    if not _SINGLE_KEYS:
        yield
        return
    import termios  # noqa: PLC0415 (not everywhere)
    import tty  # noqa: PLC0415 (not everywhere)

    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal, termios.TCSAFLUSH)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)


@contextmanager
def _noted_interrupt() -> Iterator[Callable[[], bool]]:
    """A function: whether Ctrl-C was pressed in the block. Pressed twice, it interrupts."""
    noted = threading.Event()

    def note(number: int, frame: Any) -> None:
        if noted.is_set():
            raise KeyboardInterrupt
        noted.set()

    ours = threading.current_thread() is threading.main_thread()
    if not ours or not callable(signal.getsignal(signal.SIGINT)):  # ignored in the background
        yield noted.is_set
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted.is_set
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # PySpark sets its own when it starts
            signal.signal(signal.SIGINT, before)


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Ctrl-C in the block raises a KeyboardInterrupt at its end, unless it is pressed twice."""
    with _noted_interrupt() as asked:
        yield
    if asked():
        raise KeyboardInterrupt


@contextmanager
def _line_on_terminal(tell: Callable[[], str]) -> Iterator[Callable[[str | None], None]]:
    """A function that replaces the last line on a terminal; without a terminal, it does nothing."""
    shown = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    next_s, drawn = time.monotonic() + _DRAW_S, False

    def draw(text: str | None) -> None:
        nonlocal next_s, drawn
        if not shown or (text is None and time.monotonic() < next_s):
            return
        next_s, drawn = time.monotonic() + _DRAW_S, True
        width = shutil.get_terminal_size().columns - 1
        say(f"\r{(tell() if text is None else text)[:width]}\x1b[K", end="")

    try:
        yield draw
    finally:
        if drawn:
            say("\r\x1b[K", end="")


def _is_interactive() -> bool:
    """Whether the program is a notebook or a prompt, which `sys.exit` would end."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules
