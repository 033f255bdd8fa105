"""Sends the story of a run to the open tabs of its live page, from one thread.

Why a thread: a batch must never wait for its viewers. The query's thread only puts its record into
a queue; folding it into the story, encoding and sending happen here and in the threads of the tabs.
The JSON of a whole story is made entry by entry, since Python's encoder keeps all other threads
from running while it works on a value.

Law: a tab gets the whole story first, and then each change once and in order; or it is dropped,
connects again by itself, and gets the whole story again. The frames that wait for a tab are
bounded.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from threading import Condition, Event, Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joinengine.reporting.story import Story

_log = logging.getLogger("joinengine")

#: How many changes may wait for a tab. The whole story replaces all that wait, so at most one story
#: and as many changes wait.
MOST_WAITING = 256
#: An event without content: it shows a tab that the server lives, and the server which tabs do.
HEARTBEAT = b"event: alive\ndata: 1\n\n"
#: The first frame of a tab: how long it waits before it connects again, in milliseconds.
GREETING = b"retry: 1000\n\n"


def encoded(value: dict[str, Any]) -> bytes:
    r"""A JSON object as bytes; the lists in it are encoded element by element.

    Raises ValueError for a number that JSON does not have.

    >>> encoded({"a": [1, {"b": "é"}], "c": None})
    b'{"a":[1,{"b":"\\u00e9"}],"c":null}'
    """
    parts = []
    for key, part in value.items():
        if isinstance(part, list):
            parts.append(f"{_dumped(key)}:[{','.join([_dumped(item) for item in part])}]")
        else:
            parts.append(f"{_dumped(key)}:{_dumped(part)}")
    return f"{{{','.join(parts)}}}".encode()


def frame(event: str, value: dict[str, Any]) -> bytes:
    r"""A JSON object as a server-sent event.

    >>> frame("ended", {"how": "finished"})
    b'event: ended\ndata: {"how":"finished"}\n\n'
    """
    return b"event: %b\ndata: %b\n\n" % (event.encode(), encoded(value))


class Tab:
    """The frames that wait for one open tab. `hang_up` ends its connection, even during a write."""

    def __init__(self, hang_up: Callable[[], None], most: int = MOST_WAITING) -> None:
        self._hang_up, self._most = hang_up, most
        self._frames = deque[bytes]()
        self._changed = Condition()
        self._reading, self._gone = False, False

    def offer(self, frame: bytes, *, anew: bool = False) -> bool:
        """Queue a frame for the tab; `anew`: in place of all that wait. Never blocks.

        False: too many frames wait, since the tab does not read, and the tab was dropped.
        """
        with self._changed:
            if anew:
                self._frames.clear()
            if not self._gone and len(self._frames) < self._most:
                self._frames.append(frame)
                self._changed.notify_all()
                return True
        self.drop()
        return False

    def take(self, timeout_s: float) -> bytes:
        """The next frame; after `timeout_s` without one a heartbeat; empty: the tab is dropped."""
        with self._changed:
            self._reading = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._frames or self._gone, timeout_s)
            self._reading = False
            if self._gone:
                return b""
            return self._frames.popleft() if self._frames else HEARTBEAT

    def sent(self, end_s: float) -> bool:
        """Wait until all frames are written, or the tab is dropped; `end_s`: of `monotonic`."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._gone or (self._reading and not self._frames),
                max(0.0, end_s - time.monotonic()),
            )

    def drop(self) -> None:
        """Send the tab nothing more, and end its connection."""
        with self._changed:
            if self._gone:
                return
            self._gone = True
            self._frames.clear()
            self._changed.notify_all()
        self._hang_up()


class Teller:
    """Folds records into a story and tells the tabs, in a daemon thread of its own."""

    def __init__(self, story: Story) -> None:
        # Only the thread touches these four: all requests go through the queue.
        self._story = story
        self._tabs = list[Tab]()
        self._whole: bytes | None = None
        self._said = False
        self._asked = SimpleQueue[Callable[[], None] | None]()
        self._closed = False
        Thread(target=self._run, name="joinengine-page", daemon=True).start()

    def put(self, record: Any) -> None:
        """Take the record of a batch; costs the caller a few microseconds."""
        self._asked.put(partial(self._add, record))

    def end(self, how: str, words: str, at: float) -> None:
        """Tell the tabs that the query has ended; `at`: seconds since the epoch."""
        self._asked.put(partial(self._end, how, words, at))

    def enter(self, tab: Tab) -> None:
        """Send a tab the story, and then all changes."""
        self._asked.put(partial(self._enter, tab))
        if self._closed:  # the queue has ended
            tab.drop()

    def leave(self, tab: Tab) -> None:
        """Forget a tab."""
        self._asked.put(partial(self._leave, tab))

    def flush(self, timeout_s: float) -> bool:
        """Wait until the tabs have received all earlier records; False: it takes longer."""
        end_s = time.monotonic() + timeout_s
        done, tabs = Event(), list[Tab]()
        self._asked.put(partial(self._count, tabs, done))
        return done.wait(timeout_s) and all([tab.sent(end_s) for tab in tabs])

    def close(self) -> None:
        """Drop all tabs, and end the thread."""
        self._closed = True
        self._asked.put(self._drop_all)
        self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            try:
                asked()
            except Exception:  # a fault of the page must not stop the query
                _log.exception("joinengine: the page could not show a batch")

    def _add(self, record: Any) -> None:
        self._whole = None
        with self._whole_otherwise():
            if self._story.add(record):
                self._tell(self._story_frame, anew=True)
            else:
                self._tell(lambda: frame("batch", self._story.newest()))

    def _end(self, how: str, words: str, at: float) -> None:
        self._whole = None
        with self._whole_otherwise():
            self._story.end(how, words, at)
            # The total time of the last batch is known now.
            self._tell(lambda: frame("batch", self._story.newest()))
            self._tell(lambda: frame("ended", {"how": how, "words": words, "at": at}))

    def _enter(self, tab: Tab) -> None:
        try:
            first = self._story_frame()
        except Exception:  # said once: the tab tries again by itself, each second
            if not self._said:
                _log.exception("joinengine: the page could not show the batches")
            self._said = True
            tab.drop()
            return
        if tab.offer(first):
            self._tabs.append(tab)

    @contextmanager
    def _whole_otherwise(self) -> Iterator[None]:
        """If the change in the block fails, send the tabs the whole story, or drop them."""
        try:
            yield
        except Exception:
            _log.exception("joinengine: the page could not show a batch")
            self._said = True
            try:
                self._tell(self._story_frame, anew=True)
            except Exception:
                self._drop_all()

    def _leave(self, tab: Tab) -> None:
        self._tabs = [other for other in self._tabs if other is not tab]

    def _count(self, tabs: list[Tab], done: Event) -> None:
        tabs += self._tabs
        done.set()

    def _drop_all(self) -> None:
        for tab in self._tabs:
            tab.drop()
        self._tabs.clear()

    def _tell(self, made: Callable[[], bytes], *, anew: bool = False) -> None:
        """Offer a frame to all tabs; without tabs it is not made."""
        if self._tabs:
            frame = made()
            self._tabs = [tab for tab in self._tabs if tab.offer(frame, anew=anew)]

    def _story_frame(self) -> bytes:
        """The whole story; kept until it changes, since several tabs may ask for it."""
        if self._whole is None:
            self._whole = frame("story", self._story.whole())
        return self._whole


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
