"""A registry that is away, one that refuses, and a password that nobody tells."""

from __future__ import annotations

import io
import json
import threading
import urllib.request
from http.client import BadStatusLine, IncompleteRead
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from joinengine.model.errors import InvalidRequest, StoreUnreachable
from joinengine.world.schema_registry import NoSuchSchema, Registry, registry_of


@pytest.fixture
def served(monkeypatch):
    """(its address, the answers that are left: status and body, and the headers of requests)."""
    answers, asked = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers.get("Authorization"))
            status, body = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr("joinengine.world.schema_registry._PAUSE_S", 0.01)
    yield f"127.0.0.1:{server.server_port}", answers, asked
    server.shutdown()
    thread.join()
    server.server_close()


SLEEPY = 503, {"error_code": 50003, "message": "no leader"}


def test_it_is_asked_again_while_it_is_away(served):
    address, answers, asked = served
    answers += [SLEEPY, SLEEPY, (200, {"schema": "x"})]
    assert Registry(f"http://{address}").ask("schemas/ids/1", patience_s=30) == {"schema": "x"}
    assert len(asked) == 3


def test_before_a_start_it_is_asked_once(served):
    address, answers, asked = served
    answers.append(SLEEPY)
    with pytest.raises(StoreUnreachable, match="no leader"):
        Registry(f"http://{address}").ask("schemas/ids/1")
    assert len(asked) == 1


def test_a_schema_that_is_not_there_is_told_apart_from_a_wrong_address(served):
    address, answers, _ = served
    answers.append((404, {"error_code": 40403, "message": "Schema 9 not found"}))
    with pytest.raises(NoSuchSchema, match="Schema 9 not found"):
        Registry(f"http://{address}").ask("schemas/ids/9", patience_s=30)
    answers[:] = [(404, "a page")]
    with pytest.raises(InvalidRequest, match="does not serve schemas/ids/9"):
        Registry(f"http://{address}").ask("schemas/ids/9", patience_s=30)


def test_what_it_says_is_passed_on(served):
    address, answers, _ = served
    answers.append((422, {"error_code": 42201, "message": "Invalid schema"}))
    with pytest.raises(InvalidRequest, match=r"does not serve subjects/t \(Invalid schema\)"):
        Registry(f"http://{address}").ask("subjects/t")


@pytest.mark.parametrize(
    "more",
    [
        {"schema.registry.url": "http://me:hunter%2F2@{}"},
        {"schema.registry.basic.auth.user.info": "me:hunter/2"},
        {"basic.auth.user.info": "me:hunter/2", "basic.auth.credentials.source": "USER_INFO"},
    ],
)
def test_a_user_is_sent_and_never_told(served, more):
    address, answers, asked = served
    settings = {"schema.registry.url": "http://{}", "client.id": "x"} | more
    settings["schema.registry.url"] = settings["schema.registry.url"].format(address)
    registry = registry_of(settings)
    assert settings == {"client.id": "x"}
    answers.append((401, {"error_code": 401, "message": "who are you"}))
    with pytest.raises(InvalidRequest, match="who are you") as said:
        registry.ask("subjects/t")
    assert asked == ["Basic bWU6aHVudGVyLzI="]
    assert "hunter" not in f"{said.value} {registry!r}"


def test_answers_that_are_cut_or_none_are_waited_out(served, monkeypatch):
    """Such as those of a proxy, or of a port that speaks TLS."""
    address, answers, asked = served
    answers.append((200, {"schema": "x"}))
    real, broken = urllib.request.urlopen, [IncompleteRead(b"{"), BadStatusLine("\x15"), None]

    def opened(*given, **more):
        if not broken:
            return real(*given, **more)
        error = broken.pop(0)
        if error is None:
            return io.BytesIO(b"[]")
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", opened)
    assert Registry(f"http://{address}").ask("schemas/ids/1", patience_s=30) == {"schema": "x"}
    assert len(asked) == 1
    broken.append(BadStatusLine("\x15"))
    with pytest.raises(StoreUnreachable, match="does not answer"):
        Registry(f"http://{address}").ask("schemas/ids/1")


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://x", "http://me:hunter2@a,http://b", "registry:8081", "me:hunter2@registry:8081"),
        *(
            "http://me:hunter2@a,http://me:hunter2@b",
            "http://me:hun/ter2@a",
            "http://me:hun#ter2@a",
        ),
        *("https://a/?token=hunter2", "http://:80", "http://a:b", "http://[a"),
    ],
)
def test_what_is_no_address_is_refused_without_its_password(url):
    with pytest.raises(InvalidRequest, match="expected one URL of http or https") as said:
        registry_of({"schema.registry.url": url})
    assert not any(part in str(said.value) for part in ("hun", "ter2"))
