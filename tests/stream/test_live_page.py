"""The page of a running query in a browser: batches come, the query ends, the server is gone."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest
from playwright.sync_api import expect

from joinengine.reporting import server as servers
from joinengine.reporting.page import page
from joinengine.reporting.server import PageServer, Place
from tests.browser import shown
from tests.unit.stories import STARTED, story

#: What a browser writes into its console if nobody answers.
REFUSED = "ERR_CONNECTION_REFUSED"
WHOLE = story(20, 8, ended=None)


class Growing:
    """The made-up story, as far as it has come: `n` batches of it."""

    def __init__(self, n):
        self.n, self.ended = n, None

    def add(self, record):
        self.n += 1
        return False

    def plans(self, first):
        return [plan for plan in WHOLE["plans"] if first <= plan["batch"] < self.n]

    def whole(self):
        batches = WHOLE["batches"][: self.n]
        return WHOLE | {"batches": batches, "plans": self.plans(0), "ended": self.ended}

    def newest(self):
        last = WHOLE["batches"][self.n - 1] if self.n else None
        return {"batch": last, "plans": self.plans(self.n - 1), "plans_left_out": 0}

    def end(self, how, words, at):
        self.ended = {"how": how, "words": words, "at": at}


@pytest.fixture
def serving():
    """Starts servers of a story of `n` batches, and closes them."""
    started = []

    def serve(n, place=None):
        server = PageServer(place or Place())
        server.serve(Growing(n), lambda: page({"mode": "live", "story": None}))
        started.append(server)
        return server

    yield serve
    for server in started:
        server.close()


def expect_batch(tab, batch):
    shown_now = tab.locator("#state [data-field=batch]")
    expect(shown_now).to_have_attribute("data-value", str(batch), timeout=30_000)


def test_batches_are_shown_as_they_come(chromium, serving):
    """A page that is opened before the first batch waits for it."""
    server = serving(0)
    with shown(chromium, server.url) as tab:
        expect(tab.get_by_text("Waiting for the first batch.")).to_be_visible()
        for batch in range(12):
            server.put(None)
            expect_batch(tab, batch)
        expect(tab.locator("#load rect[data-instance]")).to_have_count(8)
        told = [plan["batch"] for plan in WHOLE["plans"] if plan["batch"] < 12 and not plan["join"]]
        items = tab.locator("#plans li[data-batch]")
        assert told
        assert items.evaluate_all("all => all.map(li => Number(li.dataset.batch))") == told[::-1]


def test_a_query_that_ended_before_its_first_batch_is_not_waited_for(chromium, serving):
    server = serving(0)
    with shown(chromium, server.url) as tab:
        server.end("stopped", "the query was stopped; its next start goes on", STARTED)
        banner = tab.locator("[data-field=banner]")
        told = "The query was stopped at 14:40:00 UTC: its next start goes on"
        expect(banner).to_have_text(told)
        expect(tab.get_by_text("No batch was computed.")).to_be_visible()


def test_pausing_and_going_back_keep_the_moment_and_all_that_comes(chromium, serving):
    server = serving(3)
    with shown(chromium, server.url) as tab:
        expect_batch(tab, 2)
        tab.keyboard.press("Space")
        for _ in range(4):
            server.put(None)
        status = tab.locator("[data-field=status]")
        expect(status).to_have_text("paused, 4 newer batches")
        expect_batch(tab, 2)
        tab.keyboard.press("Space")
        expect_batch(tab, 6)
        tab.get_by_role("slider").fill("1")
        expect_batch(tab, 1)
        server.put(None)
        expect(tab.get_by_role("slider")).to_have_attribute("max", "7")
        expect_batch(tab, 1)
        tab.get_by_role("button", name="back to now").click()
        expect_batch(tab, 7)


def test_a_tab_knows_how_the_query_ended_and_needs_no_server(chromium, serving):
    """Nor does it ask for one any more: that would be a complaint of the browser."""
    server = serving(5)
    with shown(chromium, server.url) as tab:
        expect_batch(tab, 4)
        server.end("failed", "join 0: <b>run 17</b> is lost", STARTED + 60)
        banner = tab.locator("[data-field=banner]")
        expect(banner).to_contain_text("join 0: <b>run 17</b> is lost")
        server.close()
        tab.get_by_role("slider").fill("2")
        expect_batch(tab, 2)
        expect(tab.get_by_role("button", name="play")).to_be_visible()
        tab.get_by_role("button", name="to the end").click()
        expect_batch(tab, 4)
        tab.wait_for_timeout(1_500)  # a connection that was lost is tried again within a second
        expect(banner).to_contain_text("has failed")


def test_a_server_that_is_gone_is_missed_and_taken_back(chromium, serving):
    server = serving(5)
    with shown(chromium, server.url, but=REFUSED) as tab:
        expect_batch(tab, 4)
        server.close()
        missed = tab.locator("[data-field=banner]")
        expect(missed).to_contain_text(f"no answer from 127.0.0.1:{server.port}", timeout=30_000)
        expect_batch(tab, 4)
        serving(8, Place(server.port, token=server.token))
        expect_batch(tab, 7)
        expect(missed).to_be_hidden()


def test_a_server_that_hangs_is_missed_and_taken_back(chromium, serving, monkeypatch):
    """The connection stands, and nothing comes: the process is stopped, or a tunnel gone."""
    monkeypatch.setattr(servers, "_HEARTBEAT_S", 1e6)
    server, again, answer = serving(5), Event(), servers._Handler._events

    def hang(handler):
        again.wait(60)
        answer(handler)

    with shown(chromium, server.url) as tab:
        expect_batch(tab, 4)
        with monkeypatch.context() as hung:
            hung.setattr(servers._Handler, "_events", hang)
            tab.clock.set_fixed_time(datetime.now(UTC) + timedelta(minutes=1))
            missed = tab.locator("[data-field=banner]")
            expect(missed).to_contain_text("no answer from 127.0.0.1", timeout=30_000)
        server.put(None)
        again.set()
        expect_batch(tab, 5)
        expect(missed).to_be_hidden()


def test_heartbeats_tell_that_the_server_is_there(chromium, serving, monkeypatch):
    monkeypatch.setattr(servers, "_HEARTBEAT_S", 0.1)
    with shown(chromium, serving(5).url) as tab:
        expect_batch(tab, 4)
        asked, beats = list[str](), list[str]()
        tab.on("request", lambda request: asked.append(request.url))
        network = tab.context.new_cdp_session(tab)
        network.on("Network.eventSourceMessageReceived", lambda e: beats.append(e["eventName"]))
        network.send("Network.enable")
        now = datetime.now(UTC)
        for later in (20, 40):  # neither step is as long as silence may last, both together are
            tab.clock.set_fixed_time(now + timedelta(seconds=later))
            enough, end_s = len(beats) + 3, time.monotonic() + 30
            while len(beats) < enough and time.monotonic() < end_s:
                tab.wait_for_timeout(50)
            tab.wait_for_timeout(1_100)  # a look at the clock
        assert set(beats) == {"alive"}
        assert not asked
