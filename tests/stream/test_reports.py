"""Pages of finished runs, as the command line makes them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from joinengine.lab.cli import cli
from joinengine.lab.commands import sessions
from tests.stream.cases import called, no_session

pytestmark = pytest.mark.spark


def data_of(page):
    """What a page holds, which is small enough not to be packed."""
    (text,) = re.findall(
        r'<script id="content" type="application/json">(.*?)</script>', page.read_text()
    )
    return json.loads(text)


@pytest.fixture(scope="module")
def compared(joinengine, tmp_path_factory):
    """A comparison in a folder, and what the command printed."""
    folder = tmp_path_factory.mktemp("compared")
    done = joinengine(
        *("compare", "eq5", "--layouts", "hash,mnrt", "--zipf", "1.3", "--scale", 0.001),
        *("--shift-every", "320s", "--instances", 3, "--work-per-tuple", "30us"),
        *("--json", folder / "c.json", "--report", folder / "pages" / "c.html"),
    )
    return folder, done


def test_a_comparison_writes_its_page_and_says_so_last(compared):
    folder, done = compared
    page = folder / "pages" / "c.html"
    assert done.stdout.splitlines()[-1] == f"report: {page}"
    saved, shown = json.loads((folder / "c.json").read_text()), data_of(page)
    assert saved["format"] == 2
    assert [run["layout"] for run in shown["reports"]] == ["hash", "mnrt"]
    for run, told in zip(saved["runs"], shown["reports"], strict=True):
        assert told["story"] == run["story"]
        assert told["rows_per_s"] == run["rows_per_s"]
    assert shown["verdict"] == saved["verdict"]
    assert saved["verdict"]
    assert all(sentence in done.stdout for sentence in saved["verdict"])


def test_the_page_says_who_made_it(compared):
    folder, _ = compared
    made_by = data_of(folder / "pages" / "c.html")["reports"][0]["made_by"]
    assert made_by["command"].startswith("joinengine compare eq5 --layouts hash,mnrt --zipf 1.3")
    assert set(made_by["versions"]) == {"joinengine", "pyspark", "numpy", "pyarrow", "duckdb"}
    assert all(re.match(r"\d+\.\d+", version) for version in made_by["versions"].values())


def test_the_story_of_a_run_is_that_of_its_batches(compared):
    folder, _ = compared
    run = json.loads((folder / "c.json").read_text())["runs"][1]
    told = run["story"]
    assert told["query"] == "eq5"
    assert told["ended"]["how"] == "finished"
    # Earlier operators have the names that the page gives them, and tables their short ones.
    assert [one["inputs"][0] for one in told["operators"][1:]] == ["join 0", "join 1"]
    assert [entry["first"] for entry in told["batches"]] == [b["batch"] for b in run["batches"]]
    for name in ("input_rows", "output_rows", "elapsed_s"):
        assert [entry[name] for entry in told["batches"]] == pytest.approx(
            [batch[name] for batch in run["batches"]], abs=1e-5
        )
    for number, join in enumerate(run["joins"]):
        received = [entry["joins"][number]["received"] for entry in told["batches"]]
        assert received == join["received_by_batch"]


def test_a_page_is_made_of_the_json(home, compared):
    folder, _ = compared
    done = called(home, no_session, "report", folder / "c.json")
    assert done.stdout == f"{folder / 'c.html'}\n"
    assert (folder / "c.html").read_text() == (folder / "pages" / "c.html").read_text()


def test_ctrl_c_ends_a_comparison_with_the_runs_that_have_ended(compared, tmp_path, monkeypatch):
    """Of two runs the first ends, and the second is interrupted."""
    first = json.loads((compared[0] / "c.json").read_text())["runs"][0]
    runs = iter([first])

    def run(*args, **kwargs):
        for report in runs:
            return report
        raise KeyboardInterrupt

    monkeypatch.setattr(sessions, "started", lambda master: nullcontext())
    monkeypatch.setattr(sessions, "warm_up", lambda *args: None)
    monkeypatch.setattr(sessions, "run", run)
    called = ["compare", "eq5", "--layouts", "hash,mnrt", "--json", str(tmp_path / "c.json")]
    done = CliRunner().invoke(cli, [*called, "--report", str(tmp_path / "c.html")])
    assert done.exit_code == 130, done.output
    assert json.loads((tmp_path / "c.json").read_text())["runs"] == [first]
    assert [run["layout"] for run in data_of(tmp_path / "c.html")["reports"]] == ["hash"]
    assert (tmp_path / "c.png").stat().st_size
    done = CliRunner().invoke(cli, called)  # before the first has ended
    assert done.exit_code == 130, done.output
    assert not done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "{0}/gone.json"), "joinengine: report: {0}/gone.json does not exist; give"),
        (("report", "{0}/cut.json"), "joinengine: report: {0}/cut.json is cut off at line 2,"),
        (("report", "{0}/c.json", "-o", "{0}/c.json"), "joinengine: -o: {0}/c.json is the report"),
        (
            ("report", "{0}/c.json", "-o", "{0}/pages"),
            "joinengine: -o: expected a file, found the folder {0}/pages",
        ),
        (
            ("report", "{0}/c.json", "-o", "{0}/c.json/x.html"),
            "joinengine: -o: {0}/c.json is a file; give a folder",
        ),
        (
            ("run", "eq5", "--report", "{0}"),
            "joinengine: --report: expected a file, found the folder {0}",
        ),
        (
            ("compare", "eq5", "--report", "{0}/c.json/x.html"),
            "joinengine: --report: {0}/c.json is a file; give a folder",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line_before_spark(home, compared, arguments, message):
    folder, _ = compared
    (folder / "cut.json").write_text('{\n "format": 2,')
    done = called(home, no_session, *(one.format(folder) for one in arguments), code=2)
    assert done.stderr.startswith(message.format(folder))
    assert done.stderr.count("\n") == 1


def read_story(url):
    """What a tab gets first."""
    with urlopen(url.replace("/?", "/events?"), timeout=60) as tab:
        while tab.readline() != b"event: story\n":
            pass
        return json.loads(tab.readline().partition(b": ")[2])


SHIFTED = (
    *("run", "eq5", "--layout", "mnrt", "--zipf", "1.3", "--shift-every", "320s"),
    *("--scale", "0.001", "--instances", "3"),
)


def test_a_run_is_watched_and_leaves_its_page_beside_the_json(joinengine, tmp_path):
    done = joinengine(*SHIFTED, "--json", tmp_path / "run.json", "--live")
    assert done.stdout.splitlines()[-1] == f"report: {tmp_path / 'run.html'}"
    (url,) = re.findall(r"^page: (http://127\.0\.0\.1:\d+/\?token=\S+)$", done.stderr, re.M)
    assert "press a key" not in done.stderr  # nobody sits there
    told = json.loads((tmp_path / "run.json").read_text())["story"]
    assert data_of(tmp_path / "run.html")["reports"][0]["story"] == told
    live = read_story(url)
    assert live["ended"]["how"] == told["ended"]["how"] == "finished"
    for name in ("query", "operators", "plans"):
        assert live[name] == told[name]
    for seen, kept in zip(live["batches"], told["batches"], strict=True):
        assert seen["input_rows"] == kept["input_rows"]
        assert seen["joins"] == kept["joins"]
    assert any(entry["joins"][2]["hot"] for entry in told["batches"])


@pytest.mark.slow
def test_on_a_terminal_a_watched_run_waits_for_a_key(home, tmp_path):
    other, own = os.openpty()
    program = (
        f"import os, sys; os.login_tty({own}); sys.argv[0] = 'joinengine'\n"
        "from joinengine.lab.cli import main; main()"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program, *SHIFTED, "--live"],
        pass_fds=[own],
        cwd=tmp_path,
        env=os.environ | {"JOINENGINE_HOME": str(home), "TERM": "dumb"},
    )
    os.close(own)  # so that reading ends with the program
    try:
        said = ""
        while "press a key to end" not in said:
            said += os.read(other, 10_000).decode()
        assert "report: eq5.html" in said.split("press a key")[0]
        page = re.search(r"page: (http\S+); press a key to end", said)[1]
        assert read_story(page)["ended"]["how"] == "finished"
        assert running.poll() is None
        os.write(other, b"x")
        assert running.wait(240) == 0
    finally:
        running.kill()
        running.wait()
        os.close(other)
    assert data_of(tmp_path / "eq5.html")["reports"][0]["query"] == "eq5"


@pytest.mark.parametrize("port", ["65536", "eq5", "1.5"])
def test_a_port_that_is_none_is_refused(home, port):
    done = called(home, no_session, "run", "--zipf", "1.3", "--live", port, "eq5", code=2)
    assert f"expected a port from 0 to 65535, found '{port}'" in done.stderr


def test_where_the_page_of_a_watched_run_goes_is_checked_before_spark(home, tmp_path):
    (tmp_path / "run.html").mkdir()
    json_path = tmp_path / "run.json"
    done = called(home, no_session, "run", "eq5", "--live", "--json", json_path, code=2)
    assert done.stderr == (
        f"joinengine: --report: expected a file, found the folder {tmp_path / 'run.html'}\n"
    )


@pytest.mark.parametrize("kind", ["value", "hash"])
def test_keys_are_told_by_value_unless_hashes_are_asked_for(joinengine, tmp_path, kind):
    """The window empties the state, so the records alone know the value."""
    page = tmp_path / "page.html"
    done = joinengine(
        *("run", "eq5", "--layout", "mnrt", "--zipf", "1.5", "--scale", 0.001, "--instances", 3),
        *("--window", "10s", "--json", tmp_path / "run.json", "--show-keys", kind),
        *("--report", page),
    )
    assert done.stdout.splitlines()[-1] == f"report: {page}"
    (shown,) = data_of(page)["reports"]
    assert (shown["query"], shown["layout"], shown["zipf"]) == ("eq5", "mnrt", 1.5)
    assert shown["story"]["batches"]
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["hot_key"] is not None
    keys = [
        key["key"]
        for entry in found["story"]["batches"]
        for join in entry["joins"]
        for key in join["hot"]
    ]
    assert keys
    for key in (found["hot_key"]["key"], *keys[:1]):
        assert (key is None) == (kind == "hash")
    assert kind == "value" or not any(keys)
