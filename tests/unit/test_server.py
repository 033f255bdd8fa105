"""The server of a live page on loopback: who may read it, what tabs are told, and how it ends."""

from __future__ import annotations

import http.client
import math
import socket
import threading
from contextlib import ExitStack, closing, suppress
from types import SimpleNamespace

import pytest

from joinengine.model.errors import InvalidRequest
from joinengine.reporting import server as module
from joinengine.reporting.server import PageServer, Place
from joinengine.reporting.tabs import HEARTBEAT, Tab
from tests.unit.serving import PATIENCE_S, TOKEN, Story, Watching, ask, served


@pytest.fixture(autouse=True)
def soon_closed(monkeypatch):
    monkeypatch.setattr(module, "_CLOSE_S", 0.01)


@pytest.mark.parametrize("path", ["/", "/events", "/metrics", "/other", "/favicon.ico"])
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", "%C3%A9", "%ff"])
def test_without_the_token_there_is_one_sentence(path, token):
    with served(metrics=lambda accept: (b"joinengine_up 1\n", "text/plain")) as server:
        asked = path if token is None else f"{path}?token={token}"
        status, headers, body = ask(server, asked)
        assert (status, body) == (403, b"The token is missing or wrong: open the whole URL.\n")
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
        bearer = f"Bearer {token or ''}"
        assert ask(server, path, Authorization=bearer)[0] == 403


def test_the_page_and_what_guards_it():
    with served() as server:
        assert server.url == f"http://127.0.0.1:{server.port}/?token={TOKEN}"
        for path, more in ((f"/?token={TOKEN}", {}), ("/", {"Authorization": f"Bearer {TOKEN}"})):
            status, headers, body = ask(server, path, **more)
            assert (status, body) == (200, "<p>é</p>".encode())
            assert headers["Content-Type"] == "text/html; charset=utf-8"
            assert headers["Cache-Control"] == "no-store"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert headers["Server"].strip() == "joinengine"
        assert ask(server, f"/other?token={TOKEN}")[0] == 404
        assert ask(server, f"/metrics?token={TOKEN}")[0] == 403
        assert ask(server, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 404
        status, _, body = ask(server, f"/<b>?token={TOKEN}", method="POST")
        assert (status, body) == (501, b"Only GET is served here.\n")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9000", "[::1]:1", "LOCALHOST", "[::1]"])
def test_a_request_may_name_this_machine_under_any_port(host):
    with served() as server:
        assert ask(server, f"/?token={TOKEN}", host)[0] == 200


@pytest.mark.parametrize("host", [None, "", "example.org", "localhost.example.org:80", "::1", "[]"])
def test_a_request_for_another_host_is_refused_on_loopback(host):
    with served() as server:
        status, _, body = ask(server, f"/?token={TOKEN}", host)
        assert status == 403
        assert b"<p>" not in body
        assert body.count(b"\n") == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "0"])
def test_on_all_addresses_any_name_will_do(caplog, host):
    with served(Place(host=host, token=TOKEN)) as server:
        assert ask(server, f"/?token={TOKEN}", "machine.example.org")[0] == 200
        assert ask(server, "/", "machine.example.org")[0] == 403
        assert server.place == f"http://{socket.gethostname()}:{server.port}/"
    assert "every machine" in caplog.text
    assert TOKEN not in caplog.text


def test_metrics_take_the_token_as_a_bearer():
    with served(metrics=lambda accept: (b"joinengine_up 1\n", f"text/plain; {accept}")) as server:
        status, headers, body = ask(
            server, "/metrics", Authorization=f"bearer {TOKEN}", Accept="version=1"
        )
        assert (status, body) == (200, b"joinengine_up 1\n")
        assert headers["Content-Type"] == "text/plain; version=1"
        assert ask(server, f"/metrics?token={TOKEN}")[0] == 403


def test_what_cannot_be_made_is_said_and_logged(caplog):
    with served(metrics=lambda accept: 1 / 0) as server:
        status, _, body = ask(server, "/metrics", Authorization=f"Bearer {TOKEN}")
        assert (status, body) == (500, b"The page could not be created; see the log.\n")
        assert "ZeroDivisionError" in caplog.text
        assert ask(server, f"/?token={TOKEN}")[0] == 200


def test_a_tab_gets_the_story_and_then_each_batch():
    with served(story=Story(merged=4)) as server:
        server.put({"batch": 0})
        early = Watching(server)
        assert early.next() == ("story", {"batches": [{"batch": 0}], "ended": None})
        for batch in (1, 2):
            server.put({"batch": batch})
            assert early.next() == ("batch", {"batch": {"batch": batch}, "plans": []})
        late = Watching(server)
        assert [one["batch"] for one in late.next()[1]["batches"]] == [0, 1, 2]
        server.put({"batch": 3})
        for tab in (early, late):
            event, story = tab.next()
            assert event == "story"
            assert [one["batch"] for one in story["batches"]] == [0, 1, 2, 3]
        late.close()
        ended = {"how": "failed", "words": "the </script> failed", "at": 5.0}
        assert server.end(**ended, wait_s=PATIENCE_S)
        assert early.next()[0] == "batch"  # the last one, with its whole time
        assert early.next() == ("ended", ended)
        assert Watching(server).next()[1]["ended"] == ended  # a reload


def test_a_record_that_cannot_be_told_stops_nothing(caplog):
    with served() as server:
        tab = Watching(server)
        tab.next()
        server.put("broken")
        assert tab.next() == ("story", {"batches": [], "ended": None})  # never a gap
        server.put(1)
        assert tab.next() == ("batch", {"batch": 1, "plans": []})
        assert caplog.text.count("could not show") == 1


def test_a_change_that_cannot_be_told_gives_the_whole_story_anew_or_drops_the_tabs(caplog):
    class Odd(Story):
        def newest(self):
            told = super().newest()
            return told | {"batch": math.nan} if told["batch"] == "odd" else told

    story = Odd()
    with served(story=story) as server:
        tab = Watching(server)
        tab.next()
        server.put("odd")
        assert tab.next() == ("story", {"batches": ["odd"], "ended": None})
        server.put(math.inf)  # is no JSON, wherever it stands
        assert tab.next() is None
        assert caplog.text.count("could not show") == 2
        assert Watching(server).next() is None  # it tries again
        story.batches.pop()
        server.put(1)
        assert Watching(server).next() == ("story", {"batches": ["odd", 1], "ended": None})
        assert caplog.text.count("could not show") == 2


def test_a_tab_that_does_not_read_is_dropped_and_the_others_hear_all(monkeypatch):
    monkeypatch.setattr(module, "_WRITE_S", 10 * PATIENCE_S)  # so that it is not this that drops
    with served() as server:
        reading = Watching(server)
        reading.next()
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as idle:
            idle.sendall(f"GET /events?token={TOKEN} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert idle.recv(12) == b"HTTP/1.1 200"
            text = "x" * 200_000
            for number in range(400):  # 80 MB: above all buffers of the kernel and 256 changes
                server.put({"number": number, "text": text})
                assert reading.next()[1]["batch"]["number"] == number
            assert server.flush(PATIENCE_S)  # nobody is waited for any more
            with suppress(ConnectionResetError):
                while idle.recv(1 << 20):
                    pass


def test_what_waits_for_a_tab_is_bounded():
    hung_up = []
    tab = Tab(lambda: hung_up.append(1), most=2)
    assert tab.take(0.0) == HEARTBEAT
    assert tab.offer(b"1")
    assert tab.offer(b"2")
    assert tab.offer(b"3", anew=True)
    assert tab.take(0.0) == b"3"
    assert tab.offer(b"4")
    assert tab.offer(b"5")
    assert not hung_up
    assert not tab.offer(b"6")
    tab.drop()
    assert hung_up == [1]
    assert tab.take(PATIENCE_S) == b""
    assert not tab.offer(b"7")
    assert tab.sent(0.0)


def test_a_tab_knows_when_all_is_written():
    tab = Tab(lambda: None)
    tab.offer(b"1")
    assert not tab.sent(0.0)
    assert tab.take(0.0) == b"1"
    assert not tab.sent(0.0)  # it is being written
    waiting = threading.Thread(target=tab.take, args=(PATIENCE_S,))
    waiting.start()
    assert tab.sent(float("inf"))
    tab.drop()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def test_many_tabs_and_one_connection_too_many(monkeypatch):
    monkeypatch.setattr(module, "_MOST_CONNECTIONS", 20)
    with served() as server:
        tabs = [Watching(server) for _ in range(20)]
        server.put(1)
        for tab in tabs:
            assert tab.next()[0] == "story"
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            Watching(server)
        server.put(2)
        for tab in tabs:
            while (told := tab.next()) == ("batch", {"batch": 1, "plans": []}):
                pass
            assert told == ("batch", {"batch": 2, "plans": []})
        tabs[0].close()
        assert server.flush(PATIENCE_S)


def test_a_request_that_drips_has_no_more_time_than_another(monkeypatch):
    waits, times = [], iter([0.0, 20.0, 29.9, 30.0])
    connection = SimpleNamespace(settimeout=waits.append, recv_into=lambda buffer: 1)
    monkeypatch.setattr(module, "monotonic", lambda: next(times))
    timely = module._Timely(connection, 30.0)
    for _ in range(3):
        assert timely.readinto(bytearray(10)) == 1
    assert waits == pytest.approx([30.0, 10.0, 0.1])
    with pytest.raises(TimeoutError):
        timely.readinto(bytearray(10))


def test_a_request_that_does_not_come_in_time_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(module, "_REQUEST_S", -1.0)
    with served() as server, socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.settimeout(PATIENCE_S)
        slow.sendall(b"GET / HT")
        with suppress(ConnectionResetError):
            assert slow.recv(1) == b""


def test_who_has_not_shown_the_token_shuts_nobody_out(monkeypatch):
    """One who holds all places of strangers loses the oldest to whoever comes next."""
    monkeypatch.setattr(module, "_MOST_STRANGERS", 3)
    monkeypatch.setattr(module, "_MOST_CONNECTIONS", 6)
    monkeypatch.setattr(module, "_REQUEST_S", 10 * PATIENCE_S)  # so that it is not this that ends
    with served() as server, ExitStack() as idle:
        tabs = [Watching(server) for _ in range(3)]
        held = [
            idle.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(5)
        ]
        for _ in range(3):
            assert ask(server, f"/?token={TOKEN}")[0] == 200
        for one in held[:3]:
            one.settimeout(PATIENCE_S)
            assert one.recv(1) == b""  # hung up on, long before its time
        server.put(1)
        for tab in tabs:
            assert tab.next()[0] == "story"
            assert tab.next()[0] == "batch"
        assert len(server._http._strangers) <= 3
        assert set(server._http._friends) & set(server._http._strangers) == set()


@pytest.mark.parametrize("host", ["::ffff:127.0.0.1", "::FFFF:7f00:1"])
def test_a_mapped_address_of_loopback_is_loopback(host, caplog):
    try:
        socket.getaddrinfo(host, 0)
        opened = PageServer(Place(host=host, token=TOKEN))
    except (OSError, InvalidRequest):
        pytest.skip("this machine has no IPv6")
    with closing(opened) as server:
        assert server.place == f"http://127.0.0.1:{server.port}/"
        server.serve(Story(), lambda: "page")
        assert ask(server, f"/?token={TOKEN}", "example.org")[0] == 403
        assert ask(server, f"/?token={TOKEN}")[0] == 200
    assert not caplog.records
