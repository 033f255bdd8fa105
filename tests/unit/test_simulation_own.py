"""`simulate --stream`: keys of one's own files, what layouts make of them, and one sentence."""

from __future__ import annotations

import json
import os
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from joinengine.lab.cli import cli
from joinengine.lab.simulation import key_files as files
from joinengine.lab.simulation import planner_runs
from joinengine.lab.simulation.advice import Verdict, advice, recommended, verdict
from joinengine.lab.simulation.key_files import HotKey, StreamFile
from joinengine.lab.simulation.planner_runs import OutOfTime, at_most
from joinengine.lab.simulation.planning import Other, Sizes, _moved, replay
from joinengine.lab.simulation.workload import Workload
from joinengine.layouts import Mnrt, choose
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Placement
from joinengine.routing.base_functions import Modulo
from joinengine.routing.table import RoutingTable
from tests.unit.own_streams import HOUR_US, ROWS, simulate, table, write


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_folder_is_read_in_the_order_of_its_files(kind, tmp_path):
    whole = table()
    write(tmp_path / "in", kind, whole)
    stream = StreamFile(tmp_path / "in", "user", rows=500)
    users = [user for user in whole.column("user").to_pylist() if user is not None]
    wanted = [sorted(Counter(users[i : i + 500]).values()) for i in range(0, len(users), 500)]
    assert [sorted(c.tolist()) for _, c in stream.intervals(Modulo(2))] == wanted
    assert stream.length == len(wanted)
    assert stream.tuples == len(users)
    assert stream.distinct == len(set(users))
    assert stream.hottest(2)[0] == HotKey("user 0", users.count("user 0"))
    assert stream.total(2) == 1000
    assert stream.total(99) == len(users)
    two = StreamFile(tmp_path / "in", "kind,user", rows=500)
    assert two.hottest(1) == [HotKey("0, user 0", users.count("user 0"))]


def test_intervals_by_event_time(tmp_path):
    whole = table()
    write(tmp_path / "in", "parquet", whole.slice(0, 2000).append_column("x", pa.nulls(2000)))
    stream = StreamFile(tmp_path / "in", "user", time="at", every_us=HOUR_US)
    hours = Counter(
        at.hour
        for user, at in zip(
            *(whole.slice(0, 2000).column(n).to_pylist() for n in ("user", "at")), strict=True
        )
        if user is not None
    )
    assert [c.sum() for _, c in stream.intervals(Modulo(2))] == [hours[h] for h in sorted(hours)]
    assert 45 <= StreamFile(tmp_path / "in", "user", time="at").length <= 51


def test_intervals_by_dates(tmp_path):
    days = pa.array([day for day in (0, 1, 3) for _ in range(4)], pa.date32())
    pq.write_table(pa.table({"k": [1, 2] * 6, "day": days}), tmp_path / "a.parquet")
    stream = StreamFile(tmp_path, "k", time="day", every_us=24 * HOUR_US)
    assert (stream.tuples, stream.length) == (12, 3)


def test_columns_are_those_of_all_files(tmp_path):
    """The oldest file lacks the key, and the next has it in a narrower type."""
    folders = ("p=1", "p=2", "p=1.5")
    tables = [{"z": [1]}, {"k": pa.array([1, 2], pa.int32())}, {"k": [2, 2**40], "z": [1, 2]}]
    for number, (folder, columns) in enumerate(zip(folders, tables, strict=True)):
        path = tmp_path / folder / "a.parquet"
        path.parent.mkdir()
        pq.write_table(pa.table(columns), path)
        os.utime(path, ns=(number, number))
    stream = StreamFile(tmp_path, "k", rows=3)
    assert stream.hottest(1) == [HotKey("2", 2)]
    assert (stream.tuples, stream.distinct, stream.length) == (4, 3, 2)
    assert StreamFile(tmp_path, "p").hottest(2) == [HotKey("2.0", 2), HotKey("1.5", 2)]
    pq.write_table(pa.table({"k": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(InvalidRequest, match=r"'k' is string in .*b.parquet and int64 in .*p=2"):
        _ = StreamFile(tmp_path, "k").tuples


def test_planners_read_counts_and_not_the_files_again(tmp_path, monkeypatch):
    write(tmp_path / "in", "parquet", table())
    stream = StreamFile(tmp_path / "in", "user", rows=500)
    first = replay(Mnrt(), stream, Sizes(4, 99, 2))
    monkeypatch.setattr(StreamFile, "_chunks", lambda self: pytest.fail("the files are read again"))
    assert replay(Mnrt(), stream, Sizes(4, 99, 2))["per_replan"] == first["per_replan"]


def test_chunks_make_no_difference(tmp_path, monkeypatch):
    write(tmp_path / "in", "parquet", table())
    counts = []
    for chunk in (files._CHUNK, 61):
        monkeypatch.setattr(files, "_CHUNK", chunk)
        stream = StreamFile(tmp_path / "in", "user", rows=333)
        counts.append([(h.tolist(), c.tolist()) for h, c in stream.intervals(Modulo(2))])
    assert counts[0] == counts[1]
    assert len(counts[0]) > 10


def test_the_command_tells_keys_layouts_and_the_one_to_take(tmp_path):
    write(tmp_path / "in", "parquet", table())
    output = simulate(
        *("--stream", tmp_path / "in", "--key", "user", "--instances", 8),
        *("--json", tmp_path / "s.json"),
    )
    nulls = table().column("user").null_count
    assert f": {ROWS:,} rows, {nulls} of them without a key, which no layout stores; " in output
    report = json.loads((tmp_path / "s.json").read_text())
    assert report["hot_keys"][0]["key"] == "user 0"
    assert report["hot_keys"][0]["share"] == pytest.approx(0.5, abs=0.03)
    layouts = {one["layout"]: one for one in report["layouts"]}
    assert {"hash", "mixed", "mnrt", "pkg", "shuffle"} <= layouts.keys()
    assert layouts["hash"]["busiest"] > 2
    assert layouts["shuffle"]["busiest"] == pytest.approx(8)
    assert layouts["mnrt"]["busiest"] < 1.5
    assert "because key user 0 has" in report["advice"]
    assert report["advice"].split(".")[0] == "Take auto"
    assert report["advice"] in output
    assert "busiest: rows that the busiest instance receives" in output
    same = simulate("mnrt", "--stream", tmp_path / "in", "--key", "user", "--other", "same")
    assert "Take hash" in same, "a key that is hot on both sides is not relieved by splitting"
    assert "re-plans" in same
    numbered = simulate("hash", "--stream", tmp_path / "in", "--key", "n")
    assert f": {ROWS:,} rows; {ROWS:,} keys in n" in numbered
    assert "migrated: part of" in same


def test_level_keys_need_no_layout(tmp_path):
    whole = pa.table({"user": np.arange(20_000) % 5000})
    pq.write_table(whole, tmp_path / "level.parquet")
    output = simulate("--stream", tmp_path / "level.parquet", "--instances", 4, "--rows", 5000)
    assert "Take hash. Under hash, the busiest of 4 instances receives 1." in output
    assert "No other layout does much better" in output


def test_the_advice_is_the_cheapest():
    by_hash = Verdict("hash", 2.0, 1.0, 0.0, 0, 1000.0)
    moving = Verdict("lptf", 1.2, 1.0, 900.0, 9, 1000.0)
    mixed = Verdict("mixed", 1.4, 1.0, 10.0, 1, 1000.0)
    assert recommended([by_hash, moving, mixed]) is mixed
    assert recommended([by_hash, moving]) is by_hash, "moving costs more than it gains"
    sentence = advice([by_hash, mixed], HotKey("k", 100), 1000, 4)
    assert "several heavy keys share one instance (the heaviest, key k, has 10.0%)" in sentence
    assert "Mixed moves whole keys, sends each row to 1.00 instances on average, and" in sentence
    auto = Verdict("auto", 1.45, 1.0, 10.0, 1, 1000.0)
    assert recommended([by_hash, mixed, auto]) is auto, "the default of a run is as good"
    assert recommended([by_hash, mixed, auto._replace(busiest=1.6)]) is mixed
    assert "only if this saves more time" in advice([by_hash, auto], HotKey("k", 100), 1000, 4)


def test_the_advice_names_what_was_not_judged():
    """`mixed-bf` was stopped, and "Take hash" sounded as if the two had been compared."""
    hot, stopped = HotKey("k", 100), ["mixed-bf"]
    skewed, level = (Verdict("hash", busiest, 1.0, 0.0, 0, 1000.0) for busiest in (2.0, 1.05))
    mixed = Verdict("mixed", 1.4, 1.0, 10.0, 1, 1000.0)
    assert advice([skewed], hot, 1000, 4, [*stopped, "readj"]) == (
        "No layout can be advised: under hash, the busiest of 4 instances receives 2.00 times its "
        "share, but mixed-bf and readj used up the time limit (--budget), and no other layout was "
        "simulated. Give a larger --budget, or name faster layouts."
    )
    for verdicts, taken in (([level], "hash"), ([skewed, mixed], "mixed")):
        sentence = advice(verdicts, hot, 1000, 4, stopped)
        assert sentence.startswith(f"Take {taken}. ")
        assert sentence.endswith(" Not judged: mixed-bf used up the time limit (--budget).")
        assert "Not judged" not in advice(verdicts, hot, 1000, 4)


def test_the_command_says_what_its_budget_did_not_allow(tmp_path, monkeypatch):
    write(tmp_path / "in", "parquet", table())

    def played(name, *_):
        raise OutOfTime

    monkeypatch.setattr(planner_runs, "_choose", played)
    output = simulate("pkg", "--stream", tmp_path / "in", "--key", "user")
    assert "No layout can be advised: under hash, the busiest of 8 instances receives" in output
    assert "but pkg used up the time limit (--budget)" in output
    assert "Take hash" not in output


def test_a_verdict_is_of_what_an_interval_met():
    """A planner that plans after the interval has not helped it: loads are those of before."""
    report = replay(Mnrt(), Workload(keys=500, zipf=1.5), Sizes(8, 4, 2, other=Other.EVEN))
    rows = report["intervals"]
    assert rows[0]["busiest"] / (rows[0]["rows"] / 8) == pytest.approx(
        rows[0]["imbalance_before"] + 1
    )
    assert rows[1]["busiest"] < rows[0]["busiest"] * 0.7
    busiest = sum(row["busiest"] for row in rows[1:]) / sum(row["rows"] / 8 for row in rows[1:])
    assert verdict(report).busiest == pytest.approx(busiest)


def test_reasons_are_told():
    arguments = ("mnrt", "--keys", 200, "--zipf", 1.5, "--intervals", 3, "--instances", 4)
    assert "mnrt, interval 0: " in simulate(*arguments, "--reasons")
    assert "interval 0" not in simulate(*arguments)


def test_candidates_have_a_legend():
    output = simulate("pkg", "--messages", 2000)
    assert "I(m): greatest load minus mean load" in output
    assert "replication: mean number of instances of a key" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stream", "HALF"], "half.parquet cannot be read as parquet"),
        (["--stream", "EMPTY"], "contains no Parquet, CSV or JSON file"),
        (["--stream", "MIXED"], "found csv, json"),
        (["--stream", "BADJSON"], "cannot be read as json"),
        (["--stream", "IN", "--key", "nobody"], "key: column 'nobody' is not in"),
        (
            ["--stream", "IN", "--time", "user"],
            "time: expected a timestamp column, found 'user' of type string",
        ),
        (["--stream", "IN", "--time", "at", "--rows", "5"], "both define intervals"),
        (["--stream", "IN", "--every", "1 h"], "give --time COLUMN too"),
        (["mnrt", "--key", "user"], "give --stream too"),
        (["--stream", "NULLS"], "has a key in a"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments, message, tmp_path):
    write(tmp_path / "in", "parquet", table())
    for name in ("empty", "mixed"):
        (tmp_path / name).mkdir()
    (tmp_path / "mixed" / "a.csv").write_text("a\n1\n")
    (tmp_path / "mixed" / "b.json").write_text('{"a": 1}\n')
    (tmp_path / "bad.json").write_text("[1, 2\n")
    whole = (tmp_path / "in" / "1.parquet").read_bytes()
    (tmp_path / "half.parquet").write_bytes(whole[: len(whole) // 2])
    pq.write_table(pa.table({"a": pa.nulls(5, pa.int64())}), tmp_path / "nulls.parquet")
    places = {
        "IN": "in",
        "HALF": "half.parquet",
        "EMPTY": "empty",
        "MIXED": "mixed",
        "BADJSON": "bad.json",
        "NULLS": "nulls.parquet",
    }
    typed = [str(tmp_path / places[word]) if word in places else word for word in arguments]
    done = CliRunner().invoke(cli, ["simulate", *typed])
    assert isinstance(done.exception, InvalidRequest), done.output
    assert message in str(done.exception)


def test_nothing_to_simulate_is_a_usage_error():
    done = CliRunner().invoke(cli, ["simulate"])
    assert done.exit_code == 2
    assert "give one or more PLANNERs, of auto, hash" in done.output


def test_planners_tell_as_they_end_and_slow_ones_have_to_be_named(tmp_path):
    write(tmp_path / "in", "parquet", table())
    asked = ["simulate", "--stream", str(tmp_path / "in"), "--key", "user", "--messages", "500"]
    asked += ["--json", str(tmp_path / "report.json"), "--rows", "1000"]
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 0, done.output
    lines = [line.partition(":")[0] for line in done.stderr.splitlines() if " busiest " in line]
    assert lines[:2] == ["hash", "auto"]
    assert {"mnrt", "shuffle"} <= set(lines)
    assert not {"mixed-bf", "readj"} & set(lines)
    assert json.loads((tmp_path / "report.json").read_text())["stopped"] == []
    slow = CliRunner().invoke(cli, [*asked, "mixed-bf", "pkg"])
    assert slow.exit_code == 0, slow.output
    assert (
        "mixed-bf makes one plan for each key of its table, which may take minutes" in slow.stderr
    )
    assert "mixed-bf: busiest" in slow.stderr


def test_a_planner_is_stopped_when_its_budget_is_used_up(tmp_path):
    asked = ["simulate", "pkg", "mnrt", "--intervals", "2", "--keys", "100", "--rows", "1000"]
    asked += ["--messages", "3000000", "--budget", "500 ms", "--json", str(tmp_path / "r.json")]
    asked += ["--rows", "3000000"]
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 0, done.output
    assert "pkg: stopped after 0.5 s; a larger --budget lets it finish" in done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["stopped"] == ["pkg"]
    assert [run["planner"] for run in report["runs"]] == ["mnrt"]


def test_a_budget_must_be_enough_for_hash(tmp_path):
    write(tmp_path / "in", "parquet", table())
    asked = ["simulate", "mnrt", "--stream", str(tmp_path / "in"), "--key", "user", "--budget"]
    done = CliRunner().invoke(cli, [*asked, "1 us"])
    assert "budget: 1 us is too short even for hash" in str(done.exception)
    done = CliRunner().invoke(cli, [*asked, "0 s"])
    assert "budget: expected a duration above 0, such as 60 s, found 0 s" in str(done.exception)


def test_a_budget_of_ages_is_one():
    with at_most(1e18):
        pass


def test_a_statement_of_duckdb_is_ended_too(tmp_path):
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "in.parquet")
    db = StreamFile(tmp_path / "in.parquet", "k")._counted
    # With more threads a signal comes to one that waits, and the statement runs to its end.
    assert db.execute("select current_setting('threads')").fetchall() == [(1,)]
    with pytest.raises(OutOfTime), at_most(0.2):
        db.execute("select count(*) from range(3000000000) where hash(range) = 7").fetchall()
    with pytest.raises(RuntimeError, match="mine"), at_most(20):
        raise RuntimeError("mine")


def test_auto_weighs_the_copies_that_a_mode_makes():
    keys = Workload(keys=2000, zipf=1.5, rows=20_000)
    reports = {
        name: verdict(replay(choose(name), keys, Sizes(8, 12, 5, other=Other.SAME)))
        for name in ("hash", "auto", "mnrt")
    }
    assert reports["auto"].busiest < 0.8 * reports["hash"].busiest
    assert reports["auto"].busiest < reports["mnrt"].busiest
    assert reports["auto"].deliveries < reports["mnrt"].deliveries


def test_a_layout_needs_as_many_instances_as_in_a_run():
    asked = ["simulate", "ftlb", "--instances", "1", "--intervals", "2", "--keys", "100"]
    with pytest.raises(InvalidRequest, match="layout ftlb needs from 2"):
        CliRunner().invoke(cli, asked, catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize("planner", ["pkg", "potc"])
def test_a_key_has_no_more_candidates_than_there_are_instances(planner):
    asked = ["simulate", "hash", planner, "--instances", "4", "--choices", "65536"]
    with pytest.raises(InvalidRequest, match=r"choices: expected at most .* instances, 4, found"):
        CliRunner().invoke(cli, asked, catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize("hashes", [[4], [9], []])
def test_a_key_that_nobody_holds_moves_without_rows(hashes):
    loads = SimpleNamespace(hashes=np.array(hashes, np.uint64), held=np.full(len(hashes), 100.0))
    tables = RoutingTable({8: Placement.whole(1)}), RoutingTable({8: Placement.whole(2)})
    assert _moved(*tables, Modulo(4), loads) == (1, 0.0)
    loads = SimpleNamespace(hashes=np.array([4, 8], np.uint64), held=np.array([9.0, 100.0]))
    assert _moved(*tables, Modulo(4), loads) == (1, 100.0)
