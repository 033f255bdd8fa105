"""The page of a running query: connects the query to a page server, and tells it the end.

Law: the page costs a batch one `put` into a queue, and never keeps the process alive. All its
threads are daemons, and a process that ends waits at most half a second for tabs that must still
learn of the end.
"""

from __future__ import annotations

import atexit
import html
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any
from weakref import WeakSet

from joinengine.model.errors import InvalidRequest
from joinengine.reporting.server import (
    PageServer,
    Place,
    check_host,
    check_port,
    check_token,
)
from joinengine.spark.query.loop_thread import Running
from joinengine.spark.query.run_watch import Watch
from joinengine.spark.query.waiting import say, wait_for_key

_log = logging.getLogger("joinengine")

#: Waits some seconds for the end of a query; (how it ended, in which words); None: it still runs.
Ending = Callable[[float], tuple[str, str] | None]

#: Seconds of one wait for the end of the query; a closed page ends its watch after it.
_POLL_S = 1.0
#: Seconds that a program waits until the page knows of the end of the query.
_SETTLE_S = 5.0
#: Seconds that a process that ends waits for its tabs, and for the end of its query.
_EXIT_S, _NEWS_S = 0.5, 0.1


@dataclass(frozen=True)
class Showing:
    """How a query is shown. `place`: where its page is, unless `JoinQuery.live` says otherwise.

    `server`: of the page that is open from its start; None: there is none.
    """

    place: Place = field(default_factory=Place)
    server: PageServer | None = None


class Live:
    """A page that shows a query while it runs. It stays after the end of the query, until `close`.

    `url`: what a browser opens; it holds the token.
    """

    def __init__(self, server: PageServer, name: str, watch: Watch, ending: Ending) -> None:
        """`server` is running; from now on, it gets the records of `watch`."""
        self.url = server.url
        self._server, self._name, self._watch, self._ending = server, name, watch, ending
        self._closed, self._settled, self._telling = Event(), Event(), Lock()
        watch.follow(server.put)
        with _opening:
            _pages.add(self)
        atexit.register(self._exit)
        Thread(target=self._wait_for_end, name="joinengine-live", daemon=True).start()
        _log.info("joinengine: the page is at %s (this log leaves out its token)", server.place)

    def __repr__(self) -> str:
        return f"<Live {'closed' if self.closed else self.url}>"

    def _repr_html_(self) -> str:
        if self.closed:
            return html.escape(repr(self))
        url, name = html.escape(self.url), html.escape(self._name)
        return f'<a href="{url}" target="_blank" rel="noopener noreferrer">{name}, live</a>'

    @property
    def closed(self) -> bool:
        """Whether the page is closed."""
        return self._closed.is_set()

    @property
    def is_left(self) -> bool:
        """Whether the query has ended, and the page stays only for its viewers."""
        return self._settled.is_set() and not self.closed

    @property
    def port(self) -> int:
        """The port on which the page listens."""
        return self._server.port

    def close(self) -> None:
        """Close the page; the query goes on, and tabs keep what they show. May be called again."""
        if self._closed.is_set():
            return
        self._closed.set()
        atexit.unregister(self._exit)
        self._watch.unfollow(self._server.put)
        self._tell(
            "closed",
            "this tab keeps the batches shown so far, and the query goes on",
            _EXIT_S,
        )
        self._server.close()

    def settle(self) -> None:
        """After the end of the query: wait until the page knows of it."""
        self._settled.wait(_SETTLE_S)

    def check_same(self, port: Any, host: Any, token: Any) -> None:
        """Raise InvalidRequest if an argument differs from the page's own place; None: any."""
        server, first = self._server, self._server.wanted
        asked = place_at(port, host, token, Place(server.port, first.host, server.token))
        same = (asked.host, asked.token) == (first.host, server.token)
        if same and asked.port in (0, first.port, server.port):
            return
        raise InvalidRequest(
            f"live: the query already has its page at {server.place}; to move it, close it first; "
            "to get it, call live() without arguments"
        )

    def _wait_for_end(self) -> None:
        while not self._closed.is_set():
            ending = self._ending(_POLL_S)
            if ending is not None:
                self._tell(*ending)
                return

    def _exit(self) -> None:
        """Tell the tabs that the process ends, unless they know that the query has ended."""
        end_s = time.monotonic() + _EXIT_S
        if not self._settled.wait(_NEWS_S):
            self._tell("stopped", "the process ended while the query was running")
        self._server.flush(max(0.0, end_s - time.monotonic()))

    def _tell(self, how: str, words: str, wait_s: float = 0.0) -> None:
        """Tell the tabs how the query ended; only the first call counts."""
        with self._telling:
            if not self._settled.is_set():
                self._server.end(how, words, time.time(), wait_s)
                self._settled.set()


#: The pages of this process that are still referenced.
_pages, _opening = WeakSet[Live](), Lock()


def page_at(place: Place) -> PageServer:
    """A page server at a place. Closes the page of an ended query on the same port.

    Requests for metrics at that port are meant for the running query. Raises as `PageServer`.
    """
    with _opening:
        pages = list(_pages)
    for live in pages:
        if place.port and live.port == place.port and live.is_left:
            live.close()
    return PageServer(place)


class Pages:
    """The only page of a query: opened with the query, or by `JoinQuery.live`.

    `shown_on`: shows the query on a server's page.
    """

    def __init__(self, showing: Showing, shown_on: Callable[[PageServer], Live]) -> None:
        self._showing, self._shown_on = showing, shown_on
        self._opening = Lock()
        self._waits = False
        self.live: Live | None = None

    def begin(self) -> None:
        """Open the page that the query has from its start, if any."""
        if self._showing.server is not None:
            self.live = self._shown_on(self._showing.server)

    def open(self, port: Any, host: Any, token: Any, *, wait: bool) -> Live:
        """Open the page unless it is open; parameters and errors as in `JoinQuery.live`."""
        with self._opening:
            if self.live is None or self.live.closed:
                place = place_at(port, host, token, self._showing.place)
                self.live = self._shown_on(page_at(place))
            else:
                self.live.check_same(port, host, token)
            self._waits = self._waits or wait
            return self.live

    def settle(self) -> None:
        """Wait until the page, if there is one, knows that the query has ended."""
        if self.live is not None:
            self.live.settle()

    def hold(self) -> None:
        """When the query has ended: let the page know, and wait for a key once if asked to."""
        if self.live is None or self.live.closed:
            return
        self.live.settle()
        if self._waits:
            self._waits = False
            wait_for_key(f"page: {self.live.url}; press a key to end")


def place_at(port: Any, host: Any, token: Any, otherwise: Place) -> Place:
    """The place from the arguments of `live`; for None, the value in `otherwise`.

    Raises InvalidRequest for an invalid argument.
    """
    return Place(
        otherwise.port if port is None else check_port(port, "live: port"),
        otherwise.host if host is None else check_host(host, "live: host"),
        otherwise.token if token is None else check_token(token, "live: token"),
    )


def announce(live: Live) -> None:
    """Print the URL of a page that an option has opened, if the program runs on a terminal."""
    if sys.stderr.isatty():
        say(f"joinengine: page: {live.url}")


def ending_of(running: Running, watch: Watch, *, ends: bool) -> Ending:
    """A function that waits for the end of a query; `ends`: it ends when it has read its data.

    Each call waits for some seconds, and returns as soon as the query ends.
    """

    def ending(timeout_s: float) -> tuple[str, str] | None:
        try:
            if not running.wait(timeout_s):
                return None
            watch.complete()  # with Spark's time of the last batch
            error = running.error()
        except Exception:  # the JVM is gone
            return "stopped", "Spark ended while the query was running"
        if error is not None:
            return "failed", str(error)
        if watch.stopping or not ends:
            return "stopped", "the query was stopped; its next start goes on where it stopped"
        return "finished", "the query has read all data that existed when it started"

    return ending
