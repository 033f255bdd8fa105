"""The server of a live page: where it may be opened, who may read it, and its three paths.

Why: whoever knows the token may read the keys of the streams, and nobody else may. So the server
listens on loopback unless another host is given, and every path needs the token. On loopback, a
request must name a host of this machine: otherwise any site, under a name that resolves to
127.0.0.1, could send requests from the user's browser (DNS rebinding).

Law: it never keeps a process alive (all threads are daemons), and never makes the query wait
(`joinengine.reporting.tabs`). A refusal is one plain sentence and nothing else.
"""

from __future__ import annotations

import errno
import io
import logging
import re
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socketserver import TCPServer
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from joinengine.model.arguments import kind_of
from joinengine.model.errors import InvalidRequest
from joinengine.reporting.tabs import GREETING, Tab, Teller

if TYPE_CHECKING:
    from joinengine.reporting.story import Story

_log = logging.getLogger("joinengine")

#: An `Accept` header -> Prometheus' text and its content type.
Metrics = Callable[[str], tuple[bytes, str]]

LOOPBACK = "127.0.0.1"
_LARGEST_PORT = 65535
#: How many ports are tried after one that is in use.
_MORE_PORTS = 100
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,200}")
#: Random bytes of a generated token.
_TOKEN_BYTES = 24
_HEARTBEAT_S = 10.0
#: How long a whole request may take to arrive, and an event to be written, in seconds.
_REQUEST_S, _WRITE_S = 30.0, 60.0
#: Each connection has a thread; a browser opens six at most. Connections that have not shown the
#: token yet (strangers) have places of their own, and a new stranger takes the place of the oldest.
#: A browser shows the token at once, so whoever occupies all these places shuts nobody out.
_MOST_CONNECTIONS, _MOST_STRANGERS = 128, 64
#: How long closing may take, in seconds.
_CLOSE_S = 0.2
#: Names by which a browser of this machine asks for a page on loopback, behind ssh as well.
_OWN_NAMES = frozenset({LOOPBACK, "localhost", "[::1]"})


@dataclass(frozen=True)
class Place:
    """Where to serve a page. `port` 0: any free port; `token` None: a random token."""

    port: int = 0
    host: str = LOOPBACK
    token: str | None = None


def check_port(value: Any, what: str) -> int:
    """A port as a number, from a number or text. Raises InvalidRequest, naming `what`.

    >>> check_port("8080", "livePort"), check_port(0, "livePort")
    (8080, 0)
    """
    text = str(value)
    whole = isinstance(value, int | str) and not isinstance(value, bool)
    if not (whole and re.fullmatch(r"[0-9]{1,5}", text) and int(text) <= _LARGEST_PORT):
        raise InvalidRequest(
            f"{what}: {kind_of(value)} is not a port; give a whole number up to {_LARGEST_PORT}, "
            "or 0 for any free port"
        )
    return int(text)


def check_host(value: Any, what: str) -> str:
    """A host. Raises InvalidRequest, naming `what`; only binding shows if it is this machine."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._:-]+", value):
        raise InvalidRequest(
            f"{what}: {kind_of(value)} is not a host; give a name or an address of this machine, "
            f"such as {LOOPBACK}"
        )
    return value


def check_token(value: Any, what: str) -> str:
    """A token. Raises InvalidRequest, naming `what`; the message does not hold the token."""
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise InvalidRequest(
            f"{what}: this is not a token; give 16 to 200 letters, digits, '-', '.', '_' or '~', "
            "as `python -c 'import secrets; print(secrets.token_urlsafe())'` prints"
        )
    return value


class PageServer:
    """A page, its events and its metrics on one port; from `serve` on, until `close`.

    Raises InvalidRequest if it cannot listen there. If the port is in use, it takes the next free
    one, and warns.
    """

    def __init__(self, place: Place) -> None:
        self.token = place.token or secrets.token_urlsafe(_TOKEN_BYTES)
        self.wanted = place
        self._http = _listening(place, self.token)
        self.port: int = self._http.server_address[1]
        self._teller: Teller | None = None
        if not self._http.is_loopback:
            _log.warning(
                "joinengine: every machine that reaches port %d and has the token can open the "
                "page, which is not encrypted",
                self.port,
            )

    @cached_property
    def place(self) -> str:
        """The URL without the token, for logs."""
        host, bound = self.wanted.host, self._http.bound
        if bound.is_unspecified:  # all addresses; a browser needs one name
            host = socket.gethostname()
        elif "::ffff:" in host.lower():  # browsers write such an address differently
            host = str(bound)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    @property
    def url(self) -> str:
        """The URL that a browser opens, with the token."""
        return f"{self.place}?token={self.token}"

    def serve(self, story: Story, page: Callable[[], str], metrics: Metrics | None = None) -> None:
        """Answer from now on. `page()`: the HTML; `metrics`: None for no such path."""
        self._teller = self._http.teller = Teller(story)
        self._http.page, self._http.metrics = page, metrics
        serve = partial(self._http.serve_forever, poll_interval=_CLOSE_S)
        Thread(target=serve, name="joinengine-http", daemon=True).start()

    def put(self, record: Any) -> None:
        """Take the record of a batch; it never waits."""
        if self._teller is not None:
            self._teller.put(record)

    def end(self, how: str, words: str, at: float, wait_s: float = 0.0) -> bool:
        """Tell the tabs that the query has ended; wait until they know, for `wait_s` at most."""
        if self._teller is None:
            return True
        self._teller.end(how, words, at)
        return self._teller.flush(wait_s)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the tabs have received all that is known; False: it takes longer."""
        return self._teller is None or self._teller.flush(timeout_s)

    def close(self) -> None:
        """Stop answering, and hang up on all tabs. A second call does nothing."""
        if self._teller is not None:
            self._teller.close()
            self._http.shutdown()
            self._teller = None
        self._http.server_close()


class _Http(ThreadingHTTPServer):
    """A listening socket, and a daemon thread for each connection."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    teller: Teller
    page: Callable[[], str]
    metrics: Metrics | None = None

    def __init__(self, family: int, address: Any, host: str, token: str) -> None:
        self.address_family = family
        self.token = token.encode()
        self._lock = Lock()
        #: connections that have shown the token, and that have not, oldest first
        self._friends, self._strangers = set[Any](), dict[Any, None]()
        super().__init__(address, _Handler)
        bound = ip_address(str(self.server_address[0]).partition("%")[0])
        #: an address of IPv4 that is written as one of IPv6 is the same one
        self.bound = getattr(bound, "ipv4_mapped", None) or bound
        self.is_loopback = self.bound.is_loopback
        self.names = _OWN_NAMES | {f"[{host}]" if ":" in host else host.lower()}

    def server_bind(self) -> None:
        """Bind, without a DNS query for the name of this machine."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread; if there are too many strangers, drop the oldest."""
        with self._lock:
            oldest = next(iter(self._strangers), None)
            self._strangers[request] = None
            if oldest is not None and len(self._strangers) > _MOST_STRANGERS:
                del self._strangers[oldest]
                _hang_up(oldest)
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._leave(request)
            raise

    def welcome(self, request: Any) -> bool:
        """Give a connection that has shown the token a place of its own; False: there is none."""
        with self._lock:
            if len(self._friends) == _MOST_CONNECTIONS:
                return False
            self._strangers.pop(request, None)
            self._friends.add(request)
            return True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def _leave(self, request: Any) -> None:
        with self._lock:
            self._strangers.pop(request, None)
            self._friends.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave the user's terminal alone: most errors are tabs that were closed."""
        _log.debug("joinengine: a request to the page failed", exc_info=True)


def _listening(place: Place, token: str) -> _Http:
    """A server on the place's port, or on the next one that is free."""
    try:
        addresses = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = addresses[0]
    except (OSError, UnicodeError) as error:
        raise _not_ours(place.host, error) from None
    last = min(place.port + _MORE_PORTS, _LARGEST_PORT) if place.port else 0
    for port in range(place.port, last + 1):
        try:
            http = _Http(family, (address[0], port, *address[2:]), place.host, token)
        except PermissionError:
            raise InvalidRequest(
                f"the page cannot use port {port}; give a port from 1024 on, or 0 for any free port"
            ) from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _not_ours(place.host, error) from None
            continue
        if port != place.port:
            _log.warning("joinengine: port %d is in use; the page is at port %d", place.port, port)
        return http
    raise InvalidRequest(
        f"the page found no free port: {place.port} to {last} are in use; give another port, or 0 "
        "for any free port"
    )


def _not_ours(host: str, error: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"the page cannot listen on host {host!r} ({error}); give a name or an address of this "
        f"machine, such as {LOOPBACK}"
    )


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Timely(io.RawIOBase):
    """Reads a connection until `end_s` (of `monotonic`), however slowly bytes arrive."""

    def __init__(self, connection: socket.socket, end_s: float) -> None:
        self._connection, self._end_s = connection, end_s

    def readable(self) -> bool:
        """True: it is only read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the bytes that have arrived, or wait for some. Raises TimeoutError at `end_s`."""
        left_s = self._end_s - monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """One request; its connection ends with it."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "joinengine", ""
    server: _Http

    def setup(self) -> None:
        """Limit the time in which the request must arrive."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Timely(self.connection, monotonic() + _REQUEST_S))

    def do_GET(self) -> None:
        """Answer a request that has the token and names a host of this machine."""
        self.connection.settimeout(_REQUEST_S)
        path, _, query = self.path.partition("?")
        if self.server.is_loopback and self._host() not in self.server.names:
            names = ", ".join(sorted(_OWN_NAMES))
            self._say(HTTPStatus.FORBIDDEN, f"This page serves its own machine only: open {names}.")
        elif not self._knows_token(path, query):
            self._say(HTTPStatus.FORBIDDEN, "The token is missing or wrong: open the whole URL.")
        elif not self.server.welcome(self.request):
            self.close_connection = True
        elif path == "/":
            self._made(lambda: (self.server.page().encode(), "text/html; charset=utf-8"))
        elif path == "/events":
            self._events()
        elif path == "/metrics" and self.server.metrics is not None:
            metrics, accept = self.server.metrics, self.headers.get("Accept", "")
            self._made(lambda: metrics(accept))
        else:
            self._say(HTTPStatus.NOT_FOUND, "This page does not exist.")

    def _host(self) -> str:
        """The host that the request names, without its port, which differs behind a tunnel."""
        return re.sub(r":\d*$", "", self.headers.get("Host", "")).lower()

    def _knows_token(self, path: str, query: str) -> bool:
        """Whether the request has the token: as a bearer or, except for metrics, in the URL."""
        kind, _, bearer = self.headers.get("Authorization", "").partition(" ")
        said = [bearer.strip()] if kind.lower() == "bearer" else []
        if path != "/metrics":
            said += parse_qs(query).get("token", [])
        return any([secrets.compare_digest(token.encode(), self.server.token) for token in said])

    def _made(self, made: Callable[[], tuple[bytes, str]]) -> None:
        """Answer with the bytes and the content type that `made` gives."""
        try:
            body, kind = made()
        except Exception:  # our own fault, whose details the client does not learn
            _log.exception("joinengine: the page could not be created")
            failed = HTTPStatus.INTERNAL_SERVER_ERROR
            self._say(failed, "The page could not be created; see the log.")
            return
        self._answer(body, kind)

    def _events(self) -> None:
        """Send events until the tab is closed or dropped."""
        tab = Tab(partial(_hang_up, self.connection))
        self.connection.settimeout(_WRITE_S)
        self._head(HTTPStatus.OK, "text/event-stream")
        self.wfile.write(GREETING)
        self.server.teller.enter(tab)
        try:
            with suppress(OSError):  # closed, or not read for too long
                while frame := tab.take(_HEARTBEAT_S):
                    self.wfile.write(frame)
        finally:
            tab.drop()
            self.server.teller.leave(tab)

    def _head(self, status: int, kind: str, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")  # what else came with the request is not read
        self.end_headers()

    def _answer(self, body: bytes, kind: str, status: int = HTTPStatus.OK) -> None:
        self._head(status, kind, len(body))
        self.wfile.write(body)

    def _say(self, status: int, sentence: str) -> None:
        self._answer(f"{sentence}\n".encode(), "text/plain; charset=utf-8", status)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request that is not served; the answer does not repeat the request."""
        self.close_connection = True
        self._say(code, "Only GET is served here.")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line would hold the token."""
