"""The queries of Nexmark, and skewed-join, against DuckDB."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from joinengine.lab.queries import QUERIES, Options
from joinengine.lab.queries.runs import Places, run
from joinengine.layouts import choose

pytestmark = pytest.mark.spark

SECOND = 1_000_000


@pytest.fixture
def options(tmp_path_factory, monkeypatch):
    home = tmp_path_factory.getbasetemp() / "home"
    monkeypatch.setenv("JOINENGINE_HOME", str(home))
    return Options(scale=0.002, rate=500.0, disorder_us=SECOND, instances=5)


def validated(spark, query, options, **changes):
    changed = replace(options, **changes)
    report = run(spark, QUERIES[query], changed, Places(), validate=True)
    assert report["valid"] is True
    assert report["output_rows"] > 20
    assert report["late_rows"] == 0
    return report


def layouts(*names, others=()):
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in others]
    return pytest.mark.parametrize("layout", [*names, *slow])


@layouts("auto", others=("hash", "mnrt", "bi"))
def test_q3(spark, options, layout):
    report = validated(spark, "nexmark-q3", options, layout=choose(layout), interval_rows=400)
    assert report["input_rows"] == 400 + 1200
    assert (report["zipf"], report["query"]) == (None, "nexmark-q3")


@layouts("mnrt", others=("hash", "dynamic", "auto"))
def test_q8(spark, options, layout):
    report = validated(spark, "nexmark-q8", options, layout=choose(layout), interval_rows=200)
    assert report["expired_rows"] > 0


@layouts("dynamic", others=("hash", "mnrt", "auto"))
def test_q9_join(spark, options, layout):
    report = validated(spark, "nexmark-q9-join", options, layout=choose(layout), interval_rows=4000)
    assert report["expired_rows"] > 0


@layouts("hash", others=("mnrt", "dynamic", "auto"))
def test_q20(spark, options, layout):
    report = validated(spark, "nexmark-q20", options, layout=choose(layout), interval_rows=5000)
    assert report["input_rows"] == 1200 + 18_400


@layouts("mnrt", others=("hash", "dynamic", "auto"))
def test_q23(spark, options, layout):
    report = validated(spark, "nexmark-q23", options, layout=choose(layout), interval_rows=5000)
    assert len(report["joins"]) == (1 if choose(layout).meets_all else 2)


def test_a_lasting_hot_auction_is_divided(spark, options):
    lasting = {"zipf": 1.5, "shift_us": 30 * SECOND, "interval_rows": 2000}
    report = validated(spark, "nexmark-q20", options, layout=choose("mnrt"), **lasting)
    assert report["zipf"] == 1.5
    assert report["batches"][-1]["split_keys"] > 0


@layouts("mnrt", others=("hash", "dynamic", "auto"))
def test_skewed_join(spark, options, layout):
    report = validated(
        spark, "skewed-join", replace(options, rate=None), layout=choose(layout), interval_rows=1500
    )
    # Each skewed row has one partner, among the 2,000 of the other side.
    assert report["output_rows"] == report["input_rows"] - 2000


def test_the_command_runs_and_refuses(joinengine, tmp_path):
    path = tmp_path / "run.json"
    small = ("--scale", 0.0005, "--instances", 3)
    done = joinengine("run", "nexmark-q20", "--validate", *small, "--json", path)
    assert json.loads(path.read_text())["valid"] is True
    assert "zipf" not in done.stdout
    done = joinengine("run", "nexmark-q8", "--zipf", 1, *small, code=2)
    assert "zipf: nexmark-q8 joins rows that are near in time" in done.stderr
    done = joinengine("queries")
    assert "nexmark-q9-join" in done.stdout
