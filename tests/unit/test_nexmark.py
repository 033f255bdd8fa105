"""Streams of Nexmark: the published proportions, ids, hot keys and times, by plain counting.

What the generator computes from the number of an event, these tests count event by event.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from joinengine import InvalidRequest
from joinengine.lab.cli import cli
from joinengine.lab.commands.running import _serving, compare
from joinengine.lab.nexmark import auction_stream
from joinengine.lab.nexmark.auction_rows import SIZES, STATES
from joinengine.lab.nexmark.auction_stream import AuctionSpec
from joinengine.lab.queries import QUERIES, Options
from joinengine.lab.queries.named_query import check
from joinengine.lab.queries.skewed_join import skewed_keys
from joinengine.lab.simulation.planner_runs import SLOW
from joinengine.lab.tpch.skew import zipf_probabilities
from joinengine.lab.tpch.stream import EPOCH_US
from joinengine.layouts import LAYOUTS, choose

PAGE = Path(__file__).parents[2] / "docs" / "nexmark.md"
TABLES = ("person", "auction", "bid")
EVENTS = 60_020
#: The table of each of 50 events.
ROUND = np.array(["person"] + ["auction"] * 3 + ["bid"] * 46)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.setenv("JOINENGINE_HOME", str(folder))
        yield folder


def spec(**changes):
    return AuctionSpec(**({"tables": TABLES, "events": EVENTS, "rate": 10_000.0} | changes))


def tables(recorded):
    """Table -> its rows, in their order."""
    return {
        name: pa.concat_tables(
            pq.read_table(file) for file in sorted((recorded.folder / name).glob("*.parquet"))
        )
        for name in recorded.rows
    }


def numbers(table, column):
    found = table.column(column)
    return (found.cast(pa.int64()) if pa.types.is_timestamp(found.type) else found).to_numpy()


@pytest.fixture(scope="module")
def house(cache):
    """All tables of one stream."""
    return tables(spec().record())


@pytest.fixture(scope="module")
def newest():
    """Event by event: its table, the newest person, and the newest auction."""
    kinds = np.resize(ROUND, EVENTS)
    return kinds, np.cumsum(kinds == "person") - 1, np.cumsum(kinds == "auction") - 1


def test_of_50_events_one_is_a_person_three_are_auctions_and_46_are_bids(house, newest):
    kinds, *_ = newest
    assert {name: table.num_rows for name, table in house.items()} == {
        "person": 1201,
        "auction": 3603,
        "bid": 55_216,
    }
    assert all((kinds == name).sum() == table.num_rows for name, table in house.items())


def test_ids_count_from_1000_without_a_gap(house):
    for name in ("person", "auction"):
        ids = numbers(house[name], "id")
        assert ids.tolist() == list(range(1000, 1000 + len(ids)))


def test_times_ascend_at_the_rate_in_whole_milliseconds(house, newest):
    kinds, *_ = newest
    for name, table in house.items():
        times = numbers(table, "dateTime")
        expected = EPOCH_US + np.flatnonzero(kinds == name) * 100 // 1000 * 1000
        assert times.tolist() == expected.tolist()
        assert (np.diff(times) >= 0).all()


@pytest.mark.parametrize(
    ("table", "column", "parent", "ratio", "place", "back"),
    [
        ("bid", "auction", "auction", 2, 0, 100),
        ("bid", "bidder", "person", 4, 1, 999),
        ("auction", "seller", "person", 4, 0, 999),
    ],
)
def test_hot_keys_have_the_published_shares(
    house, newest, table, column, parent, ratio, place, back
):
    """All but one of `ratio` name the hot key of the hundred; the others, one of the newest."""
    kinds, persons, auctions = newest
    last = (persons if parent == "person" else auctions)[kinds == table]
    named = numbers(house[table], column) - 1000
    hot = last // 100 * 100 + place
    rest = named != hot
    choices = np.minimum(last, back) + 1 + 10
    expected = ((1 - 1 / choices) / ratio).sum()
    assert rest.sum() == pytest.approx(expected, abs=5 * np.sqrt(expected))
    ages = (last - named)[rest]
    assert ages.min() == -10
    assert ages.max() == back
    assert (named >= 0).all()
    # Each age is as likely: the mean is the middle, once there are enough persons.
    late = rest & (last >= back)
    middle = (back - 10) / 2
    spread = (back + 11) / np.sqrt(12) / np.sqrt(late.sum())
    assert (last - named)[late].mean() == pytest.approx(middle, abs=5 * spread)


def test_auctions_are_open_for_1666_events_on_average(house):
    auctions = house["auction"]
    open_us = numbers(auctions, "expires") - numbers(auctions, "dateTime")
    assert open_us.min() >= 1000
    assert open_us.mean() == pytest.approx(166_000, rel=0.05)
    assert (open_us % 1000 == 0).all()
    assert 320_000 < open_us.max() <= spec().house().longest_us() == 334_000


def test_what_filters_choose_has_equal_shares(house):
    for name, column, values in (
        ("person", "state", STATES),
        ("auction", "category", range(10, 15)),
    ):
        found = house[name].column(column).to_pylist()
        assert set(found) == set(values)
        share = 1 / len(values)
        limit = 5 * np.sqrt(share / len(found))
        assert all(abs(found.count(one) / len(found) - share) < limit for one in values)


def test_prices_are_from_one_dollar_to_a_million_and_no_decade_is_preferred(house):
    decades = np.log10(numbers(house["bid"], "price") / 100)
    assert decades.min() >= 0
    assert decades.max() < 6.001
    assert np.histogram(decades, 6)[0] == pytest.approx([len(decades) / 6] * 6, rel=0.1)
    auctions = house["auction"]
    assert (numbers(auctions, "reserve") - numbers(auctions, "initialBid") >= 100).all()


@pytest.mark.parametrize("name", TABLES)
def test_rows_have_the_published_sizes(house, name):
    """A bid's channel and URL do not count, as in the published generator."""
    sizes = np.zeros(house[name].num_rows)
    for field in house[name].schema:
        if field.name not in ("channel", "url"):
            column = house[name].column(field.name)
            text = pa.types.is_string(field.type)
            sizes += [len(one) for one in column.to_pylist()] if text else 8
    assert sizes.mean() == pytest.approx(SIZES[name], rel=0.02)


def test_a_stream_is_the_same_when_made_again(house, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("JOINENGINE_HOME", str(tmp_path))
    again = tables(spec().record())
    assert all(again[name].equals(table) for name, table in house.items())
    other = tables(spec(seed=1).record())
    assert not other["bid"].column("auction").equals(house["bid"].column("auction"))


def test_events_do_not_depend_on_what_is_read_and_how_it_is_cut(house, cache, monkeypatch):
    monkeypatch.setattr(auction_stream, "_PIECE", 3000)
    found = tables(spec(tables=("auction", "bid"), interval_rows=7001).record())
    assert all(table.equals(house[name]) for name, table in found.items())


def test_intervals_count_the_rows_that_are_read(cache):
    recorded = spec(tables=("person", "auction"), interval_rows=333).record()
    rows = np.zeros(15, int)
    for table in recorded.rows:
        index = json.loads(Path(recorded.index(table)).read_text())
        rows += [sum(group[2] for group in groups) for groups in index["intervals"]]
    assert rows.tolist() == [333] * 14 + [4804 - 14 * 333]
    # A table without a row in an interval has no file there.
    sparse = spec(tables=("person", "bid"), events=1000, interval_rows=10).record()
    index = json.loads(Path(sparse.index("person")).read_text())
    assert [] in index["intervals"]
    assert tables(sparse)["person"].num_rows == 20


def test_disorder_is_bounded_and_the_index_keeps_its_promise(house, cache):
    recorded = spec(disorder_us=50_000, interval_rows=9000).record()
    for name, table in tables(recorded).items():
        late = numbers(table, "dateTime")
        behind = numbers(house[name], "dateTime") - late
        assert behind.min() >= 0
        assert behind.max() < 50_000
        assert behind.mean() == pytest.approx(25_000, rel=0.1)
        index, at = json.loads(Path(recorded.index(name)).read_text()), 0
        for groups, progress in zip(index["intervals"], index["progress"], strict=True):
            at += sum(rows for _, _, rows in groups)
            assert at == len(late) or late[at:].min() >= progress


def test_zipf_has_lasting_keys_and_a_shift_changes_them(house, cache):
    found = tables(spec(zipf=1.2).record())
    hottest = dict[str, int]()
    for table, column, parent in (
        ("bid", "auction", "auction"),
        ("bid", "bidder", "person"),
        ("auction", "seller", "person"),
    ):
        ids, counts = np.unique(numbers(found[table], column), return_counts=True)
        parents = house[parent].num_rows
        assert ids.min() >= 1000
        assert ids.max() < 1000 + parents
        share = zipf_probabilities(parents, 1.2)[0]
        assert counts.max() / counts.sum() == pytest.approx(share, abs=0.02)
        hottest[column] = ids[counts.argmax()]
    assert len(set(hottest.values())) == 3
    untouched = [one for one in house["bid"].column_names if one not in ("auction", "bidder")]
    assert found["bid"].select(untouched).equals(house["bid"].select(untouched))
    shifted = numbers(tables(spec(zipf=1.2, shift_us=2_000_000).record())["bid"], "auction")
    thirds = [np.bincount(part).argmax() for part in np.array_split(shifted, 3)]
    assert len(set(thirds)) == 3


def test_the_options_of_a_query_make_its_stream():
    q20, q3 = QUERIES["nexmark-q20"], QUERIES["nexmark-q3"]
    assert (q20.stream(Options()).events, q20.stream(Options()).rate) == (1_000_000, 10_000)
    assert q20.stream(Options()).zipf is None
    assert q3.stream(Options(rate=500.0)).span_us == 2_000_000_000
    assert q3.stream(Options(span_us=50_000_000)).rate == 20_000
    assert q3.stream(Options(zipf=1.0)).name != q3.stream(Options()).name


@pytest.mark.parametrize(
    ("query", "change", "message"),
    [
        ("q8", {"zipf": 1.2}, r"zipf: nexmark-q8 joins rows that are near in time.* found 1\.2"),
        ("q9-join", {"zipf": 0.0}, "zipf: nexmark-q9-join joins rows that are near in time"),
        ("q20", {"shift_us": 5}, "shift-every: the hot keys of nexmark-q20 change after every 100"),
        ("q20", {"window_us": 5}, "window: nexmark-q20 has no window of a length to choose"),
        ("q9-join", {"window_us": 5}, "window: nexmark-q9-join has no window"),
        ("q23", {"order": "first"}, "order: the events of nexmark-q23 have an order .*'first'"),
        ("q3", {"scale": 4e-6}, "scale: expected at least the 50 events of a person, found 40"),
        ("q3", {"rate": 0.0}, "rate: expected .* above 0, found 0"),
        ("q3", {"span_us": 0}, "span: expected a duration above 0"),
        ("q3", {"zipf": -1.0}, "zipf: expected an exponent of 0 or more, found -1"),
        ("q3", {"interval_rows": 0}, "interval-rows: expected at least 1, found 0"),
        ("q3", {"disorder_us": -1}, "disorder: expected a duration of 0 or more"),
    ],
)
def test_options_that_nexmark_does_not_have_are_refused(query, change, message):
    with pytest.raises(InvalidRequest, match=message):
        QUERIES[f"nexmark-{query}"].stream(Options(**change))


#: Query -> the columns of its results that the published query has, as DuckDB names them.
PUBLISHED = {
    "q3": "name, city, state, id",
    "q8": "id, name, window_start",
    "q9-join": "*",
    "q20": "* exclude (id)",
    "q23": "*",
}


@pytest.mark.each_row
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_query_has_the_results_of_the_published_sql(cache, name):
    """The SQL of the docs, over plain tables."""
    query = QUERIES[f"nexmark-{name}"]
    options = Options(scale=0.002, rate=400.0)
    recorded = query.stream(options).record()
    (text,) = re.findall(rf"### nexmark-{name}\n.*?```sql\n(.*?)```", PAGE.read_text(), re.S)
    with duckdb.connect() as db:
        start = "time_bucket(interval '10 seconds', dateTime) as window_start"
        for table in query.tables:
            files = recorded.files(table)
            db.execute(f"create view {table} as select *, {start} from '{files}'")
        text = text.replace("A.*", "A.* exclude (window_start)")
        mine = f"select {PUBLISHED[name]} from ({query.oracle(recorded, options)})"
        published, ours = db.sql(text), db.sql(mine)
        assert len(published) > 20
        assert len(ours) == len(published)
        assert ours.types == published.types
        left = "select count(*) from (from published except all from ours)"
        assert db.sql(left).fetchall() == [(0,)]


@pytest.mark.parametrize("name", [*PUBLISHED, "skewed-join"])
def test_every_layout_serves_every_query(cache, name):
    query = QUERIES.get(f"nexmark-{name}") or QUERIES[name]
    small = Options(scale=0.0005)
    recorded = query.stream(small).record()
    for layout in LAYOUTS:
        options = replace(small, layout=choose(layout))
        check(query, options)
        assert query.build(None, recorded, options).query().operators
    found = _serving(query, compare.make_context("compare", [query.name]).params)
    assert set(LAYOUTS) - set(found) == set(SLOW)


def test_the_help_of_run_names_every_query():
    help_ = CliRunner().invoke(cli, ["run", "--help"]).output
    assert set(QUERIES) <= set(re.split(r"[\s,;]+", help_))


def test_the_page_has_the_sql_of_each_query():
    page = PAGE.read_text()
    assert set(re.findall(r"### (nexmark-\S+)", page)) == {
        name for name in QUERIES if name.startswith("nexmark")
    }


def test_the_skewed_side_has_zeros_and_numbers_modulo_powers_of_ten():
    expected = [0] * 1000
    for power in (1, 10, 100):
        expected += [number % power for number in range(1, 334)]
    assert skewed_keys(1000).tolist() == expected
    assert expected.count(0) == 1000 + 333 + 33 + 3
    assert len(skewed_keys(99)) == 198


def test_both_sides_of_the_skewed_join_are_spread_over_the_stream(cache):
    query, options = QUERIES["skewed-join"], Options(scale=0.001, interval_rows=500)
    recorded = query.stream(options).record()
    table = tables(recorded)["sides"]
    keys, sides = numbers(table, "f1"), np.array(table.column("side").to_pylist())
    assert sorted(keys[sides == "uniform"]) == list(range(1000))
    assert sorted(keys[sides == "skewed"]) == sorted(skewed_keys(1000))
    halves = [(part == "skewed").mean() for part in np.array_split(sides, 4)]
    assert halves == pytest.approx([2 / 3] * 4, abs=0.1)
    for change in ({"zipf": 1.0}, {"window_us": 5}):
        with pytest.raises(InvalidRequest, match="skewed-join"):
            query.stream(replace(options, **change))
