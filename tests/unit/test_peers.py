"""The benchmark beside Spark: its streams, what it makes of runs, and when a result is visible."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click import ClickException, UsageError

from benchmarks.kafka import __main__ as kafka
from benchmarks.keeping import named
from benchmarks.latency import __main__ as latency
from benchmarks.latency.sending import BEHIND, path_of, prepare, send
from benchmarks.nexmark import __main__ as nexmark
from benchmarks.peers import __main__ as peers
from benchmarks.peers.jobs import Batch, Job, Outcome
from benchmarks.peers.parts import PARTS, Ratio, medians
from benchmarks.peers.stream import FEW, SIDES, record_small
from benchmarks.peers.systems import MEMORY, OURS, SYSTEMS
from joinengine.sources.feeds import RecordedFeed


def outcome(rate, *rows, whole_s=1.0):
    """A query whose batches have so many rows, at a rate."""
    batches = [Batch(n, (n or 1) / rate) for n in rows]
    return Outcome(0.25, 0.5, whole_s, batches, 7, {"probe": 0.4})


def printed(*outcomes):
    """As the process of a run prints it."""
    return json.loads(json.dumps([one._asdict() for one in outcomes]))


def test_a_rate_counts_batches_with_rows_after_three():
    figures = PARTS["steady"].figures(printed(outcome(10.0, 1, 1, 1, 40, 0, 60)))
    assert figures == {"rows_per_s": 10.0, "results": 7, "split: probe": 0.4}
    assert PARTS["steady"].figures(printed(outcome(5.0, 100)))["rows_per_s"] == 5.0


def test_a_whole_run_is_told_of_a_new_and_of_a_warm_session():
    runs = printed(outcome(1.0, 5, whole_s=9.0), outcome(1.0, 5, whole_s=4.0))
    figures = PARTS["whole"].figures(runs)
    assert (figures["new whole_s"], figures["warm whole_s"]) == (9.0, 4.0)
    assert (figures["new start_s"], figures["warm first_s"]) == (0.25, 0.5)


def test_small_batches_count_when_those_before_are_over():
    seconds = [9, 9, 3, 4, 5, 9, 9, 1, 2, 3]
    one = outcome(1.0)._replace(batches=[Batch(0, float(s)) for s in (*seconds, 8)])
    assert PARTS["small"].figures(printed(one)) == {"few_s": 4.0, "none_s": 2.0}


def test_a_ratio_is_over_the_best_base_there_is():
    found = {"a": {"x": 12.0}, "b": {"x": 3.0}, "c": {"x": 4.0}}
    assert Ratio("", "x", ("b", "c")).text("a", found) == "3.0"
    assert Ratio("", "x", ("a", "c"), min).text("b", found) == "1.3"
    assert Ratio("", "x", ("a", "c"), min, digits=2).text("b", found) == "1.33"
    assert Ratio("", "x", ("d",)).text("a", found) == ""
    assert medians([{"x": 1.0, "y": 6.0}, {"x": 5.0}, {"x": 2.0, "y": 4.0}]) == {"x": 2.0, "y": 4.0}


def test_speeds_of_other_results_are_not_compared():
    found = {"a": {"x": 12.0, "results": 7}, "b": {"x": 3.0, "results": 8}}
    assert Ratio("", "x", ("b",)).text("a", found) == "other results"
    assert Ratio("", "x", ("b",), alike=False).text("a", found) == "4.0"
    found["b"]["results"] = 7
    assert Ratio("", "x", ("b",)).text("a", found) == "4.0"


def test_topics_have_the_results_of_files():
    lines = [
        {"partitions": 2, "system": "joinengine", "results": 9},
        {"partitions": 2, "system": "joinengine, Parquet", "results": 9},
        {"partitions": 2, "system": "joinengine, Spark's Kafka source", "results": 5},
    ]
    kafka.check(lines)
    lines[1]["results"] = 10
    with pytest.raises(ClickException, match="2 partitions: the results differ"):
        kafka.check(lines)


def test_every_part_names_systems_that_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.parts.record", lambda *_: record_small(12))
    monkeypatch.setenv("JOINENGINE_HOME", str(tmp_path))
    for name, part in PARTS.items():
        commands = part.commands(0.1, lambda _: None)
        assert OURS in commands or f"{OURS}, hash" in commands, name
        for module, *arguments in commands.values():
            if module == "benchmarks.peers.systems":
                assert arguments[0] in SYSTEMS
                assert Job(**json.loads(arguments[1])).folder.startswith(str(tmp_path))
            if module == "benchmarks.latency":
                assert arguments[1] in latency.SYSTEMS


def test_the_report_keeps_parts_that_are_not_run_again(tmp_path, monkeypatch, capsys):
    rates = iter([30.0, 10.0, 60.0, 10.0, 45.0, 10.0, 99.0])
    monkeypatch.setattr(peers, "printed", lambda *_: printed(outcome(next(rates), 1, 1, 1, 90)))
    monkeypatch.setattr("benchmarks.peers.parts.record", lambda *_: record_small(12))
    monkeypatch.setenv("JOINENGINE_HOME", str(tmp_path))
    arguments = ["--quick", "--out", str(tmp_path), "--only"]
    peers.main([*arguments, "band", "--systems", f"{OURS},memory"], standalone_mode=False)
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(" joinen"))
    assert row.split() == ["joinengine", "0.000", "7", "4.5"]
    peers.main([*arguments, "wide", "--repeat", "1", "--systems", "x 20"], standalone_mode=False)
    parts = json.loads((tmp_path / "peers.json").read_text())["parts"]
    assert [run["rows_per_s"] for run in parts["band"]["runs"][OURS]] == [30.0, 60.0, 45.0]
    assert parts["band"]["size"] == 0.1
    assert list(parts["wide"]["runs"]) == [f"{OURS}, window x 20"]


def test_a_part_that_is_not_there_is_refused():
    assert named("whole, steady", PARTS) == ["steady", "whole"]
    assert named("", PARTS) == list(PARTS)
    with pytest.raises(UsageError, match="'stedy' is none of steady, large"):
        named("stedy", PARTS)
    for module, argument in ((nexmark, "q33"), (kafka, "flats")):
        with pytest.raises(UsageError, match=argument):
            module.main(["--only", argument], standalone_mode=False)


def test_small_batches_have_few_rows_then_none(tmp_path, monkeypatch):
    monkeypatch.setenv("JOINENGINE_HOME", str(tmp_path))
    stream = record_small(12)
    assert stream.batch_rows == (FEW,) * 6 + (0,) * 6
    for batch, rows in enumerate(stream.batch_rows):
        groups = [
            group
            for side in SIDES
            for group in RecordedFeed(f"{stream.folder}/{side}.json").row_groups(batch, batch + 1)
        ]
        assert sum(group.rows for group in groups) == rows
    orders, lineitem = (f"'{stream.side(side)}/*.parquet'" for side in SIDES)
    matched = duckdb.sql(
        f"select count(*) from {orders} join {lineitem} on o_orderkey = l_orderkey and o_ts = l_ts"
    )
    assert matched.fetchall() == [(6 * FEW * 4 // 5,)]


def test_right_files_match_left_files_that_came_before(tmp_path):
    prepare(tmp_path)
    send(tmp_path, rate=200, seconds=1)
    left, right = (sorted((tmp_path / side).glob("0*")) for side in ("left", "right"))
    assert (len(left), len(right)) == (10, 10 - BEHIND)
    for old, new in zip(left, right, strict=False):
        columns = pq.read_table(old).to_pydict(), pq.read_table(new).to_pydict()
        assert columns[0]["left_key"] == columns[1]["right_key"]
        assert len(columns[0]["left_key"]) == 10
        assert 0.3 < new.stat().st_ctime - old.stat().st_ctime < 3


def test_a_sender_is_on_time_from_its_first_file_on(tmp_path):
    prepare(tmp_path)
    command = [sys.executable, "-m", "benchmarks.latency.sending", tmp_path, "200", "1"]
    subprocess.run(command, check=True)
    first, later = (path_of(tmp_path / "left", n).stat().st_ctime for n in (0, 6))
    assert later - first > 0.3, "they are 0.6 s apart"


def test_a_result_counts_from_its_right_file_to_its_new_name(tmp_path):
    prepare(tmp_path)
    send(tmp_path, rate=200, seconds=1)
    (tmp_path / "out").mkdir()
    draft = tmp_path / "out" / ".draft"
    pq.write_table(pa.table({"right_key": np.arange(50)}), draft)
    time.sleep(0.2)
    draft.rename(tmp_path / "out" / "part-1")
    came = [path_of(tmp_path / "right", number).stat().st_ctime for number in range(5)]
    seen = (tmp_path / "out" / "part-1").stat().st_ctime
    assert seen - came[-1] > 0.15
    expected = np.repeat([seen - at for at in came], 10)
    assert latency._latencies(tmp_path, 10, 0).tolist() == expected.tolist()
    assert len(latency._latencies(tmp_path, 10, 20)) == 0, "all of it is warm"
    pq.write_table(pa.table({"right_key": np.arange(1)}), tmp_path / "out" / "part-2")
    with pytest.raises(ClickException, match="51 results of 50 tuples"):
        latency._latencies(tmp_path, 10, 0)


def test_spark_shows_results_with_the_log_of_its_sink(tmp_path):
    (tmp_path / "_spark_metadata").mkdir()
    for name in ("part-a", "part-b", "part-lost"):
        (tmp_path / name).touch()
    logged = [json.dumps({"path": f"file://{tmp_path}/part-{one}"}) for one in "ab"]
    log = tmp_path / "_spark_metadata"
    for name, lines in (("0", logged[:1]), ("1.compact", logged)):
        time.sleep(0.05)
        (log / name).write_text("\n".join(["v1", *lines]))
    seen = latency.visible(tmp_path)
    times = [(log / name).stat().st_ctime for name in ("0", "1.compact")]
    assert seen == {tmp_path / "part-a": times[0], tmp_path / "part-b": times[1]}
    assert MEMORY in latency.SYSTEMS
