"""Aggregates over stretches of time of each group's own: sessions and last rows, against DuckDB."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions

from joinengine import (
    StreamAggregate,
    StreamJoin,
    equi,
    last,
    parquet_stream,
    session_windows,
    within,
)
from tests.stream.cases import run, streams, tables
from tests.stream.conftest import ended, oracle, same

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


def sessions_sql(source, by, gap_us, aggregates):
    columns = ", ".join(f"{text} as {name}" for name, text in aggregates.items())
    return f"""
        with timed as (select *, epoch_us(i_ts) as t from {source}),
        begun as (
            select *, t - lag(t) over w > {gap_us} is not false as begins
            from timed window w as (partition by {by} order by t)
        ),
        numbered as (
            select *, sum(begins::int) over (partition by {by} order by t) as number from begun
        )
        select {by}, {columns}, make_timestamptz(min(t)) as window_start,
        make_timestamptz(max(t) + {gap_us}) as window_end from numbered group by {by}, number"""


@pytest.mark.usefixtures("exchange")
def test_sessions_leave_when_they_are_over(spark, folders, tmp_path):
    """Those that the watermark has passed are results; the others wait for rows to come."""
    (_, items) = streams(spark, folders)
    counted = StreamAggregate(
        items,
        by=["buyer", "sold"],
        aggregates=AGGREGATES,
        window=session_windows("i_ts", gap="1500 ms", delay="0 s"),
        layout="shuffle",
        instances=3,
    )
    run(counted, tmp_path)
    source = tables(folders)[1]
    sessions = sessions_sql(source, "buyer, sold", 1_500_000, AGGREGATES)
    over = f"from ({sessions}) where window_end < (select max(i_ts) from {source})"
    assert oracle(sessions).total() > oracle(over).total() > 10
    same(tmp_path / "out", over)


def test_sessions_are_those_of_spark(spark, tmp_path):
    """Rows exactly a gap apart, too: many are, as all times are whole gaps and halves."""
    rng = np.random.default_rng(3)
    halves = np.sort(rng.integers(0, 400, 120))
    stamps = pa.array(halves * 2_500_000).cast(pa.timestamp("us", "UTC"))
    clicks = pa.table({"user": rng.integers(0, 6, len(halves)), "ts": stamps})
    (tmp_path / "in").mkdir()
    pq.write_table(clicks, tmp_path / "in" / "clicks.parquet")
    counted = StreamAggregate(
        parquet_stream(spark, str(tmp_path / "in"), rows_per_interval=40),
        by="user",
        aggregates={"n": "count(*)"},
        window=session_windows("ts", gap="5 seconds", delay="0 s"),
        instances=3,
    )
    run(counted, tmp_path)
    whole = spark.read.parquet(str(tmp_path / "in"))
    window = functions.session_window("ts", "5 seconds").alias("w")
    wanted = whole.groupBy("user", window).count().select("user", "count", "w.*")
    newest = whole.agg(functions.max("ts")).first()[0]
    over = Counter(tuple(row) for row in wanted.collect() if row["end"] < newest)
    assert len(over) > 20
    shown = spark.read.parquet(str(tmp_path / "out"))
    assert Counter(map(tuple, shown.collect())) == over


def running_sql(source, by, rows, aggregates, time, ties):
    columns = ", ".join(f"{text} over w as {name}" for name, text in aggregates.items())
    return (
        f"select {by}, {columns}, min({time}) over w as window_start, {time} as window_end "
        f"from {source} window w as (partition by {by} order by {time}, {ties} "
        f"rows between {rows - 1} preceding and current row)"
    )


@pytest.mark.usefixtures("exchange")
def test_the_last_rows_up_to_each(spark, folders, tmp_path):
    """A row that the watermark has passed has its result; the newest row waits."""
    (_, items) = streams(spark, folders)
    counted = StreamAggregate(
        items,
        by=["buyer", "sold"],
        aggregates=AGGREGATES,
        window=last("i_ts", rows=3, delay="0 s"),
        instances=3,
    )
    run(counted, tmp_path)
    source = tables(folders)[1]
    found = running_sql(source, "buyer, sold", 3, AGGREGATES, "i_ts", "order_id, amount")
    same(tmp_path / "out", f"from ({found}) where window_end < (select max(i_ts) from {source})")


def test_the_last_rows_of_a_join(spark, folders, tmp_path):
    left, right = ended(spark, folders)
    near = within("o_ts", "i_ts", lower="-1 second", upper="1 second", delay="10 s")
    counted = StreamAggregate(
        StreamJoin(left, right, on=equi("id", "order_id"), within=near, instances=3),
        aggregates={"n": "count(*)", "total": "sum(amount)"},
        window=last(["o_ts", "i_ts"], rows=4),
        instances=2,
    )
    run(counted, tmp_path)
    orders, items = tables(folders)
    both = f"{orders} join {items} on id = order_id and abs(epoch_us(i_ts) - epoch_us(o_ts)) <= 1e6"
    source = f"(select *, greatest(o_ts, i_ts) as ts, 'all' as everything from {both})"
    wanted = {"n": "count(*)", "total": "sum(amount)"}
    found = running_sql(source, "everything", 4, wanted, "ts", "amount")
    same(tmp_path / "out", f"select * exclude everything from ({found})")
