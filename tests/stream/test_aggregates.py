"""Windowed aggregates on Spark against DuckDB."""

from __future__ import annotations

from collections import defaultdict

import pytest

from joinengine import (
    InvalidRequest,
    StreamAggregate,
    StreamJoin,
    equi,
    last,
    session_windows,
    sliding,
    top,
    windows,
    within,
)
from joinengine.layouts import LAYOUTS
from tests.stream.cases import file_stream, run, streams, tables, windowed_sql
from tests.stream.conftest import ended, found_in, oracle, same

pytestmark = pytest.mark.spark

AGGREGATES = {
    "n": "count(*)",
    "known": "count(order_id)",
    "total": "sum(amount * (1 - 0.25))",
    "ids": "sum(order_id)",
    "mean": "avg(amount)",
    "first": "min(i_ts)",
    "most": "max(amount)",
}
ADDING = [
    pytest.param(name, marks=() if name in ("mnrt", "pkg") else pytest.mark.slow)
    for name, choice in LAYOUTS.items()
    if choice.serves_aggregates
]


def grouped_sql(source, by, size_us, slide_us, aggregates=AGGREGATES, time="i_ts"):
    windows_ = (
        f"select *, unnest(generate_series((epoch_us({time}) - {size_us}) // {slide_us} + 1, "
        f"epoch_us({time}) // {slide_us})) as k from {source}"
    )
    columns = ", ".join(f"{text} as {name}" for name, text in aggregates.items())
    groups = ", ".join(by)
    return (
        f"select {groups + ', ' if groups else ''}{columns}, "
        f"make_timestamptz(k * {slide_us}) as window_start, "
        f"make_timestamptz(k * {slide_us} + {size_us}) as window_end from ({windows_}) "
        f"group by {', '.join([*by, 'k'])}"
    )


@pytest.mark.parametrize("layout", ADDING)
def test_every_aggregate_under_every_layout(spark, folders, tmp_path, layout):
    """NULL is a group, and NULL values are left out of sums, as in SQL."""
    (_, items) = ended(spark, folders)
    counted = StreamAggregate(
        items,
        by=["buyer", "sold"],
        aggregates=AGGREGATES,
        window=windows("i_ts", size="3 seconds", slide="2 seconds", delay="10 s"),
        layout=layout,
        instances=4,
        aggregators=3,
    )
    query = run(counted, tmp_path)
    source = tables(folders)[1]
    same(tmp_path / "out", grouped_sql(source, ["buyer", "sold"], 3_000_000, 2_000_000))
    assert query.batches()[-1].input_rows == 0
    assert query.batches()[-1].joins[1].state.rows == 0
    assert [join.instances for join in query.batches()[0].joins] == [4, 3]


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("merge_every", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_partial_results_that_wait(spark, folders, tmp_path, merge_every):
    for _ in range(3):
        folders.add()
    (_, items) = ended(spark, folders)
    counted = StreamAggregate(
        items,
        by="buyer",
        aggregates={"n": "count(*)", "mean": "avg(order_id)"},
        window=windows("i_ts", size="4 seconds", delay="0 s"),
        layout="shuffle",
        instances=3,
        merge_every=merge_every,
    )
    writer = counted.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", tmp_path / "checkpoint")
    query = writer.relayout(2, "mnrt", 5).relayout(4, "pkg", 2).start(str(tmp_path / "out"))
    query.awaitTermination()
    wanted = {"n": "count(*)", "mean": "avg(order_id)"}
    same(
        tmp_path / "out",
        grouped_sql(tables(folders)[1], ["buyer"], 4_000_000, 4_000_000, wanted),
    )
    passed = [batch.joins[0].output_rows > 0 for batch in query.batches()[:7]]
    assert passed == [(n + 1) % merge_every == 0 for n in range(7)]


def test_results_leave_while_the_stream_goes_on(spark, folders, tmp_path):
    """A folder never ends; windows that the watermark has passed are results all the same."""
    (_, items) = streams(spark, folders)
    counted = StreamAggregate(
        items,
        aggregates={"n": "count(*)"},
        window=windows("i_ts", size="5 seconds", delay="0 s"),
        instances=2,
    )
    run(counted, tmp_path)
    wanted = {"n": "count(*)"}
    everything = oracle(grouped_sql(tables(folders)[1], [], 5_000_000, 5_000_000, wanted))
    found = found_in(tmp_path / "out")
    assert not found - everything
    assert everything.total() - found.total() == 1


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("layout", ["pkg", "mnrt"])
def test_the_top_groups_of_each_window(spark, folders, tmp_path, layout):
    (_, items) = ended(spark, folders)
    counted = StreamAggregate(
        items,
        by="order_id",
        aggregates={"n": "count(*)"},
        window=windows("i_ts", size="5 seconds", slide="2500 ms", delay="10 s"),
        top=top(3, by="n"),
        layout=layout,
        instances=4,
    )
    run(counted, tmp_path)
    wanted = grouped_sql(tables(folders)[1], ["order_id"], 5_000_000, 2_500_000, {"n": "count(*)"})
    order = "partition by window_end order by n desc, order_id nulls last"
    same(tmp_path / "out", f"from ({wanted}) qualify row_number() over ({order}) <= 3")


@pytest.mark.parametrize("layout", ["pkg", "hash"])
def test_heavy_hitters_by_sketches(spark, folders, tmp_path, layout):
    """Bounds hold, and each group that is heavier than the error is among the results."""
    for _ in range(4):
        folders.add(n_items=400)
    (_, items) = ended(spark, folders)
    error = 0.15
    counted = StreamAggregate(
        items,
        by="order_id",
        aggregates={"n": "count(*)"},
        window=windows("i_ts", size="20 seconds", slide="10 seconds", delay="10 s"),
        top=top(3, by="n", error=error),
        layout=layout,
        instances=4,
        merge_every=2,
    )
    assert counted.schema.names[:4] == ["order_id", "n", "n_low", "n_high"]
    run(counted, tmp_path)
    sql = grouped_sql(tables(folders)[1], ["order_id"], 20_000_000, 10_000_000, {"n": "count(*)"})
    exact = by_window((key, end, n) for key, n, _, end in oracle(sql))
    found = by_window((row[0], row[5], row[1:4]) for row in found_in(tmp_path / "out"))
    assert found.keys() == exact.keys()
    for end, counts in exact.items():
        check_hitters(found[end], counts, error * sum(counts.values()), best=3)
    # The hot key is, in every full window.
    assert sum(0 in hitters for hitters in found.values()) >= len(exact) - 2
    assert any(low < high for hitters in found.values() for _, low, high in hitters.values())


def by_window(rows):
    """(key, window, value) rows as window -> key -> value."""
    found = defaultdict(dict)
    for key, end, value in rows:
        found[end][key] = value
    return found


def check_hitters(hitters, counts, error, best):
    """Each (estimate, low, high) holds its count, and no key is missing that must be there."""
    for key, (n, low, high) in hitters.items():
        assert low <= counts[key] <= high
        assert low <= n <= high
        assert high - low <= error
    for key, n in counts.items():
        heavier = sum(m > n - error for m in counts.values())
        assert key in hitters or n <= error or heavier > best


TOTALS = {"n": "count(*)", "paid": "sum(price + amount)"}


@pytest.mark.usefixtures("each_exchange")
def test_aggregates_by_the_windows_of_a_join_behind_a_table(spark, folders, tmp_path):
    joined = StreamJoin(
        *ended(spark, folders, files=2),
        on=equi("id", "order_id"),
        within=sliding("o_ts", "i_ts", "4 seconds", "2 seconds", delay="10 s"),
        instances=3,
    )
    days = spark.range(9).selectExpr(
        "date_add(date'2024-01-01', int(id)) as d", "int(id % 2) as parity"
    )
    dated = StreamJoin(joined, days, on=equi("day", "d"), instances=2)
    run(StreamAggregate(dated, by="parity", aggregates=TOTALS, instances=3), tmp_path)
    inner = windowed_sql(folders, "inner", 4_000_000, 2_000_000)
    parity = "(datediff('day', date '2024-01-01', day) % 2)::int as parity"
    same(
        tmp_path / "out",
        f"select {parity}, count(*) as n, sum(price + amount) as paid, window_start, window_end "
        f"from ({inner}) group by all",
    )


def test_aggregates_over_the_time_of_joined_rows(spark, folders, tmp_path):
    near = within("o_ts", "i_ts", lower="-1 s", upper="1 s", delay="10 s")
    left, right = ended(spark, folders)
    joined = StreamJoin(left, right, on=equi("id", "order_id"), within=near, instances=3)
    counted = StreamAggregate(
        joined,
        by=["day"],
        aggregates=TOTALS,
        window=windows(["o_ts", "i_ts"], "3 seconds"),
        instances=3,
    )
    query = run(counted, tmp_path)
    orders, items = tables(folders)
    near_sql = "abs(epoch_us(i_ts) - epoch_us(o_ts)) <= 1e6"
    both = f"{orders} join {items} on id = order_id and {near_sql}"
    source = f"(select *, greatest(o_ts, i_ts) as ts from {both})"
    same(tmp_path / "out", grouped_sql(source, ["day"], 3_000_000, 3_000_000, TOTALS, "ts"))
    assert sum(query.metrics().column("late_rows").to_pylist()) == 0


def test_a_restart_continues(spark, folders, tmp_path):
    items = file_stream(spark, folders.items).withWatermark("i_ts", "10 seconds")

    def counted(layout):
        return StreamAggregate(
            items,
            by="order_id",
            aggregates={"n": "count(*)"},
            window=windows("i_ts", size="4 seconds"),
            layout=layout,
            instances=3,
        )

    run(counted("mnrt"), tmp_path)
    for _ in range(3):
        folders.add()
    run(counted("shuffle"), tmp_path)
    source = tables(folders)[1]
    everything = oracle(grouped_sql(source, ["order_id"], 4_000_000, 4_000_000, {"n": "count(*)"}))
    found = found_in(tmp_path / "out")
    assert found
    assert not found - everything
    latest = max(row[-1] for row in everything)
    gone = max(row[-1] for row in found)
    assert found == type(found)({r: n for r, n in everything.items() if r[-1] <= gone})
    assert (latest - gone).total_seconds() <= 16


@pytest.fixture
def items(spark, folders):
    return streams(spark, folders)[1]


SETTINGS = {
    "by": "buyer",
    "aggregates": {"n": "count(*)"},
    "window": windows("i_ts", "1 s", delay="0 s"),
    "instances": 2,
}
REFUSED = {
    "column 'nobody' does not exist": {"by": "nobody"},
    "layout dynamic does not support aggregates": {"layout": "dynamic"},
    "expected count, sum.*, found 'median.amount.'": {"aggregates": {"m": "median(amount)"}},
    "needs numbers, found values of type VARCHAR": {"aggregates": {"m": "sum(buyer)"}},
    "'max.i_ts - i_ts.' is a length of time, which no column holds": {
        "aggregates": {"m": "max(i_ts - i_ts)"}
    },
    "sinh in .* is not supported": {"aggregates": {"m": "sum(sinh(amount))"}},
    "aggregates: expected at least one, .*; found none": {"aggregates": {}},
    "the delay of i_ts is missing": {"window": windows("i_ts", "1 s")},
    "window: the source has no windows": {"window": None},
    "sold is date32": {"window": windows("sold", "1 s", delay="0 s")},
    "aggregators: expected at least 1, found 0": {"aggregators": 0},
    "top: expected one of the aggregates n, found 'x'": {"top": top(3, by="x")},
    "error= counts rows by one column": {
        "top": top(3, by="m", error=0.1),
        "aggregates": {"m": "sum(amount)"},
    },
    "no greatest groups of sessions with gaps of 1 s": {
        "window": session_windows("i_ts", gap="1 s", delay="0 s"),
        "top": top(3, by="n"),
    },
    "no greatest groups of the last 9 rows": {
        "window": last("i_ts", 9, delay="0 s"),
        "top": top(3, by="n"),
    },
    "layout pkg may divide the rows of a key": {
        "window": last("i_ts", 9, delay="0 s"),
        "layout": "pkg",
    },
    "has no partial results to merge": {
        "window": last("i_ts", 9, delay="0 s"),
        "merge_every": 2,
    },
    "amount is decimal": {"by": "amount", "top": top(3, by="n", error=0.1)},
    "ambiguous column names": {"aggregates": {"buyer": "count(*)"}},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(items, message):
    with pytest.raises(InvalidRequest, match=message):
        StreamAggregate(items, **SETTINGS | REFUSED[message])


def test_impossible_tops_are_refused():
    with pytest.raises(InvalidRequest, match="top: 0 must be"):
        top(0, by="n")
    with pytest.raises(InvalidRequest, match="top: error 2 must be a fraction"):
        top(3, by="n", error=2)
    with pytest.raises(InvalidRequest, match=r"top: error: '1 %' .* is not a number"):
        top(3, by="n", error="1 %")


def test_a_full_history_join_is_no_input(spark, folders):
    endless = StreamJoin(*streams(spark, folders), on=equi("id", "order_id"), instances=2)
    with pytest.raises(InvalidRequest, match="comes from a full-history join"):
        StreamAggregate(endless, **SETTINGS)


def test_the_plan_says_what_is_added_up(items):
    plan = StreamAggregate(items, **SETTINGS).explain()
    assert "counts by buyer, in windows of 1 s" in plan
    apart = SETTINGS | {"window": session_windows("i_ts", gap="1 s", delay="0 s")}
    plan = StreamAggregate(items, **apart).explain()
    assert "counts by buyer, in sessions with gaps of 1 s" in plan
    apart = SETTINGS | {"window": last("i_ts", rows=5, delay="0 s")}
    plan = StreamAggregate(items, **apart).explain()
    assert "counts by buyer, in the last 5 rows up to each" in plan
