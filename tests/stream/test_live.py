"""The page of a real query: what its tabs are told, how it ends, and where it is opened."""

from __future__ import annotations

import http.client
import json
import logging
import re
import threading
import time
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from joinengine import StreamJoin, equi, parquet_stream, within
from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.spark.query import live_page as module
from joinengine.spark.query import starting, waiting

pytestmark = pytest.mark.spark

TOKEN = "a-token_of.this~test"
#: Far longer than anything here takes, in seconds: a test that waits for it fails.
PATIENCE_S = 120


class Tab:
    """An open tab, which keeps what it is told."""

    def __init__(self, url):
        place = urlsplit(url)
        self.connection = http.client.HTTPConnection(place.netloc, timeout=PATIENCE_S)
        self.connection.request("GET", f"/events?{place.query}")
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200
        self.events = list[tuple[str, dict]]()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        event = ""
        for line in self.answer:
            name, _, value = line.decode().strip().partition(": ")
            if name == "event":
                event = value
            elif name == "data":
                self.events.append((event, json.loads(value)))

    def wait_for(self, event):
        """What came with the first event of this name."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for name, value in list(self.events):
                if name == event:
                    return value
            time.sleep(0.01)
        pytest.fail(f"no {event} came, only {[name for name, _ in self.events]}")

    def entries(self):
        """The entries of the batches, as a page has them after all events."""
        found = {}
        for event, value in self.events:
            if event == "story":
                found = {entry["first"]: entry for entry in value["batches"]}
            elif event == "batch":
                found[value["batch"]["first"]] = value["batch"]
        return list(found.values())


def asked(url, bearer=None):
    headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
    return urlopen(Request(url, headers=headers), timeout=PATIENCE_S)


@pytest.fixture
def joined(spark, folders):
    left = parquet_stream(spark, folders.orders, rows_per_interval=40)
    right = parquet_stream(spark, folders.items, rows_per_interval=120)
    window = within("o_ts", "i_ts", lower="-5 s", upper="20 s", delay="10 s")
    return StreamJoin(left, right, on=equi("id", "order_id"), within=window, instances=4)


@pytest.fixture
def started(joined, tmp_path):
    """Starts the join with options of the writer; stops what was started, and closes its page."""
    queries = []

    def start(trigger=None, on_batch=lambda frame, batch: None, **options):
        writer = joined.writeStream.foreachBatch(on_batch).options(**options)
        writer = writer.trigger(**(trigger or {"availableNow": True})).queryName("<b>live</b>")
        queries.append(writer.option("checkpointLocation", tmp_path / "checkpoint").start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()
        query.live().close()


def test_tabs_are_told_what_the_metrics_say(started):
    opened = threading.Event()

    def on_batch(frame, batch):
        if batch == 2:
            opened.wait(PATIENCE_S)

    query = started(on_batch=on_batch)
    page = query.live(token=TOKEN)
    assert page.url.endswith(f"/?token={TOKEN}")
    assert repr(page) == f"<Live {page.url}>"
    assert page._repr_html_().startswith(f'<a href="{page.url}"')
    assert "&lt;b&gt;live" in page._repr_html_()
    early = Tab(page.url)
    early.wait_for("story")
    opened.set()
    query.awaitTermination()
    ended = early.wait_for("ended")
    assert ended["how"] == "finished"
    assert ended["words"] == "the query has read all data that existed when it started"
    rows = query.metrics().to_pylist()
    late = Tab(page.url)
    story = late.wait_for("story")
    assert story["ended"] == ended
    assert (story["query"], story["run_id"]) == ("<b>live</b>", query.runId)
    assert {event for event, _ in early.events} == {"story", "batch", "ended"}
    for entries in (early.entries(), late.entries()):
        assert [entry["first"] for entry in entries] == [0, 1, 2, 3]
        for entry, row in zip(entries, rows, strict=True):
            for name in ("input_rows", "output_rows", "late_rows", "null_rows"):
                assert entry[name] == row[name]
            assert entry["joins"][0]["state_rows"] == row["state_rows"] > 0
    answer = asked(page.url)
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "<title>" in answer.read().decode()
    with pytest.raises(HTTPError, match="403"):
        asked(page.url + "x")
    figures = asked(page.url.replace("/?token=", "/metrics?"), TOKEN).read().decode()
    read = sum(row["input_rows"] for row in rows)
    assert re.search(rf'^joinengine_input_rows_total{{query="<b>live</b>"}} {read}', figures, re.M)
    page.close()
    early.thread.join(PATIENCE_S)
    assert not early.thread.is_alive()
    assert repr(page) == "<Live closed>"


def test_one_page_for_a_query_until_it_is_closed(started):
    query = started(trigger={"processingTime": "100 milliseconds"})
    page = query.live(token=TOKEN)
    port = urlsplit(page.url).port
    assert query.live() is query.live(port=port) is query.live(token=TOKEN) is page
    for other in ({"port": port + 1}, {"host": "0.0.0.0"}, {"token": TOKEN + "x"}):
        with pytest.raises(
            InvalidRequest, match=r"live: the query already has its page at http.*close it"
        ):
            query.live(**other)
    for wrong in ({"port": "x"}, {"host": ""}, {"token": "short"}):
        with pytest.raises(InvalidRequest, match=r"live: (port|host|token): "):
            query.live(**wrong)
    tab = Tab(page.url)
    tab.wait_for("story")
    page.close()
    page.close()
    ended = tab.wait_for("ended")
    assert ended["how"] == "closed"
    assert ended["words"].startswith("this tab keeps")
    assert query.isActive
    again = query.live()
    assert again is not page
    tab = Tab(again.url)
    assert tab.wait_for("story")["ended"] is None
    query.stop()
    ended = tab.wait_for("ended")
    assert ended["how"] == "stopped"
    assert ended["words"] == "the query was stopped; its next start goes on where it stopped"


def test_a_query_that_fails_says_so_in_the_engines_sentence(started):
    def on_batch(frame, batch):
        if batch == 1:
            raise InvalidRequest("the table is full: <b>empty it</b>")

    query = started(on_batch=on_batch, livePort="0")
    tab = Tab(query.live().url)
    with pytest.raises(JoinEngineError, match="the table is full: <b>empty it</b>"):
        query.awaitTermination()
    ended = tab.wait_for("ended")
    assert (ended["how"], ended["words"]) == ("failed", str(query.exception()))


def test_options_and_environment_open_the_page_with_the_query(started, monkeypatch, caplog, capfd):
    monkeypatch.setenv("JOINENGINE_LIVE_PORT", "99")
    monkeypatch.setenv("JOINENGINE_LIVE_TOKEN", TOKEN)
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
    with caplog.at_level(logging.INFO, "joinengine"):
        query = started(LIVEport=0, liveHost="localhost")
    url = query.live().url
    assert re.fullmatch(rf"http://localhost:\d+/\?token={TOKEN}", url)
    assert f"the page is at {url.partition('?')[0]} " in caplog.text
    assert TOKEN not in caplog.text
    assert f"joinengine: page: {url}\n" in capfd.readouterr().err


def test_a_fixed_port_is_that_of_the_query_that_runs(started):
    """The page of one that has ended makes room; that of one that runs does not."""
    first = started(livePort=0, liveToken=TOKEN)
    port = first.live().port
    first.awaitTermination()
    assert "joinengine_up{" in asked(f"http://127.0.0.1:{port}/metrics", TOKEN).read().decode()
    second = started({"processingTime": "1 second"}, livePort=port, liveToken=TOKEN)
    assert (second.live().port, first.live().closed) == (port, False)
    assert first.live().port != port, "it has opened another page, as it was asked for it"
    (up,) = re.findall(
        r"^joinengine_up\{.*\} (\S+)$",
        asked(f"http://127.0.0.1:{port}/metrics", TOKEN).read().decode(),
        re.MULTILINE,
    )
    assert float(up) == 1
    other = module.page_at(module.Place(port))
    assert other.port != port
    other.close()


def test_a_port_in_the_environment_is_enough(started, monkeypatch, capfd):
    monkeypatch.setenv("JOINENGINE_LIVE_PORT", "0")
    query = started()
    assert query._pages.live is not None
    assert "page" not in capfd.readouterr().err  # no terminal


def test_without_a_port_no_page_comes_with_the_query(started, monkeypatch):
    monkeypatch.setenv("JOINENGINE_LIVE_PORT", "")
    query = started(liveToken=TOKEN)
    assert query._pages.live is None
    assert query.live().url.endswith(f"?token={TOKEN}")


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ({"livePort": "70000"}, {}, "livePort: '70000'"),
        ({"liveToken": "short"}, {}, "liveToken: this is not a token"),
        ({"livehost": "a b"}, {}, "liveHost: 'a b'"),
        ({"livePort": 0, "liveHost": "192.0.2.1"}, {}, "cannot listen on host '192.0.2.1'"),
        ({}, {"JOINENGINE_LIVE_PORT": "x"}, "JOINENGINE_LIVE_PORT: 'x'"),
        ({}, {"JOINENGINE_LIVE_TOKEN": "short"}, "JOINENGINE_LIVE_TOKEN: this is not a token"),
    ],
)
def test_a_page_that_cannot_be_is_refused_before_anything_is_written(
    options, environment, message, started, monkeypatch, tmp_path
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=message):
        started(**options)
    assert not (tmp_path / "checkpoint").exists()


def test_a_start_that_fails_leaves_no_page(started, monkeypatch):
    opened = []

    class Server(starting.PageServer):
        def __init__(self, place):
            super().__init__(place)
            opened.append(self)

    monkeypatch.setattr(starting, "page_at", Server)
    monkeypatch.setattr(starting, "Running", lambda *asked: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        started(livePort=0)
    (server,) = opened
    with pytest.raises(URLError, match="refused"):
        asked(server.url)


def test_a_query_whose_page_cannot_be_announced_does_not_run_on(started, monkeypatch):
    ran = []
    monkeypatch.setattr(starting, "announce", lambda live: 1 / 0)
    monkeypatch.setattr(starting, "note", lambda location, query: ran.append(query))
    with pytest.raises(ZeroDivisionError):
        started({"processingTime": "1 second"}, livePort=0)
    assert not ran[0].isActive


def test_a_listener_that_stops_its_query_does_not_wait_for_the_page(started):
    stopped_s, go_on = [], threading.Event()

    def stops(progress):
        begun_s = time.monotonic()
        query.stop()
        stopped_s.append(time.monotonic() - begun_s)

    query = started(on_batch=lambda frame, batch: go_on.wait(PATIENCE_S), livePort=0)
    query.add_listener(stops)
    go_on.set()
    query.awaitTermination()
    assert stopped_s[0] < module._SETTLE_S


def test_a_writer_does_not_show_its_token(joined):
    writer = joined.writeStream.format("noop").option("livetoken", TOKEN).option("livePort", 0)
    assert TOKEN not in repr(writer)
    assert "livePort='0'" in repr(writer)


def test_a_pipe_is_not_waited_for(started, monkeypatch, capfd):
    said = []
    monkeypatch.setattr("joinengine.spark.query.live_page.wait_for_key", said.append)
    query = started()
    page = query.live()
    assert query.live(wait=True) is page
    query.awaitTermination()
    query.awaitTermination()
    assert said == [f"page: {page.url}; press a key to end"]
    assert not waiting.wait_for_key("press")
    assert "press" not in capfd.readouterr().err
