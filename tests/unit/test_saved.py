"""Reports that are read from files: what can be shown, and how all else is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from joinengine.lab.commands.pages import report, write_page
from joinengine.lab.comparison import saved
from joinengine.lab.comparison.hues import hues_of
from joinengine.lab.comparison.pictures import colours_of, draw_loads
from joinengine.lab.comparison.saved import comparison, page_content, read_report
from joinengine.layouts import LAYOUTS
from joinengine.model.errors import InvalidRequest
from joinengine.reporting import page as page_module
from joinengine.reporting.run_report import FORMAT
from joinengine.reporting.thinning import size_of
from tests.unit import stories


def run_of(layout="mnrt", **changed):
    report = {
        "format": FORMAT,
        "query": "eq5",
        "layout": layout,
        "zipf": 1.5,
        "work_per_tuple_us": 100,
        "slowest_instance_s": 9.0 if layout == "hash" else 3.0,
        "elapsed_s": 10.0,
        "hot_key": None,
        "joins": [{"received_per_instance": [3, 4], "received_by_batch": [[1, 2], [2, 2]]}],
        "batches": [{"batch": 0}, {"batch": 1}],
        "story": {
            "format": 1,
            "operators": [],
            "batches": [{"first": 0, "last": 1, "joins": []}],
        },
    }
    return report | changed


def without(report, key):
    return {name: value for name, value in report.items() if name != key}


@pytest.fixture
def kept(tmp_path):
    def save(content):
        path = tmp_path / "run.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        return path

    return save


def test_a_run_without_rows_is_drawn(tmp_path):
    joins = [{"received_per_instance": [0, 0], "received_by_batch": []}]
    empty = run_of("hash", joins=joins, instances=2, load_skew={"received": {"last_half": 1.0}})
    draw_loads([empty], tmp_path / "loads.png")
    assert (tmp_path / "loads.png").stat().st_size > 5_000


@pytest.mark.parametrize("report", [run_of(), comparison("eq5", [run_of("hash"), run_of()])])
def test_a_report_is_read_as_it_was_written(kept, report):
    assert read_report(kept(report)) == report


def test_what_browsers_do_not_know_is_not_known(kept):
    assert read_report(kept(run_of(rows_per_s=float("nan"))))["rows_per_s"] is None


WHOLE = json.dumps(run_of(), indent=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty; give a file"),
        (" \n", "is empty; give a file"),
        ("hi\n", "is not valid JSON at line 1, column 1"),
        (WHOLE[: len(WHOLE) // 2], r"is cut off at line \d+, column \d+"),
        (WHOLE[: WHOLE.index("eq5") + 2], "is cut off at line 3, column 11"),
        (WHOLE[: WHOLE.index("null") + 3], "is cut off at line "),
        (
            "layout,zipf\nmnrt,1.2\n" * 5,
            r"is not valid JSON at line 1, column 1 \(Expecting value\)",
        ),
        (WHOLE + "\nx", "is not valid JSON at line "),
        ("[" * 100_000, "is JSON, but not the report of a run"),
        ("3", "is JSON, but not the report of a run"),
        ([run_of()], "is JSON, but not the report of a run"),
        ({"runs": []}, "is JSON, but not the report of a run"),
        ({"runs": [run_of(), 3]}, "is JSON, but not the report of a run"),
        ({"settings": {}, "runs": [{"planner": "mnrt"}]}, "is JSON, but not the report of a run"),
        *(
            (run_of(joins=joins), "is JSON, but not the report of a run")
            for joins in (1, True, "x", [1], [None], [[]], {"a": 1})
        ),
        (WHOLE.replace('"eq5"', '"\\ud800"'), "is JSON, but not the report of a run"),
        (WHOLE.replace('"eq5"', "1" + "0" * 5000), "is JSON, but not the report of a run"),
        *(
            (
                WHOLE.replace('"eq5"', "[" * deep + number + "]" * deep),
                "is JSON, but not the report",
            )
            for deep in (60, 500, 900, 990, 2000)
            for number in ("", "1e999")
        ),
        *(
            (run_of(story={"format": 1, "batches": batches}), "lacks the story of the run")
            for batches in ([1], [None], [{"first": 0}], [{"joins": None}], [{"joins": [1]}])
        ),
        (run_of(format="2"), "is JSON, but not the report of a run"),
        (
            without(run_of(), "format"),
            "from an older version of joinengine: expected format 2, found 1",
        ),
        (
            {"query": "eq5", "runs": [without(run_of(), "format")]},
            "from an older version of joinengine",
        ),
        (run_of(format=3), "from a newer version of joinengine: expected format 2, found 3"),
        (without(run_of(), "story"), "lacks the story of the run under layout mnrt"),
        (comparison("eq5", [run_of(), run_of("hash", story=None)]), "run under layout hash"),
        (run_of(story={"format": 1}), "lacks the story of the run"),
    ],
)
def test_what_cannot_be_shown_is_refused(kept, content, message):
    path = kept(content)
    with pytest.raises(InvalidRequest, match=message) as refused:
        read_report(path)
    assert str(refused.value).startswith(f"report: {path} ")
    assert "\n" not in str(refused.value)


def test_what_an_editor_has_saved_is_read(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(b"\xef\xbb\xbf" + WHOLE.encode())
    assert read_report(path) == run_of()


def test_a_story_that_is_too_large_and_cannot_be_thinned_is_refused(monkeypatch):
    monkeypatch.setattr(saved, "_ROOM_BYTES", 10)
    story = {"format": 1, "batches": [{"first": n, "joins": []} for n in range(2)]}
    with pytest.raises(InvalidRequest, match="under layout mnrt is too large for a page"):
        page_content(run_of(story=story))


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_a_page_does_not_take_the_place_of_its_report(kept, tmp_path, link):
    path = kept(run_of())
    before = path.read_bytes()
    getattr(tmp_path / "run.html", link)(path)
    for output in ([], ["-o", str(tmp_path / "run.html")], ["-o", str(path)]):
        done = CliRunner().invoke(report, [str(path), *output])
        assert isinstance(done.exception, InvalidRequest)
        assert "is the report itself" in str(done.exception)
    assert path.read_bytes() == before


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    target = tmp_path / "pages" / "run.html"
    write_page(target, run_of(query="caf\udce9"))  # a folder whose name is no Unicode
    before = target.read_text(encoding="utf-8")
    assert "<title>caf? · joinengine" in before
    monkeypatch.setattr(page_module, "page", lambda content: "\ud800")
    with pytest.raises(UnicodeEncodeError):
        write_page(target, run_of())
    monkeypatch.setattr(page_module, "page", lambda content: "new")
    monkeypatch.setattr(Path, "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_page(target, run_of())
    assert target.read_text(encoding="utf-8") == before
    assert list(target.parent.iterdir()) == [target]


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(InvalidRequest, match=r"gone\.json does not exist; give a file"):
        read_report(tmp_path / "gone.json")
    with pytest.raises(InvalidRequest, match=r"cannot be read \(Is a directory\)"):
        read_report(tmp_path)
    (tmp_path / "run.parquet").write_bytes(b"PAR1\xff\xfe")
    with pytest.raises(InvalidRequest, match="is not JSON, but binary"):
        read_report(tmp_path / "run.parquet")


def test_a_page_is_made_of_a_run():
    assert page_content(run_of()) == {"mode": "report", "reports": [run_of()]}


def test_a_page_is_made_of_all_runs_of_a_comparison():
    content = page_content(comparison("eq5", [run_of("hash"), run_of()]))
    assert [run["layout"] for run in content["reports"]] == ["hash", "mnrt"]
    (sentence,) = content["verdict"]
    assert sentence.startswith(
        "zipf 1.5: batches waited 9.0 s for their slowest instance under hash and 3.0 s"
    )


def test_a_layout_has_the_same_colour_in_every_page_and_picture():
    """It had that of its place among the layouts of the picture."""
    for first, second in (("hash", "mnrt"), ("mnrt", "hash"), ("lptf", "mnrt")):
        content = page_content(comparison("eq5", [run_of(first), run_of(second)]))
        assert content["hues"]["mnrt"] == 2
        assert colours_of([first, second])["mnrt"] == colours_of(["mnrt"])["mnrt"]
    assert sorted(hues_of(LAYOUTS).values()) == list(range(len(LAYOUTS)))


def test_many_runs_share_the_room_of_a_few(monkeypatch):
    monkeypatch.setattr(saved, "_ROOM_BYTES", 300_000)
    monkeypatch.setattr(saved, "_MOST_PLANS", 5)
    runs = [stories.report(60, 8, hot=12, operators=2) for _ in range(3)]
    for join in (join for run in runs for one in run["story"]["batches"] for join in one["joins"]):
        join["tuples"] = sum(join["received"])
    plans = runs[0]["story"]["plans"]
    assert len(plans) > 5
    content = page_content(comparison("eq5", runs))
    assert sum(size_of(run["story"]) for run in content["reports"]) < 310_000
    for run, thinned in zip(runs, content["reports"], strict=True):
        before, after = run["story"], thinned["story"]
        assert after["batches_per_entry"] == 4
        assert len(after["batches"]) == 15
        assert after["batches"][-1]["last"] == 59
        rows = [sum(entry["input_rows"] for entry in one["batches"]) for one in (before, after)]
        assert rows[0] == rows[1]
        assert len(after["batches"][0]["joins"][0]["hot"]) == 8
        assert after["plans"] == plans[-5:]
        assert after["plans_left_out"] == len(plans) - 5
    # A single one keeps all that it has.
    monkeypatch.setattr(saved, "_ROOM_BYTES", size_of(runs[0]["story"]))
    assert page_content(runs[0])["reports"] == runs[:1]
