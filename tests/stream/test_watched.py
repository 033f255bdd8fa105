"""A run looked at in a browser while it happens; what its page says is what its metrics say.

With JOINENGINE_WRITE_PICTURES=1 (`make pictures`) the runs are longer, and their pictures go to
docs/.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest
from playwright.sync_api import expect

from tests.browser import PHONE, WIDE, shown

pytestmark = pytest.mark.spark

WRITES = os.environ.get("JOINENGINE_WRITE_PICTURES") == "1"
#: The keys that are hot change while it runs.
RUN = "run eq5 --layout mnrt --zipf 1.3 --live".split()
RUN += (
    ["--shift-every", "320s"]
    if WRITES
    else "--scale 0.004 --interval-rows 3000 --shift-every 64s".split()
)
COMPARE = "compare eq5 --layouts hash,mnrt --zipf 1.2 --work-per-tuple 100us".split()
COMPARE += "--scale 0.01 --interval-rows 20000".split()
#: What a reader waits for at most, while the machine does other things too.
PATIENT_MS = 240_000
URL = r"http://127\.0\.0\.1:\d+/\?token=[\w.~-]+"
#: Plans that the page lists before it is asked for more.
AT_ONCE = 50
#: A README is loaded often.
MOST_BYTES = 300_000


def command(*arguments):
    return [sys.executable, "-m", "joinengine", *map(str, arguments)]


class Terminal:
    """A program in a terminal of its own: what it has said, and a key to press."""

    def __init__(self, arguments, folder):
        self.keys, inside = os.openpty()
        self.said, self.news = "", Event()
        enter = f"import os, sys; os.login_tty({inside}); os.execv(sys.executable, sys.argv[1:])"
        command = [sys.executable, "-c", enter, *arguments]
        self.program = subprocess.Popen(command, cwd=folder, pass_fds=[inside])
        os.close(inside)
        # A terminal that nobody reads from stops the program.
        Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            try:
                part = os.read(self.keys, 1 << 16)
            except OSError:  # so does the end of the program show
                part = b""
            self.said += part.decode(errors="replace")
            self.news.set()
            if not part:
                return

    def wait_for(self, pattern):
        """The match of a pattern in what the program says; it must not end before."""
        while not (found := re.search(pattern, self.said)):
            assert self.program.poll() is None, self.said
            self.news.wait(1.0)
            self.news.clear()
        return found

    def press(self, key):
        os.write(self.keys, key)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.program.kill()
        self.program.wait()
        os.close(self.keys)


@pytest.fixture(scope="module")
def watched(chromium, tmp_path_factory):
    """A run in a terminal, with a tab that was opened when its page was, and has seen its end."""
    folder = tmp_path_factory.mktemp("watched")
    files = ("--json", folder / "run.json", "--report", folder / "run.html")
    with (
        Terminal(command(*RUN, *files), folder) as terminal,
        shown(chromium, url := terminal.wait_for(URL).group()) as tab,
    ):
        terminal.wait_for("press a key")
        report = json.loads((folder / "run.json").read_text())
        yield SimpleNamespace(tab=tab, url=url, report=report, page=folder / "run.html")
        terminal.press(b"q")
        assert terminal.program.wait(60) == 0, terminal.said
        # What the tab has received stays there, and works without the server.
        last = report["batches"][-1]["batch"]
        expect(tab.locator("#state [data-field=batch]")).to_have_attribute("data-value", str(last))
        tab.get_by_role("slider").fill("2")
        expect(tab.locator("#state [data-field=batch]")).to_have_attribute("data-value", "2")


@contextmanager
def pages(watched, chromium):
    """The live tab, and the report of the same run."""
    with shown(chromium, watched.page) as frozen:
        yield watched.tab, frozen


def choose(tab, operator):
    """Show an operator of the chain; the page draws it in its next frame."""
    button = tab.get_by_role("group", name="operator").get_by_role("button").nth(operator)
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true", timeout=PATIENT_MS)


def told(tab, field):
    return tab.locator(f"#state [data-field={field}]").get_attribute("data-value")


def test_the_page_says_what_the_metrics_say(watched, chromium):
    batches, story = watched.report["batches"], watched.report["story"]
    last, entry = batches[-1], story["batches"][-1]
    with pages(watched, chromium) as (live, frozen):
        for tab in (live, frozen):
            choose(tab, 0)
            batch = tab.locator("#state [data-field=batch]")
            expect(batch).to_have_attribute("data-value", str(last["batch"]), timeout=PATIENT_MS)
            assert told(tab, "state_rows") == str(entry["joins"][0]["state_rows"])
            assert told(tab, "late_rows") == str(watched.report["late_rows"])
            tab.locator("[data-measure=received]").click()
            loads = "bars => bars.map(bar => Number(bar.dataset.value))"
            bars = tab.locator("#load rect[data-instance]").evaluate_all(loads)
            assert bars == watched.report["joins"][0]["received_by_batch"][-1]
        # The live page does not know yet how long Spark took to end its last trigger.
        rate = last["input_rows"] / last["elapsed_s"]
        assert float(told(frozen, "rows_per_s")) == pytest.approx(rate, rel=1e-4)


def test_every_plan_is_told(watched, chromium):
    with pages(watched, chromium) as tabs:
        for tab in tabs:
            last = len(watched.report["joins"]) - 1
            choose(tab, last)
            plans = [plan for plan in watched.report["story"]["plans"] if plan["join"] == last]
            assert plans
            newest = [plan["words"] for plan in reversed(plans)][:AT_ONCE]
            items = tab.locator("#plans li[data-batch]").all_inner_texts()
            for words, item in zip(newest, items, strict=True):
                assert words in item


def test_the_hot_key_has_its_name(watched, chromium):
    """The name that the report found in the state; the page has it from the tuples."""
    hot = watched.report["hot_key"]
    with pages(watched, chromium) as tabs:
        for tab in tabs:
            choose(tab, hot["join"])
            told_of = tab.locator("#plans li").filter(has_text=f"key {hot['key']} carried")
            expect(told_of.first).to_be_visible()


def test_a_tab_that_is_opened_late_has_all_batches(watched, chromium):
    with shown(chromium, watched.url) as tab:
        tab.get_by_role("slider").fill("0")
        expect(tab.locator("#state [data-field=batch]")).to_have_attribute("data-value", "0")


def picture(tab, name, folder, **options):
    """Take a picture of the tab, into docs/ if pictures are to be written."""
    path = (Path(__file__).parents[2] / "docs" if WRITES else folder) / name
    tab.screenshot(path=path, animations="disabled", **options)
    assert path.stat().st_size < MOST_BYTES


@pytest.mark.parametrize(
    ("name", "dark", "width"),
    [("light", False, WIDE[0]), ("dark", True, WIDE[0]), ("phone", False, PHONE[0])],
)
def test_pictures_of_a_run(watched, chromium, tmp_path, name, dark, width):
    """As far down as the hot keys."""
    with shown(chromium, watched.page, dark=dark, size=(width, 1_400)) as tab:
        choose(tab, 2)
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        picture(tab, f"page-{name}.png", tmp_path)


@pytest.mark.slow
def test_page_of_a_comparison(chromium, tmp_path):
    report = tmp_path / "compare.html"
    subprocess.run(command(*COMPARE, "--report", report), cwd=tmp_path, check=True)
    with shown(chromium, report, size=(1000, 860)) as tab:
        expect(tab.locator(".cmp-rank li")).to_have_count(2)
