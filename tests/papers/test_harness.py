"""`make papers`: what is made anew, what a run leaves behind, and the page."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.papers import __main__ as command
from benchmarks.papers import page, running
from benchmarks.papers.figure import PAPERS, Figure, Made, Panel
from benchmarks.papers.finding import Finding

MOST_MINUTES = 90


def figure(name="000-8", *findings, panels=(), minutes=1.0):
    return Figure(name, f"Title of {name}", "10 keys", minutes, lambda show: Made(panels, findings))


def test_all_figures_fit_into_ninety_minutes():
    minutes = [one.minutes for one in running.figures()]
    assert len(minutes) > 5
    assert sum(minutes) <= MOST_MINUTES


def test_a_figure_is_called_as_its_module():
    found = {one.name: module for one, module in running.figures().items()}
    assert len(found) == len(running.figures())
    for name, module in found.items():
        paper, _, rest = name.partition("-")
        assert paper in PAPERS
        if ".figures." in module:
            assert module.endswith(f".p{paper}_{rest if not rest.isdigit() else f'{int(rest):02}'}")


def test_figures_come_by_number_then_tables_and_text():
    names = ["001-table2", "000-text", "000-10", "001-4", "000-9"]
    assert sorted(names, key=running.order_of) == [
        *("000-9", "000-10", "000-text"),
        *("001-4", "001-table2"),
    ]


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A package: `a` imports `b` within `deep`, and nothing imports `c`."""
    folder = tmp_path / "toy"
    (folder / "deep").mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "deep/__init__": "",
        "a": "import json\nfrom toy.deep import b",
        "deep/b": "X = 1",
        "c": "Y = 1",
    }.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(running, "OURS", ("toy",))
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
        monkeypatch.delitem(sys.modules, name)  # of the test before
    running.source_of.cache_clear()
    running.imports_of.cache_clear()
    return folder


@pytest.mark.parametrize(
    ("changed", "is_anew"), [("a.py", True), ("deep/b.py", True), ("c.py", False)]
)
def test_a_figure_is_made_anew_if_the_code_it_reaches_has_changed(toy, tmp_path, changed, is_anew):
    one, out = figure(), tmp_path / "out"
    assert not running.is_made(out, one, "toy.a")
    running.make(out, one, "toy.a", print)
    assert running.is_made(out, one, "toy.a")
    (toy / changed).write_text((toy / changed).read_text() + "\nZ = 2")
    assert running.is_made(out, one, "toy.a") != is_anew


def test_a_figure_leaves_picture_csv_and_report(toy, tmp_path):
    curve = Panel(
        "a",
        "keys",
        "ms",
        {"Mixed": (range(1, 3), np.array([0.5, 0.25])), "Readj": ([np.int64(2)], [4])},
        spans={"Mixed": ([0.4, 0.2], [0.6, 0.3])},
    )
    bars = Panel("b", "method", "tuples", {"": (["PKG", "KG"], [3, 4])})
    finding = Finding("figure 8a", "faster", "as fast", holds=False, reading="no reason")
    one = figure("000-8", finding, panels=(curve, bars))
    running.make(tmp_path, one, "toy.a", print)
    folder = tmp_path / "000-8"
    assert {path.name for path in folder.iterdir()} == {
        *("picture.png", "panel-a.csv", "panel-b.csv", "figure.json")
    }
    with (folder / "panel-a.csv").open() as file:
        assert list(csv.reader(file)) == [
            ["series", "keys", "ms", "least", "greatest"],
            ["Mixed", "1", "0.5", "0.4", "0.6"],
            ["Mixed", "2", "0.25", "0.2", "0.3"],
            ["Readj", "2", "4", "", ""],
        ]
    report = json.loads((folder / "figure.json").read_text())
    assert page.Reported(one, report).findings == [finding]
    assert [one["series"] for one in report["panels"]] == [
        {"Mixed": [[1, 2], [0.5, 0.25]], "Readj": [[2], [4]]},
        {"": [["PKG", "KG"], [3, 4]]},
    ]


def test_the_page_lists_each_statement_once_by_its_verdict(tmp_path):
    findings = (
        Finding("figure 8a", "first", "1", holds=True),
        Finding("figure 8b", "later", "2", holds=False, reading="since it is smaller"),
        Finding("figure 8b", "third", "3", holds=False),
        Finding("figure 8b", "fourth", "4", holds=None, reading="no cluster", timed=True),
    )
    one = figure("000-8", *findings)
    report = {"findings": [vars(x) for x in findings], "panels": [], "seconds": 3}
    text = page.text([page.Reported(one, report)])
    lists = text[: text.index("## 000: ")].split("\n## ")[-3:]
    assert "[000, figure 8a](#figure-000-8): first." in lists[0]
    assert "later. *Why:* since it is smaller." in lists[1]
    assert f"third. *Why:* {page.NO_REASON}." in lists[1]
    assert "fourth. *Why:* no cluster." in lists[2]
    assert [text.count(word) for word in ("first", "later", "third", "fourth")] == [2] * 4
    assert "| figure 8b | fourth | 4. no cluster | cannot be judged, seconds |" in text
    left_out = text[text.index("## Left out") :]
    assert "000-7," in left_out and "000-8," not in left_out


@pytest.fixture
def invoked(toy, tmp_path, monkeypatch):
    """Run the command on three figures; the second one cannot be made."""
    made = list[str]()

    def maker(name):
        def make_it(show):
            made.append(name)
            if name == "000-9":
                raise ValueError("no tuples")
            return Made((), (Finding(f"figure {name[-1]}", "holds", "so", holds=True),))

        return make_it

    found = {
        replace(figure(name), make_it=maker(name)): "toy.a" for name in ("000-8", "000-9", "001-4")
    }
    monkeypatch.setattr(running, "figures", lambda: found)

    def run(*arguments):
        made.clear()
        done = CliRunner().invoke(command.main, ["--out", str(tmp_path / "out"), *arguments])
        return done.exit_code, done.output, list(made)

    return run


def test_what_is_made_is_kept_and_a_failure_stops_no_other_figure(invoked, tmp_path):
    code, output, made = invoked("--page", str(tmp_path / "page.md"))
    assert (code, made) == (1, ["000-8", "000-9", "001-4"])
    assert "papers: not made, for the errors above: 000-9" in output
    text = (tmp_path / "page.md").read_text()
    assert 'id="figure-001-4"' in text and 'id="figure-000-9"' not in text
    assert invoked()[2] == ["000-9"]
    assert invoked("--figure", "001-4", "--figure", "000-8")[2] == ["000-8", "001-4"]


def test_the_page_has_no_figure_of_older_code(invoked, tmp_path):
    """A figure that cannot be made any more was told with its old report."""
    invoked("--figure", "000-8")
    report = tmp_path / "out" / "000-8" / running.REPORT
    report.write_text(json.dumps(json.loads(report.read_text()) | {"code": "older"}))
    invoked("--figure", "001-4", "--page", str(tmp_path / "page.md"))
    text = (tmp_path / "page.md").read_text()
    assert 'id="figure-001-4"' in text and 'id="figure-000-8"' not in text


def test_an_unknown_figure_is_refused_and_the_known_ones_named(invoked):
    code, output, made = invoked("--figure", "000-99")
    assert (code, made) == (2, [])
    assert "000-99 is not a figure; give one of 000-8, 000-9, 001-4" in output


#: Figures with a statement that does not come out, and nobody knows why. The page says so.
UNEXPLAINED = {*"000-7 002-3 002-4 002-5 002-7 003-3 004-8 004-9 004-10".split()}


def test_the_page_of_the_docs_has_a_reason_for_each_no():
    text = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text()
    _, _, found = text.partition("\n## What does not come out")
    reasons = found.partition("\n## ")[0].splitlines()[2:]
    assert reasons
    unexplained = [line for line in reasons if page.NO_REASON in line]
    assert {re.search(r"#figure-([\w-]+)", line)[1] for line in unexplained} == UNEXPLAINED
