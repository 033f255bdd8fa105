"""Where the server of a live page listens, and how it ends."""

from __future__ import annotations

import http.client
import logging
import socket
from contextlib import closing

import pytest

from joinengine.model.errors import InvalidRequest
from joinengine.reporting import server as module
from joinengine.reporting.server import PageServer, Place, check_host, check_port, check_token
from tests.unit.serving import TOKEN, Watching, ask, served


@pytest.fixture(autouse=True)
def soon_closed(monkeypatch):
    monkeypatch.setattr(module, "_CLOSE_S", 0.01)


def test_a_port_in_use_gives_the_next_one(caplog):
    with served() as first, served(Place(port=first.port, token=TOKEN)) as second:
        assert first.port < second.port <= first.port + 100
        assert f"port {first.port} is in use; the page is at port {second.port}" in caplog.text
        assert ask(second, f"/?token={TOKEN}")[0] == 200


def test_any_free_port_says_nothing(caplog):
    with served(), served():
        assert not caplog.records


def test_no_free_port_is_a_sentence(monkeypatch):
    monkeypatch.setattr(module, "_MORE_PORTS", 0)
    with served() as server:
        text = f"{server.port} to {server.port} are in use; give another port, or 0"
        with pytest.raises(InvalidRequest, match=text):
            PageServer(Place(port=server.port))


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "x" * 80])
def test_a_host_that_is_not_this_machine(host):
    with pytest.raises(InvalidRequest, match="the page cannot listen on host '"):
        PageServer(Place(host=host))


def test_closing_hangs_up_and_frees_the_port():
    with served() as server:
        tab = Watching(server)
        tab.next()
        server.close()
        assert tab.next() is None
        server.close()
        server.put(1)
        assert server.end("stopped", "", 0.0)
        with pytest.raises(ConnectionRefusedError):
            ask(server, "/")
    with closing(PageServer(Place(port=server.port))) as again:
        assert again.port == server.port


def test_each_server_has_a_token_of_its_own():
    with closing(PageServer(Place())) as one, closing(PageServer(Place())) as other:
        assert one.token != other.token
        assert check_token(one.token, "token") == one.token


def test_an_error_of_a_request_is_not_printed(capfd, monkeypatch):
    with served() as server:
        with monkeypatch.context() as patch:
            patch.setattr(module._Handler, "do_GET", lambda handler: 1 / 0)
            with pytest.raises(http.client.RemoteDisconnected):
                ask(server, "/")
        assert ask(server, "/")[0] == 403
    assert capfd.readouterr() == ("", "")


def test_requests_are_not_logged(caplog, capfd):
    with caplog.at_level(logging.DEBUG), served() as server:
        ask(server, f"/?token={TOKEN}")
        ask(server, "/")
        with socket.create_connection(("127.0.0.1", server.port)) as lost:
            lost.sendall(b"nonsense\r\n\r\n")
            assert b"Only GET" in lost.recv(1000)
    assert TOKEN not in caplog.text
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("port", [-1, 65536, "x", "", "8080.0", 1.0, True, None, "¹", "9" * 5000])
def test_a_port_is_a_whole_number_up_to_the_largest(port):
    with pytest.raises(InvalidRequest, match=r"livePort: .* is not a port; give a whole number"):
        check_port(port, "livePort")


def test_ports_tokens_and_hosts():
    assert [check_port(port, "port") for port in (0, "65535", "08")] == [0, 65535, 8]
    for token in ("a" * 16, "aZ09-._~" * 25):
        assert check_token(token, "liveToken") == token
    for host in ("::1", "a-machine.example"):
        assert check_host(host, "liveHost") == host
    for token in (None, 5, "a" * 15, "a" * 201, "a" * 15 + "/", "a" * 16 + "\n", "é" * 20):
        with pytest.raises(InvalidRequest, match="liveToken: this is not a token; give") as refused:
            check_token(token, "liveToken")
        assert str(token) not in str(refused.value)
    for host in (None, "", "a b", "http://x", "[::1]", "x\n", 1):
        with pytest.raises(InvalidRequest, match=r"liveHost: .* is not a host; give a name"):
            check_host(host, "liveHost")
