"""Skewed TPC-H streams: exact frequencies, one arrival sequence, the same for ever."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine.lab.queries import QUERIES, Options
from joinengine.lab.tpch import generate
from joinengine.lab.tpch.generate import build_once, tables
from joinengine.lab.tpch.skew import FOREIGN_KEYS, ZipfKeys, shuffled, uniform, zipf_probabilities
from joinengine.lab.tpch.stream import (
    EPOCH_US,
    RecordedStream,
    StreamSpec,
    arrivals,
    time_column,
)
from joinengine.model.errors import InvalidRequest

EQ5 = ("region", "nation", "supplier", "lineitem")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.setenv("JOINENGINE_HOME", str(folder))
        yield folder


def spec(**changes):
    settings = {"tables": EQ5, "facts": ("lineitem",), "scale": 0.002} | changes
    return StreamSpec(**settings)


def column(recorded, table, name):
    files = sorted((recorded.folder / table).glob("*.parquet"))
    return np.concatenate([pq.read_table(f, columns=[name]).column(0).to_numpy() for f in files])


@pytest.mark.parametrize("z", [0.0, 0.8, 1.0, 1.5, 3.0])
def test_measured_frequencies_agree_with_theory(z):
    """Chi-square over the ranks: within five standard deviations of its mean."""
    keys = np.arange(1000, 1200)
    draws = ZipfKeys.over(keys, z, "l_suppkey", seed=3).draw(np.arange(200_000))
    found = np.sort(np.unique(draws, return_counts=True)[1])[::-1]
    expected = zipf_probabilities(200, z) * 200_000
    enough = expected >= 10
    padded = np.zeros(200)
    padded[: len(found)] = found
    # Sorting by count only exchanges ranks of nearly equal expectation.
    chi2 = ((padded - expected)[enough] ** 2 / expected[enough]).sum()
    degrees = enough.sum() - 1
    assert chi2 < degrees + 5 * np.sqrt(2 * degrees) + 5


def test_zipf_is_exact():
    assert zipf_probabilities(3, 1.0).tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert zipf_probabilities(4, 0.0).tolist() == [0.25] * 4
    with pytest.raises(
        InvalidRequest, match=r"zipf: expected an exponent of 0 or more, found -0\.5"
    ):
        zipf_probabilities(3, -0.5)


def test_draws_depend_on_the_row_alone():
    """Any piece of a table gets the same keys, whichever process draws it."""
    zipf = ZipfKeys.over(np.arange(50), 1.2, "o_custkey", seed=9)
    whole = zipf.draw(np.arange(1000))
    pieces = [zipf.draw(np.arange(a, a + 125)) for a in range(0, 1000, 125)]
    assert np.concatenate(pieces).tolist() == whole.tolist()
    assert (
        whole != ZipfKeys.over(np.arange(50), 1.2, "o_custkey", seed=8).draw(np.arange(1000))
    ).mean() > 0.5


def test_hot_keys_are_not_neighbours_by_accident():
    hottest = [
        ZipfKeys.over(np.arange(1000), 1.0, "l_suppkey", seed).keys[:3].tolist()
        for seed in range(20)
    ]
    assert len({tuple(keys) for keys in hottest}) == 20
    gaps = [abs(keys[0] - keys[1]) for keys in hottest]
    assert np.median(gaps) > 50


def test_uniform_and_shuffled():
    draws = uniform(1, "x", np.arange(100_000))
    assert 0 <= draws.min()
    assert draws.max() < 1
    counts = np.histogram(draws, bins=10)[0]
    assert np.abs(counts - 10_000).max() < 5 * 95
    assert sorted(shuffled(1, "x", 100).tolist()) == list(range(100))


def test_each_foreign_key_is_redrawn_from_its_parent(cache):
    names = ("region", "nation", "supplier", "customer", "orders", "lineitem")
    recorded = spec(tables=names, zipf=1.5).record()
    names = {time_column(t).removesuffix("_ts"): t for t in recorded.rows}
    files = tables(0.002, recorded.rows)
    for name, (parent, parent_column) in FOREIGN_KEYS.items():
        drawn = column(recorded, names[name.split("_")[0]], name)
        keys = pq.read_table(files[parent], columns=[parent_column]).column(0).to_numpy()
        assert set(drawn) <= set(keys.tolist())
        top = max(Counter(drawn.tolist()).values()) / len(drawn)
        # Zipf 1.5: the first of many keys has at least 38 %, of five 57 %.
        assert len(drawn) < 200 or top == pytest.approx(
            zipf_probabilities(len(keys), 1.5)[0], abs=0.05
        )


@pytest.mark.parametrize("order", ["uniform", "first", "last"])
def test_arrivals_are_one_sequence(order):
    rows = {"region": 5, "nation": 25, "lineitem": 500}
    numbers = arrivals(spec(tables=tuple(rows), order=order), rows)
    assert sorted(np.concatenate(list(numbers.values())).tolist()) == list(range(530))
    assert all((np.diff(n) > 0).all() for n in numbers.values())
    dimensions = np.concatenate([numbers["region"], numbers["nation"]])
    if order == "first":
        assert dimensions.max() == 29
    elif order == "last":
        assert dimensions.min() == 500
    else:
        assert 30 < dimensions.mean() < 500


def test_the_index_says_what_the_files_hold(cache):
    recorded = spec(interval_rows=3000).record()
    total = 0
    for table in EQ5:
        index = json.loads(Path(recorded.index(table)).read_text())
        assert len(index["intervals"]) == len(index["progress"])
        for interval in index["intervals"]:
            for file, group, rows in interval:
                found = pq.ParquetFile(recorded.folder / file).metadata.row_group(group).num_rows
                assert found == rows
                total += rows
    assert total == sum(recorded.rows.values())
    per_interval = np.zeros(len(index["progress"]), int)
    for table in EQ5:
        for number, interval in enumerate(
            json.loads(Path(recorded.index(table)).read_text())["intervals"]
        ):
            per_interval[number] += sum(rows for _, _, rows in interval)
    assert per_interval.tolist()[:-1] == [3000] * (len(per_interval) - 1)


def test_event_time_follows_arrival_and_disorder_is_bounded(cache):
    span, disorder = 1_280_000_000, 5_000_000
    straight = spec().record()
    mixed = spec(disorder_us=disorder).record()
    in_order = column(straight, "lineitem", "l_ts").astype("datetime64[us]").astype(np.int64)
    late = column(mixed, "lineitem", "l_ts").astype("datetime64[us]").astype(np.int64)
    assert (np.diff(in_order) >= 0).all()
    assert in_order.min() >= EPOCH_US
    assert EPOCH_US + span * 0.99 < in_order.max() < EPOCH_US + span
    behind = in_order - late
    assert behind.min() >= 0
    assert behind.max() <= disorder
    assert behind.mean() == pytest.approx(disorder / 2, rel=0.05)
    assert (np.diff(late) < 0).any()
    # The index's promise about later tuples holds.
    index = json.loads(Path(mixed.index("lineitem")).read_text())
    at = 0
    for interval, progress in zip(index["intervals"], index["progress"], strict=True):
        at += sum(rows for _, _, rows in interval)
        assert at == len(late) or late[at:].min() >= progress


def test_rate_sets_the_span(cache):
    recorded = spec(rate=1000.0).record()
    assert recorded.span_us == pytest.approx(sum(recorded.rows.values()) * 1000, rel=1e-6)


def test_a_stream_is_the_same_when_made_again(cache, tmp_path, monkeypatch):
    first = spec(zipf=1.1, seed=5).record()
    monkeypatch.setenv("JOINENGINE_HOME", str(tmp_path))
    second = spec(zipf=1.1, seed=5).record()
    assert first.folder != second.folder
    assert (
        column(first, "lineitem", "l_suppkey").tolist()
        == column(second, "lineitem", "l_suppkey").tolist()
    )


@pytest.mark.parametrize("home", ["o'b", "a[1]b", "x*y?"])
def test_a_cache_may_have_any_name(home, tmp_path):
    """SQL over the files of a stream took the name for the end of a text, or for a pattern."""
    folder = tmp_path / home / "t"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"x": [7]}), folder / "0.parquet")
    files = RecordedStream(tmp_path / home, {"t": 1}, 1).files("t")
    assert duckdb.sql(f"from '{files}'").fetchall() == [(7,)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": 0}, "scale: expected at least 0.0001, which makes one supplier, found 0"),
        ({"zipf": -1}, "zipf: expected an exponent of 0 or more, found -1"),
        ({"order": "any"}, "order: 'any'"),
        ({"interval_rows": 0}, "interval-rows: expected at least 1, found 0"),
        ({"rate": 0}, "rate: expected .* above 0, found 0"),
        ({"span_us": 0}, "span: expected a duration above 0, found 0 s"),
        ({"disorder_us": -1}, "disorder"),
        ({"shift_us": 0}, "shift-every: expected a duration above 0, found 0 s"),
    ],
)
def test_impossible_streams_are_refused(change, message):
    with pytest.raises(InvalidRequest, match=message):
        spec(**change)


def test_other_keys_are_hot_after_a_shift(cache):
    """Four quarters of the stream: as skewed, each with a hottest key of its own."""
    recorded = spec(zipf=1.2, span_us=400_000_000, shift_us=100_000_000).record()
    keys, times = (column(recorded, "lineitem", name) for name in ("l_suppkey", "l_ts"))
    quarters = (times.astype("datetime64[us]").astype(np.int64) - EPOCH_US) // 100_000_000
    tops = [Counter(keys[quarters == quarter].tolist()).most_common(1)[0] for quarter in range(4)]
    assert len({key for key, _ in tops}) == 4
    steady = column(spec(zipf=1.2).record(), "lineitem", "l_suppkey")
    share = max(Counter(steady.tolist()).values()) / len(steady)
    for quarter, (_, count) in enumerate(tops):
        assert count / (quarters == quarter).sum() == pytest.approx(share, abs=0.05)


def test_unknown_tables_are_refused(cache):
    with pytest.raises(InvalidRequest, match=r"table: expected one of .*, found 'regions'"):
        tables(0.001, ["regions"])


#: Builds, and tells so, until it is allowed to end.
BUILDER = """
import sys
from pathlib import Path
from joinengine.lab.tpch.generate import build_once
def build(draft):
    draft.mkdir()
    print("building", flush=True)
    sys.stdin.readline()
    (draft / "content").write_text("whole")
build_once(Path(sys.argv[1]), build)
"""


def test_two_processes_that_ask_at_once_build_once(tmp_path):
    path = tmp_path / "data"
    program = [sys.executable, "-c", BUILDER, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(program, **pipes) as other, ThreadPoolExecutor() as pool:
        assert other.stdout.readline() == "building\n"
        ours = pool.submit(build_once, path, lambda draft: pytest.fail("built twice"))
        assert not wait([ours], 0.2).done
        other.stdin.write("\n")
        other.stdin.flush()
        ours.result()
    assert (path / "content").read_text() == "whole"


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def build(draft):
        draft.mkdir()
        (draft / "half").touch()
        raise RuntimeError("no disk")

    with pytest.raises(RuntimeError):
        build_once(tmp_path / "data", build)
    assert not (tmp_path / "data").exists()
    assert generate.TABLES[0] == "region"


@pytest.mark.parametrize(
    ("query", "change", "message"),
    [
        (
            "stock",
            {"order": "first"},
            "order: the stream has the one table 'trades', found 'first'",
        ),
        ("topk", {"order": "last"}, "order: the stream has the one table 'words'"),
        ("first-story", {"shift_us": 5}, "shift-every: the hot keys of 'texts' stay the same"),
        (
            "stock",
            {"shift_us": 5},
            "shift-every: the hot keys of 'trades' stay the same, found",
        ),
    ],
)
def test_options_that_a_generated_stream_does_not_have_are_refused(query, change, message):
    with pytest.raises(InvalidRequest, match=message):
        QUERIES[query].stream(Options(**change))
