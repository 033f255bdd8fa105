"""The benchmark of executors: what it makes of runs. The runs themselves need a cluster."""

from __future__ import annotations

import json

from benchmarks.workers import __main__ as workers


def measured(executors, *args):
    """Runs of one, two and four seconds of work a batch, of which the busiest has one."""
    for system in ("hash", "mnrt"):
        run = {"seconds": [1.5, 1.25, 9.0], "work_s": [4.0, 4.0, 1.0], "busiest_s": [1.0, 2.0, 1.0]}
        row = {"executors": executors, "work": "tuple", "system": system, "layout": True}
        yield row | {"fixed_s": 0.5} | workers._figures(run, executors)


def test_runs_are_told_drawn_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_measured", measured)
    arguments = ["--out", str(tmp_path), "--executors"]
    call = {"number": 1}
    monkeypatch.setattr(workers, "made_by", lambda: dict(call))
    workers.main([*arguments, "4,1"], standalone_mode=False)
    call["number"] = 2
    workers.main([*arguments, "2"], standalone_mode=False)
    rows = json.loads((tmp_path / "workers.json").read_text())["runs"]
    assert [row["executors"] for row in rows] == [1, 1, 2, 2, 4, 4]
    assert [row["made_by"]["number"] for row in rows] == [1, 1, 2, 2, 1, 1]
    last = rows[-1]
    assert (last["batch_s"], last["linear_s"], last["hottest_s"]) == (1.5, 1.0, 1.0)
    assert last["of_linear"] == 1.0 / 1.5
    assert (tmp_path / "workers.png").stat().st_size > 10_000
    workers.main([*arguments, "2", "--zipf", "0.5"], standalone_mode=False)
    rows = json.loads((tmp_path / "workers.json").read_text())["runs"]
    assert [row["executors"] for row in rows] == [2, 2], "others have other settings"
