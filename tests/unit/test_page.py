"""The page of a run as a text: what is in it, what may run in it, and how large it gets.

What a browser makes of it is looked at in `tests/stream/test_page.py`.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from joinengine.reporting.page import PACKED_FROM, SCRIPTS, page
from tests.unit.stories import report, story

HOSTILE = "</script><img src=x onerror=alert(1)><!-- & \u2028 {{script}} '\""
#: The largest page that can be sent around.
LARGEST = 10_000_000
FOLDER = resources.files("joinengine.reporting") / "page"


class Parts(HTMLParser):
    """The tags of a page, and the text in each kind of them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.blocks, self._inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style", "title"):
            self.blocks.append([tag, dict(attrs), ""])
            self._inside = self.blocks[-1]

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside is not None:
            self._inside[2] += data

    def texts(self, wanted, kind=None):
        return [
            text for tag, attrs, text in self.blocks if tag == wanted and attrs.get("type") == kind
        ]

    def content(self):
        """The data of the page, as its script reads it."""
        ((attrs, text),) = [(attrs, text) for _, attrs, text in self.blocks if "id" in attrs]
        if attrs.get("data-encoding") == "gzip":
            text = gzip.decompress(base64.b64decode(text)).decode()
        return json.loads(text)

    def policy(self):
        (found,) = (a["content"] for _, a in self.tags if a.get("http-equiv"))
        return dict(part.split(" ", 1) for part in found.split("; "))


def report_page(**asked):
    return page({"mode": "report", "reports": [report(12, 8, **asked)]})


@pytest.mark.parametrize(
    "content", [{"mode": "live", "story": None}, {"mode": "report", "reports": []}]
)
def test_nothing_comes_from_elsewhere(content):
    text = page(content)
    addresses = set(re.findall(r"[a-z]+://[^\s\"'`]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nobody fetches
    assert not re.search(r"@import|url\(|\bimport\(|src=|XMLHttpRequest|fetch\(", text)
    links = [attrs["href"] for _, attrs in Parts(text).tags if "href" in attrs]
    assert links == ["data:,"]


@pytest.mark.parametrize("mode", ["live", "report"])
def test_the_policy_names_the_one_script_and_the_one_style(mode):
    parts = Parts(page({"mode": mode, "reports": [report(3, 4)], "story": None}))
    policy = parts.policy()
    for directive, kind in (("script-src", "script"), ("style-src", "style")):
        (text,) = parts.texts(kind)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == ("'self'" if mode == "live" else "'none'")
    assert ("meta", {"name": "referrer", "content": "no-referrer"}) in parts.tags
    # A policy by hashes forbids both.
    assert not any(name == "style" or name.startswith("on") for _, a in parts.tags for name in a)


def test_a_key_is_never_markup():
    asked = {"mode": "report", "reports": [{**report(12, 8, key=HOSTILE), "query": HOSTILE}]}
    hostile, plain = Parts(page(asked)), Parts(report_page())
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert hostile.texts("script") == plain.texts("script")
    content = hostile.content()
    hot = content["reports"][0]["story"]["batches"][3]["joins"][0]["hot"]
    assert hot[0]["key"] == HOSTILE
    assert hostile.texts("title") == [f"{HOSTILE} · joinengine"]


@pytest.mark.parametrize("batches", [12, 1_300])
def test_the_page_holds_the_story_and_not_the_same_figures_twice(batches):
    given = report(batches, 8)
    parts = Parts(page({"mode": "report", "reports": [given], "verdict": ["hash is slower"]}))
    content = parts.content()
    (ours,) = content["reports"]
    assert ours["story"] == given["story"]
    assert content["verdict"] == ["hash is slower"]
    assert "batches" not in ours
    assert all("received_by_batch" not in join for join in ours["joins"])
    (block,) = (attrs for tag, attrs, _ in parts.blocks if "id" in attrs)
    assert ("data-encoding" in block) == (len(json.dumps(given["story"])) > PACKED_FROM)


def test_a_report_without_a_story_keeps_all_that_it_has():
    old = {"query": "eq5", "joins": [{"received_by_batch": [[1, 2]]}], "batches": [{"batch": 0}]}
    assert Parts(page({"mode": "report", "reports": [old]})).content()["reports"] == [old]


def test_json_has_no_infinite_numbers():
    given = {"load_skew": {"busy": {"run": float("nan")}}, "rows": [float("inf"), 1.5, None]}
    (ours,) = Parts(page({"mode": "report", "reports": [given]})).content()["reports"]
    assert ours == {"load_skew": {"busy": {"run": None}}, "rows": [None, 1.5, None]}


def test_a_packed_page_holds_no_time_of_its_making():
    """Equal reports make equal pages."""
    text = page({"mode": "report", "reports": [report(1_300, 8)]})
    ((attrs, packed),) = [(attrs, part) for _, attrs, part in Parts(text).blocks if "id" in attrs]
    assert attrs["data-encoding"] == "gzip"
    assert base64.b64decode(packed)[4:8] == bytes(4)


@pytest.mark.parametrize(
    ("asked", "runs"),
    [
        ({"batches": 10_000, "instances": 8, "merged": 4}, 1),
        ({"batches": 600, "instances": 1_000}, 1),
        ({"batches": 40, "instances": 8, "hot": 10}, 114),
    ],
    ids=["many batches", "many instances", "many runs"],
)
def test_large_runs_make_a_page_that_can_be_sent(asked, runs):
    text = page({"mode": "report", "reports": [report(**asked)] * runs})
    assert len(text.encode()) < LARGEST
    assert len(Parts(text).content()["reports"]) == runs


def test_a_live_page_begins_with_the_story_that_is_there():
    told = story(3, 4, ended=None)
    content = Parts(page({"mode": "live", "story": told})).content()
    assert (content["mode"], content["story"]) == ("live", told)
    assert content["version"]


def test_all_scripts_of_the_folder_run():
    files = {file.name: file.read_text() for file in FOLDER.iterdir()}
    assert set(SCRIPTS) == {name for name in files if name.endswith(".js")}
    text = page({"mode": "live", "story": None})
    assert all(body.strip() in text for name, body in files.items() if name != "page.html")
    assert {
        name: len(body.splitlines()) for name, body in files.items() if body.count("\n") > 400
    } == {}
