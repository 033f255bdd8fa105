"""Waiting for a query in a program: the line on a terminal, what Ctrl-C does, and a last key.

Ctrl-C reaches the driver's Python alone: PySpark starts the JVM deaf to it, and workers have a
process group of their own. By itself PySpark would cancel all jobs, which fails the running batch
with a trace of the JVM, and would leave the answer of the call that waits on the line to the JVM.
So the signal is only noted, and the query is stopped between two short calls.
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
#: How long one call waits, and thus how long Ctrl-C may, in seconds.
_POLL_S = 0.2
#: The least that Spark accepts.
_SHORTEST_S = 0.001
#: How often the line is drawn, in seconds; nothing is drawn before.
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
    """Wait until a query ends; False: it has not after `timeout_s` seconds.

    `ended(seconds)` waits as Spark's `awaitTermination` does. `tell()` is the line for a terminal.
    On Ctrl-C `stop()` is called, `last_words` are said (None: that the next start goes on; empty:
    none), and a KeyboardInterrupt is raised; in a script it is an Interrupted.
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
    """Print for somebody at a terminal, which may be gone by now: the query runs all the same."""
    with suppress(OSError, ValueError):
        print(text, end=end, file=sys.stderr, flush=True)


def wait_for_key(text: str) -> bool:
    """Say `text` and wait for a key, if somebody sits at a terminal; else return False at once.

    Nobody does in a pipe, in a notebook, at a prompt (which does not end) and in the background.
    Ctrl-C is a key too. Where the system does not tell single keys, the key is Enter.
    """
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()) or _is_interactive():
        return False
    terminal = sys.stdin.fileno()
    if _SINGLE_KEYS and _is_in_background(terminal):
        return False  # to read would stop the process
    with suppress(KeyboardInterrupt), _single_keys(terminal):
        say(text)
        os.read(terminal, 1)
    return True


def _is_in_background(terminal: int) -> bool:
    """Whether another job has the terminal; one that controls no job has none in the background."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:
        return False


@contextmanager
def _single_keys(terminal: int) -> Iterator[None]:
    """Keys come without an Enter inside; what was typed before or behind the first is dropped."""
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
    """Whether Ctrl-C was pressed inside; pressed twice, it interrupts as it always does."""
    noted = threading.Event()

    def note(number: int, frame: Any) -> None:
        if noted.is_set():
            raise KeyboardInterrupt
        noted.set()

    ours = threading.current_thread() is threading.main_thread()
    if not ours or not callable(signal.getsignal(signal.SIGINT)):  # ignored, as in the background
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
    """Ctrl-C inside is a KeyboardInterrupt at the end, unless it is pressed twice."""
    with _noted_interrupt() as asked:
        yield
    if asked():
        raise KeyboardInterrupt


@contextmanager
def _line_on_terminal(tell: Callable[[], str]) -> Iterator[Callable[[str | None], None]]:
    """A function that draws a line on a terminal, in place of the last; elsewhere nothing."""
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
    """Whether the program is a notebook or a prompt, which an exit would end."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules
