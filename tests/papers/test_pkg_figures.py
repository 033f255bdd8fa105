"""What the figures on partial key grouping are made of, against plain loops."""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np
import pytest

from benchmarks.papers import figures
from benchmarks.papers.figure import PAPERS, Figure
from benchmarks.papers.figures import p001_06, p001_10, p001_table1, p001_table3, p001_text
from benchmarks.papers.pkg_streams import DATA_SETS, WEEKS, stream
from joinengine.lab.simulation.candidate_layouts import Setting, decide, play

OURS = [name for _, name, _ in pkgutil.iter_modules(figures.__path__) if name.startswith("p001_")]


def test_the_figures_are_those_of_the_paper():
    made = [importlib.import_module(f"benchmarks.papers.figures.{name}").FIGURE for name in OURS]
    assert all(isinstance(one, Figure) for one in made)
    names = {one.name.removeprefix("001-") for one in made}
    assert names == {*"3 4 5 6 7 8 9 10 table1 table2 table3 text".split()}
    assert "001" in PAPERS
    assert sum(one.minutes for one in made) <= 15


SMALL = {name: data for name, data in DATA_SETS.items() if name not in p001_table1.DRAWN}


@pytest.mark.parametrize(
    "data_sets", [SMALL, pytest.param(DATA_SETS, marks=pytest.mark.slow)], ids=["small", "all"]
)
def test_streams_stand_in_for_the_data_sets(data_sets, monkeypatch):
    monkeypatch.setattr(p001_table1, "DATA_SETS", data_sets)
    made = p001_table1.make(lambda line: None)
    assert [one.stated.partition(":")[0] for one in made.findings] == list(data_sets)
    assert all(one.holds for one in made.findings)


def test_the_popular_tickers_change():
    weeks = np.array_split(stream("CT", 200_000), WEEKS)
    tops = {tuple(np.argsort(-np.bincount(week))[:5]) for week in weeks}
    assert len(tops) > 1


@pytest.mark.parametrize("period_s", [None, 0.5])
def test_the_latency_of_a_queue(period_s):
    rng = np.random.default_rng(3)
    n, delay_s = 300, 0.004
    keys, homes = rng.integers(0, 9, n), rng.integers(0, 2, n)
    at = np.sort(rng.random(n)) * 1.2
    total = 0.0
    for worker in range(2):
        free, seen, sends = 0.0, set(), 1
        for key, arrival in zip(keys[homes == worker], at[homes == worker], strict=True):
            while period_s is not None and sends * period_s < min(arrival, at[-1]):
                free = max(free, sends * period_s) + len(seen) * p001_table3.SEND_S
                seen, sends = set(), sends + 1
            free = max(free, arrival) + delay_s
            seen.add(key)
            total += free - arrival
    found = p001_table3._latency_ms(keys, homes, at, delay_s, period_s)
    assert found == pytest.approx(1000 * total / n)
    assert found > 1000 * delay_s, "some wait"


def test_sources_limit_the_throughput():
    """What 18.4 % of the messages at one of ten workers make of 8 level ones at 63 %."""
    rates = {"PKG": 8.0, "SG": 8.0, "KG": 1 / 0.184}
    runs = {name: [p001_10.Ran(10 * x, 1), p001_10.Ran(x, 1)] for name, x in rates.items()}
    limited = p001_10._limited(runs)
    assert limited["PKG"] == limited["SG"] == pytest.approx([8 / 0.63, 8])
    assert limited["KG"] == pytest.approx([8 / 0.63, 1 / 0.184])
    found = p001_10._by_delay(runs)
    assert found.holds
    assert found.found == "PKG -37 %, SG -37 %, KG -57 %"
    level = runs | {"KG": runs["SG"]}
    assert not p001_10._by_delay(level).holds


def test_decisions_that_differ():
    keys = stream("CT", 2000)
    assert p001_06._apart(keys, 1) == 0, "a source that is alone knows all"
    assert 0.05 < p001_06._apart(keys, 5) < 0.95


def test_decisions_are_those_of_the_figures():
    keys, sources = stream("WP", 2000), np.arange(2000) % 3
    decided = decide("pkg", keys, sources, Setting(7, 3))
    report = play("pkg", keys, sources, Setting(7, 3))
    assert report["counters"] == len(set(zip(keys.tolist(), decided.homes.tolist(), strict=True)))
    assert decided.total == np.bincount(decided.homes, minlength=7).tolist()
    assert report["imbalance"] == decided.imbalance


def test_what_is_stated_without_a_figure(monkeypatch):
    monkeypatch.setattr(p001_text, "stream", lambda name: stream(name, 200_000))
    (found,) = p001_text.overload()
    assert found.holds
