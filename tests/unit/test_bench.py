"""The machinery of `make bench` and `make bench-full`: order, resuming, summaries, what is red."""

from __future__ import annotations

import csv
from collections import Counter, namedtuple
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click import UsageError
from click.testing import CliRunner
from rich.console import Console

from benchmarks.auto import __main__ as auto
from benchmarks.keeping import append, lines
from benchmarks.layouts import __main__ as layouts
from benchmarks.layouts import cells, running
from benchmarks.layouts.cells import Cell
from benchmarks.layouts.running import Plan, remaining_s, run_all
from benchmarks.layouts.summary import COLUMNS, rows_of, write_csv, write_summary
from joinengine.lab.queries import QUERIES, Options
from joinengine.layouts import LAYOUTS
from joinengine.model.errors import InvalidRequest


def cell(layout, part="eq5", case="z=1"):
    return Cell(part, case, QUERIES["eq5"], Options(layout=LAYOUTS[layout]()))


def report(busy, *, valid=True, rate=10.0):
    """As far as the summary reads it; `busy`: seconds of two instances in one batch."""
    return {
        "query": "eq5",
        **{"rows_per_s": rate, "elapsed_s": 2.0, "valid": valid, "moved_rows": 3},
        **{"latency_s": {"p50": 0.1, "p99": None}, "work_per_tuple_us": 0, "busiest_s": busy},
        "joins": [{"busy_s_by_batch": [[busy, 0.0]]}],
        "load_skew": {"received": {"last_half": 1.5}},
        **{"stored_per_instance": [1, 2], "received_per_instance": [4, 5]},
        "batches": [{"recovery_s": 0.5}, {"recovery_s": 0.0}],
    }


CELLS = [cell("hash"), cell("mnrt"), cell("auto"), cell("hash", "bnci")]
QUIET = Console(quiet=True)


@pytest.fixture
def ran(monkeypatch):
    """What has been run, by layout; `answers`: layout -> a report, or an error that is raised."""
    found = SimpleNamespace(layouts=[], answers={})

    def run(_, query, options, places, validate):
        assert validate
        label = options.layout.label
        found.layouts.append(label)
        answer = found.answers.get(label, report(1.0))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(running, "run", run)
    return found


def test_each_cell_runs_once_before_any_runs_twice_in_an_order_of_the_seed():
    order = Plan(3, 7).order(CELLS)
    turns = [[str(one) for number, one in order if number == turn] for turn in range(3)]
    assert [number for number, _ in order] == [0] * 4 + [1] * 4 + [2] * 4
    assert all(sorted(turn) == sorted(map(str, CELLS)) for turn in turns)
    assert order == Plan(3, 7).order(CELLS)
    many = {tuple(str(one) for _, one in Plan(1, seed).order(CELLS)) for seed in range(20)}
    assert len(many) > 5


def test_what_is_done_is_not_run_again(tmp_path, ran):
    path = tmp_path / "runs"
    run_all(None, CELLS[:2], path, Plan(1, 0), QUIET)
    assert sorted(ran.layouts) == ["hash", "mnrt"]
    ran.layouts.clear()
    found = run_all(None, CELLS, path, Plan(2, 0), QUIET)
    assert Counter(ran.layouts) == {"hash": 1 + 2, "mnrt": 1, "auto": 2}
    assert [line["layout"] for line in found] == [one.layout for one in CELLS for _ in range(2)]
    ran.layouts.clear()
    assert run_all(None, CELLS, path, Plan(2, 0), QUIET) == found
    assert ran.layouts == []


def test_cells_of_other_options_are_run_for_themselves(tmp_path, ran):
    """Figures of 8 instances were told of 16, since both cells had one name."""
    path = tmp_path / "runs"
    eight = cell("hash")
    sixteen = replace(eight, options=replace(eight.options, instances=16))
    run_all(None, [eight], path, Plan(1, 0), QUIET)
    run_all(None, [sixteen], path, Plan(1, 0), QUIET)
    assert ran.layouts == ["hash", "hash"]


def test_a_failure_is_run_again_and_a_refusal_is_not(tmp_path, ran):
    path = tmp_path / "runs"
    ran.answers = {"hash": RuntimeError("no\ndisk"), "mnrt": InvalidRequest("not here")}
    failed, refused, good = run_all(None, CELLS[:3], path, Plan(1, 0), QUIET)
    assert failed["failed"] == "RuntimeError: no disk"
    assert refused["refused"] == "not here"
    assert [running.is_bad(line) for line in (failed, refused, good)] == [True, False, False]
    ran.layouts.clear()
    ran.answers = {}
    again, *others = run_all(None, CELLS[:3], path, Plan(1, 0), QUIET)
    assert ran.layouts == ["hash"]
    assert "report" in again
    assert others == [refused, good]


def test_a_run_that_is_not_valid_is_kept_and_stays_bad(tmp_path, ran):
    ran.answers = {"hash": report(1.0, valid=False), "mnrt": report(1.0, valid=None)}
    for _ in range(2):
        found = run_all(None, CELLS[:3], tmp_path / "runs", Plan(1, 0), QUIET)
        assert [running.is_bad(line) for line in found] == [True, True, False]
    assert len(ran.layouts) == 3


def test_each_run_is_in_the_file_before_the_next_begins(tmp_path, ran, monkeypatch):
    path, seen = tmp_path / "runs", []
    monkeypatch.setattr(
        running, "append", lambda *line: seen.append(len(lines(path))) or append(*line)
    )
    run_all(None, CELLS, path, Plan(1, 0), QUIET)
    assert seen == [0, 1, 2, 3]


def test_the_remaining_time_is_that_of_the_same_part():
    known = [{"part": "eq5", "took_s": s} for s in (1.0, 2.0, 9.0)]
    assert remaining_s([CELLS[0], CELLS[1]], known) == 4.0
    assert remaining_s([CELLS[0], CELLS[3]], known) == 4.0, "a part of which nothing is known"
    assert remaining_s([CELLS[3]], [*known, {"part": "bnci", "took_s": 7.0}]) == 7.0
    assert remaining_s(CELLS, []) == 0.0


def line(one, repeat, told):
    about = {"run": f"{one} {repeat}", "part": one.part, "case": one.case, "layout": one.layout}
    return about | {"repeat": repeat, "took_s": 1.0, "report": told}


def test_a_row_has_medians_and_spreads_and_the_best_layout_is_first(tmp_path):
    found = [line(CELLS[0], n, report(s)) for n, s in enumerate((4.0, 1.0, 3.0))]
    found += [line(CELLS[1], n, report(s, valid=n != 1)) for n, s in enumerate((2.0, 2.5, 2.0))]
    mnrt, hash_ = rows_of(found)
    assert (mnrt.layout, hash_.layout) == ("mnrt", "hash")
    assert (hash_.medians["busiest s"], hash_.spreads["busiest s"]) == (3.0, 3.0)
    assert (hash_.text("busiest s"), hash_.text("p99 s")) == ("3.00 ±1.50", "")
    assert (hash_.valid, hash_.is_bad) == ("yes", False)
    assert (mnrt.is_bad, mnrt.valid) == (True, "2.0 s, NOT VALID"), "one of three is enough"
    write_csv([mnrt, hash_], tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open() as file:
        told = list(csv.DictReader(file))
    assert [one["layout"] for one in told] == ["mnrt", "hash"]
    assert (told[1]["busiest s"], told[1]["busiest s spread"]) == ("3.0", "3.0")
    assert (told[1]["recovery s"], told[1]["sent"], told[1]["p99 s"]) == ("0.5", "9", "")
    assert all(name in told[0] for name in COLUMNS)
    write_summary([mnrt, hash_], [], {"commit": "<a>"}, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<tr class=bad>") == 1
    assert "Not valid: eq5, z=1, mnrt" in page
    assert "&lt;a&gt;" in page and "://" not in page


def test_a_command_with_a_red_cell_fails_and_a_page_shows_it(tmp_path, ran, monkeypatch):
    monkeypatch.setattr(layouts, "session", lambda: SimpleNamespace(stop=lambda: None))
    bench = layouts.Bench("full", CELLS, 1, has_runs=False)
    monkeypatch.setattr(layouts, "_full", lambda *_, quick: bench)
    arguments = ["--full", "--out", str(tmp_path)]
    assert CliRunner().invoke(layouts.main, arguments, catch_exceptions=False).exit_code == 0
    (here,) = tmp_path.iterdir()
    names = {"full.jsonl", "full.csv", "full.html", "full-eq5.png", "full-bnci.png"}
    assert {path.name for path in here.iterdir()} == names
    assert "<tr class=bad>" not in (here / "full.html").read_text()
    (here / "full.jsonl").unlink()
    ran.answers = {"auto": report(1.0, valid=False)}
    told = CliRunner().invoke(layouts.main, arguments)
    assert told.exit_code == 1
    assert told.output.splitlines()[-1].endswith("1 cells are not valid: eq5, z=1, auto")
    assert "<tr class=bad>" in (here / "full.html").read_text()


def test_the_full_cells_grow_lose_and_shift_under_every_layout_that_serves(monkeypatch):
    found = cells.full(1.0, 8, quick=False, say=lambda _: None)
    parts = {one.part for one in found}
    assert parts == {"eq5", "bnci", "q5-shifts", "growth", "loss"}
    assert len(set(map(str, found))) == len(found)
    for part in ("eq5", "growth", "loss"):
        assert {"hash", "auto", "ftlb", "dynamic", "shuffle"} <= {
            one.layout for one in found if one.part == part
        }
    for one in found:
        recovery = one.options.engine.get("recovery")
        assert bool(one.options.events.relayouts) == (one.part == "growth")
        assert bool(one.options.events.losses) == (one.part == "loss")
        assert (recovery == "store") == (one.part == "loss" and one.layout != "ftlb")
        is_hot = (one.part, one.options.zipf) == ("bnci", 1.5)
        assert one.options.scale == (0.05 if is_hot else 1.0)
    (shifts,) = {one.query.stream(one.options).shift_us for one in found if one.query.name == "q5"}
    assert shifts == 900_000_000
    assert not {one.layout for one in found} & {"mixed-bf", "readj"}
    assert len(cells.full(0.01, 8, quick=True, say=lambda _: None)) == 15


def test_the_scale_follows_from_the_room_on_the_disk(tmp_path, monkeypatch):
    said = []
    usage = namedtuple("usage", "free")
    for free, scale in ((9e9, 1.0), (5e9, 0.5), (1.0, 0.1)):
        monkeypatch.setattr(cells.shutil, "disk_usage", lambda _, free=free: usage(free))
        assert cells.scale_for(tmp_path / "not there yet", said.append) == scale
    assert said[0] == "5 GB are free, so the scale is 0.5 instead of 1"
    assert len(said) == 2


def test_batches_that_no_cell_of_auto_has_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"--rows: expected one of .*, found 5"):
        auto.main(["--rows", "5", "--out", str(tmp_path)], standalone_mode=False)
