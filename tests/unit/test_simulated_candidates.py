"""Candidate layouts and planners of `simulate` are judged on the same rows, and alike."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from joinengine.lab.cli import cli
from joinengine.lab.simulation import planner_runs, planning
from joinengine.lab.simulation.advice import verdict
from joinengine.lab.simulation.key_files import StreamFile
from joinengine.lab.simulation.planner_runs import _choose
from joinengine.lab.simulation.planning import Other, Served, Sizes, replay
from joinengine.lab.simulation.workload import Workload
from joinengine.layouts import Hash, Mnrt
from joinengine.model.errors import InvalidRequest
from tests.unit.own_streams import simulate, table, write


def test_an_aggregate_has_one_stream(tmp_path, monkeypatch):
    """Planners were charged for the other side of a join, and for its probes."""
    sizes = Sizes(8, 4, 2, other=Other.EVEN, operator=Served.AGGREGATE)
    report = verdict(replay(Mnrt(), Workload(keys=500, zipf=1.5), sizes))
    assert report.deliveries == pytest.approx(1)
    hot = verdict(replay(Hash(), Workload(keys=1, rows=1000), sizes))
    assert hot.busiest == pytest.approx(8), "an even other side would be level"
    monkeypatch.setattr(planning, "probe_copies", lambda *_: np.full(8, 1e6))
    probed = [replay(Hash(), Workload(), replace(sizes, operator=served)) for served in Served]
    assert [verdict(one).deliveries for one in probed] == pytest.approx([9, 1])
    write(tmp_path / "in", "parquet", table())
    asked = ("mnrt", "--stream", tmp_path / "in", "--key", "user", "--operator", "aggregate")
    assert "other stream" not in simulate(*asked)
    with pytest.raises(InvalidRequest, match="other: even applies to a join, and --operator aggr"):
        simulate(*asked, "--other", "even")


def chosen(stream, **settings):
    defaults = {"instances": 4, "sources": 1, "estimate": "local", "probe_every": 10**6, "seed": 0}
    defaults |= {"choices": 2, "operator": "join", "other": "same", "base": None, "messages": 10**6}
    return _choose("potc", stream, defaults | {"skewed_sources": False} | settings, 0.0)


def test_planners_and_candidates_are_judged_on_the_same_rows(tmp_path):
    """A key of its own is hot in each interval: totals are level, and batches are not."""
    keys = [key for interval in range(8) for key in [interval] * 100]
    pq.write_table(pa.table({"k": keys}), tmp_path / "in.parquet")
    stream = StreamFile(tmp_path / "in.parquet", "k", rows=100)
    report = chosen(stream, intervals=stream.length)
    assert [row["rows"] for row in report["intervals"]] == [100.0] * 8
    assert verdict(report).busiest == verdict(replay(Hash(), stream, Sizes(4, 8, 1))).busiest == 4
    part = chosen(stream, intervals=stream.length, messages=80)
    assert [row["rows"] for row in part["intervals"]] == [10.0] * 8, "evenly from all intervals"
    output = simulate("pkg", "--stream", tmp_path / "in.parquet", "--rows", 100, "--messages", 160)
    assert "pkg: judged on 80 of 800 rows, drawn evenly from all intervals" in output
    assert "judged on" not in simulate("pkg", "--stream", tmp_path / "in.parquet")


def test_candidates_meet_what_changes_in_a_load():
    rows = {"keys": 50, "rows": 2_000}
    phases = Workload(**rows, phases=((0.0, 1), (3.0, 1)))
    light, heavy = (row["busiest"] for row in chosen(phases, intervals=2)["intervals"])
    assert heavy > 2 * light
    still, drifting = (Workload(**rows, zipf=3.0, drift=part) for part in (0.0, 1.0))
    busiest = [
        [row["busiest"] for row in chosen(load, intervals=6)["intervals"]]
        for load in (still, drifting)
    ]
    assert max(busiest[0]) < 1.01 * min(busiest[0])
    assert max(busiest[1]) > 1.01 * min(busiest[1])
    seeds = {
        tuple(chosen(Workload(seed=s, rows=2_000), intervals=1, seed=s)["keys_per_instance"])
        for s in (0, 1)
    }
    assert len(seeds) == 2, "--seed draws other keys"


def test_each_source_sends_tuples_of_both_sides(monkeypatch):
    given = []
    monkeypatch.setattr(planner_runs, "play", lambda *arguments: given.append(arguments) or {})
    chosen(Workload(keys=100, zipf=3.0, rows=4000), intervals=1, sources=2, other="even")
    _, keys, sources, *_ = given[0]
    hot = Counter(keys.tolist()).most_common(1)[0][0]
    shares = [(keys[sources == source] == hot).mean() for source in (0, 1)]
    assert shares[0] == pytest.approx(shares[1], abs=0.05)


@pytest.mark.parametrize("shape", ["zipf", "ln1"])
def test_the_even_side_has_keys_that_exist(shape, monkeypatch):
    given = []
    monkeypatch.setattr(planner_runs, "play", lambda *arguments: given.append(arguments) or {})
    load = Workload(keys=100, rows=20_000, shape=shape)
    chosen(load, intervals=1, other="even")
    stream, even = given[0][1][::2], given[0][1][1::2]
    assert set(even.tolist()) <= set(stream.tolist())
    counts = Counter(even.tolist()).values()
    assert max(counts) - min(counts) <= 1


def test_a_setting_that_no_layout_has_is_refused():
    with pytest.raises(
        InvalidRequest, match=r"imbalance: 0\.2 applies to none of hash, pkg; leave"
    ):
        simulate("hash", "pkg", "--imbalance", 0.2)
    with pytest.raises(InvalidRequest, match=r"beta: 1\.0 applies to none of hash; "):
        simulate("hash", "--nodes", 1, "--beta", 1)
    with pytest.raises(InvalidRequest, match="estimate: global applies to none of hash, mnrt; "):
        simulate("hash", "mnrt", "--estimate", "global")
    simulate("hash", "mnrt", "--imbalance", 0.2, "--keys", 100, "--intervals", 2)


def test_ctrl_c_leaves_what_has_ended(tmp_path, monkeypatch):
    def played(name, *_):
        raise KeyboardInterrupt

    monkeypatch.setattr(planner_runs, "_choose", played)
    asked = ["simulate", "mnrt", "pkg", "hash", "--keys", "100", "--intervals", "2"]
    done = CliRunner().invoke(cli, [*asked, "--json", str(tmp_path / "r.json")])
    assert done.exit_code == 130
    assert "stopped on Ctrl-C after 1 of 3 layouts" in done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert [run["planner"] for run in report["runs"]] == ["mnrt"]


def test_the_first_column_is_text_too(tmp_path):
    """Without --key: what looks like a number in the first block may be none in the last."""
    lines = [*(f"{i:05d},1" for i in range(200_000)), "none,1"]
    (tmp_path / "in.csv").write_text("\n".join(["k,v", *lines]))
    stream = StreamFile(tmp_path / "in.csv")
    assert stream.tuples == 200_001
    assert stream.hottest(1)[0].key in {line.split(",")[0] for line in lines}
