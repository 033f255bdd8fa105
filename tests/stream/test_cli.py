"""The command line: as a user types it, and, to save the start of Spark, in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import duckdb
import pytest
from click.testing import CliRunner

from joinengine.lab.cli import cli
from joinengine.layouts import LAYOUTS
from tests.stream.cases import called, no_session

pytestmark = pytest.mark.spark

#: The public keys of `run --json`.
KEYS = """query layout scale zipf seed instances input_rows output_rows elapsed_s rows_per_s batches
received_per_instance stored_per_instance busy_s_per_instance instances_used load_skew replans
plan_s moved_rows moved_fraction late_rows report_bytes valid result_checksum joins format
story latency_s""".split()
BATCH_KEYS = """batch input_rows output_rows elapsed_s route_s join_s sink_s commit_s plan_s
state_rows state_bytes moved_rows moved_bytes routing_entries split_keys probe_copies expired_rows
late_rows latency_s""".split()


def typed(home, *arguments):
    """`python -m joinengine` in a process of its own, Spark included."""
    done = subprocess.run(
        [sys.executable, "-m", "joinengine", *map(str, arguments)],
        env=os.environ | {"JOINENGINE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def windowed(joinengine, tmp_path_factory):
    """One windowed, disordered run, which the tests below share."""
    folder = tmp_path_factory.mktemp("run")
    done = joinengine(
        *("run", "eq5", "--layout", "mnrt", "--scale", 0.01, "--zipf", 1.2, "--instances", 8),
        *("--window", "180s", "--disorder", "2s", "--seed", 3, "--validate"),
        *("--json", folder / "report.json", "--out", folder / "out"),
        *("--checkpoint", folder / "checkpoint", "--work-per-result", "1us"),
    )
    return folder, json.loads((folder / "report.json").read_text()), done


def test_a_run_as_a_user_types_it(home, tmp_path):
    done = typed(
        home,
        *("run", "eq5", "--scale", 0.001, "--instances", 3, "--validate"),
        *("--json", tmp_path / "report.json"),
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["valid"] is True
    assert report["output_rows"] > 0
    assert report["made_by"]["command"].startswith("__main__.py run eq5")
    assert "valid" in done.stdout
    assert "zipf" in done.stdout
    assert "comparing with DuckDB" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_report_has_the_public_keys(windowed):
    _, report, done = windowed
    assert set(KEYS) <= set(report)
    assert all(set(BATCH_KEYS) <= set(batch) for batch in report["batches"])
    assert set(report["load_skew"]) == {"received", "stored", "busy"}
    assert all(set(skew) == {"run", "last_half"} for skew in report["load_skew"].values())
    assert len(report["joins"]) == 3
    assert "valid" in done.stdout


def test_the_figures_agree_with_each_other(windowed):
    folder, report, _ = windowed
    assert report["valid"] is True
    batches = report["batches"]
    assert report["input_rows"] == sum(b["input_rows"] for b in batches) == 60_175 + 100 + 25 + 5
    assert report["output_rows"] == sum(b["output_rows"] for b in batches) > 0
    assert report["rows_per_s"] == pytest.approx(
        report["input_rows"] / sum(b["elapsed_s"] for b in batches)
    )
    halves = [b["latency_s"]["p50"] for b in batches if b["output_rows"]]
    assert min(halves) <= report["latency_s"]["p50"] <= max(halves)
    assert report["result_checksum"].startswith(f"{report['output_rows']}:")
    assert len(report["received_per_instance"]) == report["instances_used"] == 8
    assert sum(report["received_per_instance"]) >= 60_175
    assert report["load_skew"]["received"]["run"] >= 1
    assert report["late_rows"] == 0
    # The stream covers 1,280 s: a window of 180 s expires, and all of it at the end.
    assert sum(b["expired_rows"] for b in batches) > 0
    assert batches[-1]["state_rows"] == 0
    assert report["elapsed_s"] >= sum(b["elapsed_s"] for b in batches) * 0.9
    assert list((folder / "out").glob("*.parquet"))


def test_work_for_results_reaches_the_tasks(windowed):
    _, report, _ = windowed
    assert (report["work_per_tuple_us"], report["work_per_result_us"]) == (0, 1)
    assert report["slowest_instance_s"] is None
    waited = [entry["work"].get("emulated") for entry in report["story"]["batches"]]
    assert any(waited)


def test_state_shows_the_checkpoint_and_a_key(joinengine, windowed):
    folder, report, _ = windowed
    done = joinengine("state", folder / "checkpoint", "--json", folder / "state.json")
    shown = json.loads((folder / "state.json").read_text())
    assert shown["batch"] == report["batches"][-1]["batch"]
    assert [join["layout"] for join in shown["joins"]] == ["mnrt"] * 3
    assert "s_suppkey = l_suppkey" in done.stdout
    hash_ = shown["joins"][2]["routing_table"][0][0]
    assert hash_ > 0
    joinengine("state", folder / "checkpoint", "--key", "7", "--json", folder / "k.json")
    key = json.loads((folder / "k.json").read_text())["key"]
    assert key["join"] == 2
    assert sum(high - low for _, low, high in key["homes"]) == pytest.approx(1)
    joinengine("state", folder / "checkpoint", "--key", "seven", code=2)
    joinengine("state", folder / "checkpoint", "--join", "0", code=2)
    joinengine("state", folder / "nowhere", code=2)


def test_nothing_is_left_to_do(joinengine, windowed):
    folder, _, _ = windowed
    joinengine(
        *("run", "eq5", "--layout", "mnrt", "--scale", 0.01, "--zipf", 1.2, "--instances", 8),
        *("--window", "180s", "--disorder", "2s", "--seed", 3, "--validate"),
        *("--json", folder / "again.json", "--out", folder / "out"),
        *("--checkpoint", folder / "checkpoint"),
    )
    again = json.loads((folder / "again.json").read_text())
    assert again["batches"] == []
    assert again["valid"] is True


def test_out_must_be_fresh_and_a_checkpoint_the_same(joinengine, windowed):
    folder, _, _ = windowed
    small = ("run", "eq5", "--scale", 0.001, "--zipf", 1.2)
    done = joinengine(*small, "--out", folder / "out", code=2)
    assert "already holds Parquet files" in done.stderr
    kept = ("--checkpoint", folder / "checkpoint")
    assert "and this run would not; give the same" in joinengine(*small, *kept, code=2).stderr
    assert "another query" in joinengine(*small, *kept, "--sink", "noop", code=2).stderr


def test_a_band_self_join(joinengine, tmp_path):
    joinengine(
        *("run", "bnci", "--layout", "mnrt", "--scale", 0.004, "--zipf", 0.6, "--instances", 5),
        *("--window", "300s", "--disorder", "2s", "--validate", "--json", tmp_path / "bnci.json"),
    )
    report = json.loads((tmp_path / "bnci.json").read_text())
    assert report["valid"] is True
    assert report["output_rows"] > 0
    assert report["input_rows"] == 24_146


@pytest.mark.parametrize("query", ["naive-bayes", "decision-tree"])
def test_queries_that_learn(joinengine, tmp_path, query):
    path = tmp_path / "report.json"
    depth = ("--depth", 2) if query == "decision-tree" else ()
    told = joinengine(
        *("run", query, "--layout", "pkg", "--scale", 0.004, "--interval-rows", 4000),
        *("--switch", "2:shuffle", "--resize", "3:5", "--validate", "--json", path, *depth),
    )
    report = json.loads(path.read_text())
    assert report["valid"] is True
    counted = "counters" if query == "naive-bayes" else "histograms"
    assert f"{report[counted]:,} {counted} at the instances for" in told.stderr
    assert report[counted] > report["keys"], "hot keys are at several instances"


def test_lazy_moves_move_nothing(joinengine, tmp_path):
    typed = (
        *("run", "eq5", "--layout", "hash", "--scale", 0.004, "--instances", 6, "--validate"),
        *("--interval-rows", 2500, "--window", "100s", "--moves", "lazy"),
        *("--switch", "3:dynamic", "--switch", "6:mnrt", "--resize", "5:9"),
        *("--json", tmp_path / "lazy.json", "--checkpoint", tmp_path / "kept"),
    )
    done = joinengine(*typed)
    assert "running eq5 under hash, Zipf 0" in done.stderr
    report = json.loads((tmp_path / "lazy.json").read_text())
    versions = [batch["layout_versions"] for batch in report["batches"]]
    assert report["valid"] is True
    assert report["output_rows"] > 0
    assert report["moved_rows"] == 0
    assert max(versions) > 1 == versions[-1]
    again = joinengine(*typed)
    assert "not compared with DuckDB: the run continued a checkpoint" in again.stderr
    assert json.loads((tmp_path / "lazy.json").read_text())["valid"] is None
    assert "layout mnrt" in joinengine("state", tmp_path / "kept").stdout


@pytest.mark.slow
def test_switches_resizes_and_capacity(joinengine, tmp_path):
    done = joinengine(
        *("run", "eq5", "--layout", "hash", "--zipf", 1.0, "--scale", 0.005, "--instances", 8),
        *("--switch", "3:dynamic", "--switch", "6:bi", "--switch", "9:mnrt", "--resize", "4:13"),
        *("--resize", "8:5", "--validate", "--json", tmp_path / "report.json"),
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["valid"] is True
    assert report["instances_used"] == 5
    assert report["moved_rows"] > 0
    assert "mnrt" not in done.stderr
    grown = joinengine(
        *("run", "eq5", "--layout", "bi", "--scale", 0.005, "--instances", 2, "--validate"),
        *("--capacity", 2000, "--json", tmp_path / "grown.json"),
    )
    report = json.loads((tmp_path / "grown.json").read_text())
    assert report["valid"] is True
    assert report["instances_used"] > 2
    assert grown.stdout
    for bad in (("--switch", "dynamic"), ("--resize", "3:x"), ("--switch", "0:hash")):
        joinengine("run", "eq5", *bad, "--scale", 0.001, code=2)
    for layout, n in (("bi", 1), ("bi-6", 11), ("none", 8)):
        joinengine("run", "eq5", "--layout", layout, "--instances", n, code=2)


LEVELS = {
    "hot": {"top": 3, "backups": 2},
    "some": {"where": "l_suppkey <= 5", "backups": 3, "join": 2},
    "one": {"keys": [7], "backups": 2, "join": 2},
}


@pytest.mark.parametrize(
    ("recovery", "layout", "way"),
    [
        ("replicas", "ftlb", "the backups of their keys have taken over"),
        pytest.param(
            "taskb", "ftlb", "their standbys have taken over their keys", marks=pytest.mark.slow
        ),
        ("store", "mnrt", "it was read again from the store"),
    ],
)
def test_an_instance_is_lost_and_nothing_is_missing(
    recovery, layout, way, joinengine, tmp_path, caplog
):
    """With copies of keys some have more backups, by their service levels."""
    levels, has_levels = tmp_path / "levels.json", recovery == "replicas"
    levels.write_text(json.dumps(LEVELS))
    joinengine(
        *("run", "eq5", "--layout", layout, "--scale", 0.001, "--instances", 4, "--zipf", 1.0),
        *("--interval-rows", 600, "--fail", "2:1", "--fail", "5:2,0", "--validate"),
        *("--checkpoint", tmp_path / "state", *(("--levels", levels) if has_levels else ())),
        *("--json", tmp_path / "report.json", "--report", tmp_path / "page.html"),
        *("--recovery", recovery),
        *(("--store", "1 GB/s, 1 ms") if recovery == "store" else ()),
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["valid"] is True
    assert report["recovery"] == recovery
    kept = "1.0 GB/s, 0.001 s per request (emulated)" if recovery == "store" else None
    assert report["store"] == kept
    assert len(report["received_per_instance"]) == (8 if recovery == "taskb" else 4)
    lost = {b["batch"]: b["lost_instances"] for b in report["batches"] if b["lost_instances"]}
    assert lost.keys() == {2, 5}
    assert sum(b["recovered_rows"] for b in report["batches"]) > 0
    assert "instance 1 lost its state (as requested by fail)" in caplog.text
    told = " ".join(plan["words"] for plan in report["story"]["plans"])
    assert f"instances 0, 2 lost their state; {way}" in told
    causes = {(plan["join"], plan["cause"]) for plan in report["story"]["plans"]}
    assert ((2, "levels") in causes) is has_levels
    for key, copies in ({1: 4, 7: 3, 9: 2} if has_levels else {}).items():
        held = joinengine(*("state", tmp_path / "state", "--key", key, "--json", tmp_path / "k"))
        rows = json.loads((tmp_path / "k").read_text())["key"]["rows"]["right"]
        assert len(rows) >= copies, (key, held.stdout)


@pytest.mark.parametrize(
    ("fail", "layout", "message"),
    [
        ("5", "ftlb", "fail: expected BATCH:VALUE, such as 3:0 or 3:0,2, found '5'"),
        ("2:x", "ftlb", "fail: expected a whole number, found 'x'"),
        ("0:1", "ftlb", "fail: expected a batch from 1 on, found"),
        ("2:4", "ftlb", "instance 4 does not exist; give one from 0 to 3"),
        ("2:1", "mnrt", "layout mnrt keeps no copies of keys"),
        ("2:1", "mnrt --recovery taskb", "recovery: taskb needs standby instances"),
        ("2:8", "ftlb --recovery taskb", "instance 8 does not exist; give one from 0 to 7"),
        ("2:1", "mnrt --recovery none", "'none' is not one of"),
        ("2:1", "mnrt --store fast", "store: 'fast' is not a speed of a store"),
    ],
)
def test_losses_that_cannot_be_are_refused(joinengine, fail, layout, message):
    layout = layout.split()
    options = ("--layout", *layout, "--scale", 0.001, "--instances", 4, "--fail", fail)
    done = joinengine("run", "eq5", *options, code=2)
    assert message in done.stderr


def test_compare_draws_and_agrees(joinengine, home, tmp_path):
    done = joinengine(
        *("compare", "eq5", "--layouts", "hash,mnrt", "--zipf", "0,1.5", "--scale", 0.001),
        *("--instances", 3, "--order", "last", "--json", tmp_path / "compare.json"),
        *("--work-per-tuple", "30us"),
    )
    runs = json.loads((tmp_path / "compare.json").read_text())["runs"]
    assert [(run["layout"], run["zipf"]) for run in runs] == [
        (layout, z) for z in (0, 1.5) for layout in ("hash", "mnrt")
    ]
    assert all(run["valid"] for run in runs)
    for z in (0, 1.5):
        assert len({run["result_checksum"] for run in runs if run["zipf"] == z}) == 1
    assert (tmp_path / "compare.png").stat().st_size > 10_000
    assert "picture:" in done.stdout
    loads = runs[2]["joins"][2]["received_by_batch"]
    assert runs[2]["slowest_instance_s"] == pytest.approx(sum(map(max, loads)) * 30e-6)
    # The key of the sentence is read from the state; the streams are the witness.
    found, at = runs[3]["hot_key"], f"{home}/streams/*-sf0.001-z1.5-last-*/lineitem/*.parquet"
    counts = duckdb.sql(f"select l_suppkey, count(*) from '{at}' group by 1 order by 2 desc")
    (hottest, rows), *_ = counts.fetchall()
    assert (found["join"], found["on"]) == (2, "s_suppkey = l_suppkey")
    assert found["key"] == str(hottest)
    assert found["share"] == pytest.approx(rows / 6005, abs=0.1)
    assert f"zipf 1.5: key {hottest} (s_suppkey = l_suppkey) carried" in done.stdout


def test_lists_and_explain(home, tmp_path, monkeypatch):
    monkeypatch.setenv("JOINENGINE_HOME", str(home))
    invoke = CliRunner().invoke
    assert all(name in invoke(cli, ["layouts"]).output for name in LAYOUTS)
    assert "eq5" in invoke(cli, ["queries"]).output
    path = str(tmp_path / "plan.json")
    assert invoke(cli, ["explain", "eq5", "--window", "3 minutes", "--json", path]).exit_code == 0
    plan = "\n".join(json.loads((tmp_path / "plan.json").read_text())["plan"])
    assert "a row is kept until the watermark passes the latest of r_ts or n_ts + 180 s" in plan
    for command in ([], ["run"], ["compare"], ["explain"], ["state"], ["layouts"], ["queries"]):
        assert invoke(cli, [*command, "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "eq6"], "query: expected one of eq5"),
        (["run", "eq55"], "found 'eq55'. Did you mean 'eq5'?"),
        (["run", "eq5", "--layout", "best"], "layout: expected one of auto, hash"),
        (
            ["run", "eq5", "--instances", "0"],
            "layout auto needs from 1 to 65536 instances, found 0",
        ),
        (
            ["run", "eq5", "--scale", "0.00001"],
            "scale: expected at least 0.0001, which makes one supplier, found 1e-05",
        ),
        (["run", "skewed-join", "--scale", "-1"], "scale: expected a number above 0, found -1.0"),
        (["run", "nexmark-q3", "--scale", "nan"], "scale: expected a number above 0, found nan"),
        (["run", "topk", "--rate", "0"], "rate: expected a number above 0, found 0.0"),
        (["run", "nexmark-q3", "--rate", "inf"], "rate: expected a number above 0, found inf"),
        (["run", "eq5", "--zipf", "inf"], "zipf: expected an exponent of 0 or more, found inf"),
        (["run", "eq5", "--text", "foo"], "text: eq5 has none, found foo; leave it out"),
        (["load", "eq5", "--servers", "a:1", "--bins", "8"], "bins: eq5 has none, found 8"),
        (["run", "first-story", "--window", "9s"], "window: first-story compares with the last"),
        (["explain", "eq5", "--merge-every", "2"], "merge-every: eq5 has none, found 2"),
        (["run", "eq5", "--resize", "2:²"], "resize: expected a whole number, found '²'"),
        (["run", "eq5", "--resize", "0:4"], "resize: expected a batch from 1 on, found '0:4'"),
        (["run", "eq5", "--fail", "5"], "fail: expected BATCH:VALUE, such as 3:0 or 3:0,2"),
        (["run", "nexmark-q8", "--window", "0 s"], "window: the windows of nexmark-q8 must be"),
        (["run", "eq5", "--resize", "3:4", "--resize", "3:5"], "resize: batch 3 is named twice"),
        (["run", "eq5", "--switch", "3:bi", "--switch", "3:hash"], "switch: batch 3 is named tw"),
        (["compare", "eq5", "--zipf", ","], "zipf: the list is empty; name at least one"),
        (["compare", "eq5", "--layouts", ""], "layouts: the list is empty; name at least one"),
        (
            ["run", "eq5", "--json", "run.json", "--report", "run.json"],
            "--report: run.json is the file of --json, too",
        ),
        (["layouts", "--json", "/proc/none/a.json"], "/proc/none/a.json cannot be written: "),
        (["new", "/proc/none/mine"], "/proc/none/mine cannot be written: "),
        (["run", "eq5", "--zipf", "-1"], "zipf: expected an exponent of 0 or more, found -1.0"),
        (
            ["run", "eq5", "--window", "-5 s"],
            "window: expected a duration of 0 or more, found -5 s",
        ),
        (["run", "eq5", "--window", "soon"], "number and a unit"),
        (["run", "eq5", "--rate", "1", "--span", "1s"], "give only one"),
        (["run", "eq5", "--interval-rows", "0"], "interval-rows: expected at least 1, found 0"),
        (
            ["compare", "eq5", "--zipf", "much"],
            "zipf: expected a list of numbers such as 0,0.8,1.5, found 'much'",
        ),
    ],
)
def test_usage_errors_exit_with_2_before_spark(home, arguments, message):
    done = called(home, no_session, *arguments, code=2)
    assert message in done.stderr


def test_a_usage_error_is_one_line(home):
    done = called(home, no_session, "run", "eq5", "--instances", "0", code=2)
    start = "joinengine: instances: layout auto needs from 1 to 65536 instances, found 0"
    assert done.stderr.startswith(start)
    assert done.stderr.count("\n") == 1
