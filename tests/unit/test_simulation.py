"""Workloads have their stated loads, and candidate layouts behave as the papers prove."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from joinengine.lab.cli import cli
from joinengine.lab.simulation.candidate_layouts import METHODS, Setting, SpaceSaving, play
from joinengine.lab.simulation.key_files import StreamFile
from joinengine.lab.simulation.planning import Sizes, replay
from joinengine.lab.simulation.workload import Workload, fluctuate, sources_of
from joinengine.layouts import Hash, MinMig, Mixed, Mnrt, Qmmp
from joinengine.layouts.candidates import candidates, least_degree
from joinengine.layouts.choices import fill
from joinengine.model.errors import InvalidRequest
from joinengine.routing.base_functions import BASES, Modulo, Ranges, Ring


def zipf_messages(p1, n, seed=0):
    """(n,) messages whose top key has the part `p1`, the others alike and light."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n) < p1, 0, rng.integers(1, n // 10, n))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("f", [0.1, 0.5, 1.0])
def test_fluctuation_changes_one_load_by_f_means(base, f):
    workload = Workload(keys=5000, fluctuation=f)
    chosen = BASES[base](15)
    stream = workload.intervals(chosen)
    hashes, before = next(stream)
    homes = chosen.homes(hashes)
    for _ in range(5):
        _, after = next(stream)
        loads = [np.bincount(homes, x, minlength=15) for x in (before, after)]
        assert np.abs(loads[1] - loads[0]).max() >= f * before.sum() / 15
        assert sorted(after) == pytest.approx(sorted(before))
        before = after


def test_a_fluctuation_that_cannot_be_is_refused():
    loads = np.ones(100)
    with pytest.raises(InvalidRequest, match=r"fluctuation: expected at most .*, found 1\.0"):
        fluctuate(loads, np.arange(100) % 5, 5, 1.0, np.random.default_rng(0))


@pytest.mark.parametrize(("shape", "p1", "keys"), [("ln1", 0.1471, 16_400), ("ln2", 0.0701, 1_110)])
def test_lognormal_streams_are_those_of_the_paper(shape, p1, keys):
    """Table I of Nasir et al.: 14.71 % and 16.4 k keys, 7.01 % and 1.11 k, in 10 M messages."""
    messages = Workload(shape=shape).messages(10_000_000)
    _, counts = np.unique(messages, return_counts=True)
    assert counts.max() / len(messages) == pytest.approx(p1, rel=0.01)
    assert len(counts) == pytest.approx(keys, rel=0.05)


def test_a_ring_moves_keys_only_to_the_instance_that_joins():
    hashes = Workload().hashes(200_000)
    for n in (4, 15, 64):
        before, after = Ring(n).homes(hashes), Ring(n + 1).homes(hashes)
        moved = before != after
        assert set(after[moved].tolist()) == {n}
        # What stays is N/(N+1), within three standard deviations of the cells' shares.
        stays, expected = 1 - moved.mean(), n / (n + 1)
        spread = np.sqrt(expected * (1 - expected) / (128 * (n + 1)) * 2)
        assert abs(stays - expected) < 3 * spread


def test_cells_move_half_and_not_far():
    hashes = Workload().hashes(20_000)
    before, after = Ranges(15).homes(hashes), Ranges(16).homes(hashes)
    assert 0.4 < (before != after).mean() < 0.6
    assert set((after.astype(int) - before).tolist()) == {0, 1}
    assert (np.diff(before.astype(int)) >= 0).all(), "neighbours live together"
    loads = np.bincount(before, minlength=15)
    assert loads.max() < 1.15 * loads.mean()


def test_modulo_moves_almost_all():
    hashes = Workload().hashes(10_000)
    assert (Modulo(15).homes(hashes) != Modulo(16).homes(hashes)).mean() > 0.9


@given(level=st.lists(st.floats(0, 1000), min_size=1, max_size=9), tuples=st.integers(0, 5000))
def test_filling_levels_the_lowest(level, tuples):
    levels = np.array(level)
    shares = fill(levels, tuples)
    assert shares.sum() == tuples
    assert (shares >= 0).all()
    if tuples:
        filled = levels + shares
        # An instance that gets a tuple ends within one of the exact level, and none ends lower.
        assert filled[shares > 0].max() < filled.min() + 2


@pytest.mark.parametrize(
    ("level", "tuples", "shares"),
    [
        ([2.0**60, 2.0**60], 100, [50, 50]),
        ([2.0**60, 2.0**60 + 512], 100, [100, 0]),
        ([0.0, 2.0**60, 0.0], 101, [51, 0, 50]),
    ],
)
def test_filling_loses_no_tuple_at_great_levels(level, tuples, shares):
    assert fill(np.array(level), tuples).tolist() == shares


def test_candidates_do_not_depend_on_what_else_there_is():
    hashes = np.arange(1000, dtype=np.uint64)
    two, five = candidates(hashes, 2, 50), candidates(hashes, 5, 50)
    assert (five[:, :2] == two).all()
    assert abs(np.bincount(two.ravel(), minlength=50).std()) < 12


@pytest.mark.parametrize(("workers", "expected"), [(50, 0.0266), (100, 0.0366)])
def test_two_choices_break_where_the_top_key_is_more_than_two_shares(workers, expected):
    """p1 = 9.32 %, the stream WP of Nasir et al.: I(m)/m = p1/2 - 1/W."""
    keys = zipf_messages(0.0932, 50_000)
    report = play("pkg", keys, np.zeros(len(keys), int), Setting(workers))
    assert report["relative_imbalance"] == pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize(("workers", "expected"), [(50, 0.0732), (100, 0.0832)])
def test_off_greedy_breaks_where_it_is_more_than_one(workers, expected):
    keys = zipf_messages(0.0932, 50_000)
    report = play("off-greedy", keys, np.zeros(len(keys), int), Setting(workers))
    assert report["relative_imbalance"] == pytest.approx(expected, abs=0.002)


def test_two_choices_are_level_where_the_top_key_is_light():
    keys = zipf_messages(0.0932, 50_000)
    pkg, one = (
        play(method, keys, np.zeros(len(keys), int), Setting(5)) for method in ("pkg", "hash")
    )
    assert pkg["final_imbalance"] < 5
    assert one["final_imbalance"] > 1000


@pytest.mark.parametrize("sources", [1, 5, 10, 20])
@pytest.mark.parametrize("by_key", [False, True])
def test_imbalance_is_at_most_the_sum_of_the_sources(sources, by_key):
    """Section 3.2 of Nasir et al.: a hard law of local estimates."""
    keys = Workload(keys=2000, zipf=1.0).messages(20_000)
    report = play("pkg", keys, sources_of(len(keys), sources, by_key=by_key), Setting(10, sources))
    assert report["final_imbalance"] <= sum(report["source_imbalances"]) + 1e-6


def test_wide_heads_level_what_two_choices_cannot():
    keys = Workload(keys=10_000, zipf=1.5).messages(50_000)
    none = np.zeros(len(keys), int)
    found = {m: play(m, keys, none, Setting(50)) for m in ("pkg", "d-choices", "w-choices")}
    assert found["pkg"]["relative_imbalance"] > 0.1
    assert found["d-choices"]["relative_imbalance"] < 0.02
    assert found["w-choices"]["relative_imbalance"] < 0.02
    assert found["w-choices"]["counters"] > found["pkg"]["counters"]


def test_a_head_of_nothing_needs_two_choices():
    assert least_degree([], 50) == 2
    assert least_degree([0.3, 0.1], 50) > 15


def test_space_saving_is_never_too_low():
    keys = Workload(keys=5000, zipf=1.2).messages(20_000).tolist()
    summary = SpaceSaving(50)
    for key in keys:
        summary.add(key)
    for key, count in summary.counts.items():
        assert keys.count(key) <= count <= keys.count(key) + len(keys) / 50


@pytest.mark.parametrize("choice", [Mixed(), MinMig(), Qmmp(), Mnrt()], ids=lambda c: c.name)
def test_replayed_planners_keep_the_balance(choice):
    workload = Workload(keys=2000, zipf=0.6, fluctuation=0.5)
    report = replay(choice, workload, Sizes(10, 20, 5))
    assert report["mean"]["imbalance_before"] > 2 * choice.imbalance
    assert report["mean"]["imbalance_after"] <= choice.imbalance + 0.02
    assert report["mean"]["migration_cost"] > 0
    nothing = replay(Hash(), workload, Sizes(10, 20, 5))
    assert nothing["replans"] == 0
    assert nothing["mean"]["imbalance_after"] > report["mean"]["imbalance_after"]


@pytest.mark.parametrize("choice", [Mixed(), Qmmp(), Mnrt()], ids=lambda c: c.name)
def test_a_stationary_stream_does_not_flap(choice):
    """200 intervals of the same skew: one plan, and then nothing."""
    assert replay(choice, Workload(keys=2000), Sizes(10, 200, 5))["replans"] <= 2


def test_the_command_shows_planners_and_choices(tmp_path):
    done = CliRunner().invoke(
        cli,
        [
            *("simulate", "mixed", "mnrt", *[m for m in METHODS if m != "hash"]),
            *("--keys", "500", "--intervals", "5", "--fluctuation", "0.5", "--messages", "20000"),
            *("--sources", "3", "--json", str(tmp_path / "s.json")),
        ],
    )
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "s.json").read_text())
    assert len(report["runs"]) == 1 + len(METHODS)
    assert (tmp_path / "s.png").stat().st_size > 10_000


def test_exponents_change_in_turn():
    workload = Workload(keys=500, rows=1000, phases=((0.2, 2), (1.5, 1)))
    stream = workload.intervals(Modulo(5))
    tops = [next(stream)[1] for _ in range(6)]
    light, heavy = (
        1000 * x[0] / x.sum() for x in (np.arange(1.0, 501) ** -0.2, np.arange(1.0, 501) ** -1.5)
    )
    assert [t.max() for t in tops] == pytest.approx([light, light, heavy] * 2)
    assert len({int(t.argmax()) for t in tops}) == 1, "the same key is the heaviest"
    messages = workload.messages(6000)
    parts = [(messages[i : i + 1000] == 0).mean() for i in range(0, 6000, 1000)]
    assert max(parts[0], parts[1], parts[3], parts[4]) < 0.05
    assert min(parts[2], parts[5]) > 0.3


LINES = ["a", "b", "a", "a", "c", "b", "a", "d"]


@pytest.mark.parametrize("kind", ["txt", "csv", "parquet"])
def test_a_stream_of_ones_own(kind, tmp_path):
    file = tmp_path / f"keys.{kind}"
    if kind == "txt":
        file.write_text("\n".join(LINES) + "\n")
    elif kind == "csv":
        file.write_text("\n".join(["n,word", *(f"{i},{w}" for i, w in enumerate(LINES))]))
    else:
        pq.write_table(pa.table({"n": range(8), "word": LINES}), file)
    stream = StreamFile(file, None if kind == "txt" else "word", rows=3)
    counts = [sorted(c.tolist()) for _, c in stream.intervals(Modulo(2))]
    assert counts == [[1, 2], [1, 1, 1], [1, 1]]
    hashes = [set(h.tolist()) for h, _ in stream.intervals(Modulo(2))]
    assert len(hashes[0] | hashes[1] | hashes[2]) == 4
    assert len(hashes[0] & hashes[1]) == 2
    report = replay(Mnrt(imbalance=0.0, min_gain=0.0), stream, Sizes(2, 9, 2))
    assert len(report["intervals"]) == 3
    assert report["intervals"][1]["report_bytes"] == 24 * 3


def test_streams_of_ones_own_are_checked(tmp_path):
    (tmp_path / "keys.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidRequest, match=r"key: column 'c' is not in .*; its columns are a, b"):
        StreamFile(tmp_path / "keys.csv", "c")
    with pytest.raises(InvalidRequest, match=r"stream: .* does not exist"):
        StreamFile(tmp_path / "none.csv")
    (tmp_path / "empty.json").write_text("{}")
    for arguments, message in [
        (["--zipf", "much"], "zipf: expected an exponent such as 0.85, or several in turn"),
        (
            ["--zipf", "1:0"],
            "zipf: expected an exponent of 0 or more and at least 1 interval, found 1:0",
        ),
        (
            ["--work-per-tuple", "-1 s"],
            "work-per-tuple: expected a duration of 0 or more, found -1 s",
        ),
        (
            ["--stream", str(tmp_path / "keys.csv"), "--drift", "0.5"],
            "drift: 0.5 applies to generated loads, not to --stream",
        ),
        (
            ["--stream", str(tmp_path / "keys.csv"), "--zipf", "0.85"],
            "zipf: 0.85 applies to generated loads, not to --stream",
        ),
        (["--stream", str(tmp_path / "empty.json")], "empty.json has no columns; give one with"),
        (["--json", "/proc/none/a.json"], "--json: /proc/none cannot be created"),
        (["--json", str(tmp_path / "a.png")], "--figure: .*a.png is the file of --json, too"),
        (["--figure", "a.abc"], "--figure: expected a file with one of the suffixes .*, found"),
        (["--nodes", "1", "--tail", "inf"], "tail: expected a factor of 1 or more, .* found inf"),
        (["--zipf", "inf"], "zipf: expected"),
    ]:
        done = CliRunner().invoke(cli, ["simulate", "mixed", *arguments])
        assert isinstance(done.exception, InvalidRequest), done.output
        assert re.search(message, str(done.exception))


def test_reports_in_two_stages_are_short_where_loads_are_level():
    level = replay(Mixed(), Workload(keys=1000, zipf=0.0), Sizes(5, 20, 5))
    assert level["statistics_bytes"]["raw"] == 24_000
    assert level["statistics_bytes"]["two_stage"] < 0.2 * 24_000
    skewed = replay(Hash(), Workload(keys=1000, zipf=1.0), Sizes(5, 20, 5))
    assert skewed["statistics_bytes"]["two_stage"] == 8 * 5, "who plans nothing asks for nothing"
    light = replay(Mixed(degree=4), Workload(keys=10_000, rows=200_000), Sizes(5, 3, 1))
    assert light["statistics_bytes"]["compact"] < light["statistics_bytes"]["raw"] / 4


def test_rates_are_modelled_from_the_busiest_instance():
    """1 ms a tuple on 5 instances: 5,000 tuples/s if loads are level, else less by the skew."""
    workload = Workload(keys=1000, zipf=1.0)
    for choice in (Hash(), Mixed()):
        report = replay(choice, workload, Sizes(5, 3, 1, work_s=1e-3))
        skew = 1 + report["intervals"][1]["imbalance_before"]
        assert report["modelled_rows_per_s"] == pytest.approx(5000 / skew)
    keys = workload.messages(5000)
    for operator, rate in (("aggregate", 5000), ("join", 1000)):
        setting = Setting(5, work_s=1e-3, operator=operator)
        played = play("shuffle", keys, np.zeros(5000, int), setting)
        assert played["modelled_rows_per_s"] == pytest.approx(rate)


def test_a_split_key_costs_its_probes_at_saturation():
    workload = Workload(keys=1000, zipf=2.0)
    report = replay(Mnrt(), workload, Sizes(5, 2, 1, work_s=1e-3))
    row = report["intervals"][-1]
    assert row["split_keys"] > 0
    assert row["probe_copies"] > 0
    assert report["modelled_rows_per_s"] < 5000 / (1 + row["imbalance_before"])


def test_a_rate_is_of_all_rows_in_all_the_time_of_what_intervals_met():
    """It was a mean of rates, each under the plan that had just been made for its interval."""
    workload = Workload(keys=200, zipf=1.0, drift=0.5)
    report = replay(Mixed(), workload, Sizes(5, 6, 1, work_s=1e-3))
    met = report["intervals"][1:]
    seconds = sum(row["rows"] / 5 * (1 + row["imbalance_before"]) for row in met) * 1e-3
    rate = sum(row["rows"] for row in met) / seconds
    assert report["modelled_rows_per_s"] == pytest.approx(rate)


def test_planners_and_choices_are_charged_alike():
    """One key, two places: a join delivers each of its tuples twice, whoever split it."""
    workload = Workload(keys=1, rows=10_000)
    keys = workload.messages(10_000)
    keys = keys + next(k for k in range(99) if len(set(candidates(np.uint64([k]), 2, 2)[0])) == 2)
    for operator, rate in (("join", 1000), ("aggregate", 2000)):
        planner = Qmmp(imbalance=0.0, min_gain=0.0)
        report = replay(planner, workload, Sizes(2, 2, 1, 1e-3, operator))
        assert report["modelled_rows_per_s"] == pytest.approx(rate, rel=0.01)
        for method in ("pkg", "d-choices", "w-choices", "shuffle"):
            setting = Setting(2, work_s=1e-3, operator=operator)
            played = play(method, keys, np.zeros(len(keys), int), setting)
            assert played["modelled_rows_per_s"] == pytest.approx(rate, rel=0.01), method
        for method in ("hash", "potc", "on-greedy"):  # all of the key at one place
            played = play(method, keys, np.zeros(len(keys), int), setting)
            assert played["modelled_rows_per_s"] == pytest.approx(1000)


def test_a_join_probes_what_any_source_stores():
    """Greedy sources choose homes on their own: a tuple looks for its key at all of them."""
    keys = Workload(keys=50, zipf=0.0).messages(5000)
    rates = [
        play("potc", keys, sources_of(5000, sources, by_key=False), Setting(5, sources, work_s=1.0))
        for sources in (1, 20)
    ]
    assert rates[1]["replication"] > 1.5 > rates[0]["replication"] == 1
    assert rates[1]["modelled_rows_per_s"] < rates[0]["modelled_rows_per_s"] / 1.3


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Sizes(2, 1, 1, 0.0, "sort"), "operator"),
        (lambda: Setting(2, operator="sort"), "operator"),
        (lambda: Setting(2, estimate="sort"), "estimate"),
        (lambda: Workload(shape="sort"), "shape"),
    ],
)
def test_an_unknown_word_is_refused(make, what):
    with pytest.raises(InvalidRequest, match=f"{what}: 'sort' is unknown; choose one of"):
        make()


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_is_of_32_bits(seed):
    done = CliRunner().invoke(cli, ["simulate", "pkg", "mnrt", "--seed", str(seed)])
    assert done.exit_code == 2
    assert f"{seed} is not in the range 0<=x<=4294967295" in done.output


def test_unknown_planners_are_refused():
    done = CliRunner().invoke(cli, ["simulate", "magic"])
    assert isinstance(done.exception, InvalidRequest)
    assert "found 'magic'" in str(done.exception)


@pytest.mark.filterwarnings("error")
def test_a_number_of_sources_is_refused_before_messages_are_dealt():
    done = CliRunner().invoke(cli, ["simulate", "pkg", "--sources", "0", "--messages", "10"])
    assert isinstance(done.exception, InvalidRequest)
    assert str(done.exception) == "sources: expected at least 1, found 0"
