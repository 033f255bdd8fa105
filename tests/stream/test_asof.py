"""As-of joins in a session: against DuckDB, beside a table, before other operators; refusals."""

from __future__ import annotations

from collections import Counter

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import (
    InvalidRequest,
    StreamAggregate,
    StreamJoin,
    asof,
    equi,
    parquet_stream,
    theta,
    windows,
    within,
)

pytestmark = pytest.mark.spark

TIME = pa.timestamp("us", "UTC")
N = 2000


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Trades, quotes and news of few items, one of them hot; moments of quotes are their own."""
    home = tmp_path_factory.mktemp("asof")
    rng = np.random.default_rng(5)
    for name, n, prefix in (("trades", N, "t"), ("quotes", N, "q"), ("news", N // 4, "n")):
        times = np.sort(rng.choice(20_000, n, replace=False)) * 1_000_000
        items = np.where(rng.random(n) < 0.4, 0, rng.integers(0, 20, n))
        table = pa.table(
            {
                f"{prefix}_item": pa.array(items, pa.int64()),
                f"{prefix}_id": pa.array(np.arange(n)),
                f"{prefix}_ts": pa.array(times).cast(TIME),
            }
        )
        (home / name).mkdir()
        for part in range(4):
            piece = table.slice(part * n // 4, n // 4)
            pq.write_table(piece, home / name / f"{part}.parquet")
    return home


@pytest.fixture
def streams(spark, folders):
    return {
        name: parquet_stream(spark, str(folders / name), rows_per_interval=N // 4)
        for name in ("trades", "quotes", "news")
    }


def quoted(streams, **on):
    nearest = asof("t_ts", "q_ts", by=equi("t_item", "q_item"), **{"delay": "0 s"} | on)
    return StreamJoin(streams["trades"], streams["quotes"], on=nearest, how="left", instances=4)


def results(query, tmp_path):
    """All results, once the streams have ended."""
    out = tmp_path / "out"
    writer = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
    writer.trigger(availableNow=True).start(str(out)).awaitTermination()
    return rows(f"from '{out}/*.parquet'", tmp_path)


def rows(sql, folders):
    return Counter(duckdb.sql(sql.format(home=folders)).fetchall())


NEAREST = """
    select t.*, q.* from '{home}/trades/*.parquet' t
    asof left join '{home}/quotes/*.parquet' q on t_item = q_item and t_ts >= q_ts
"""


def test_beside_a_table_nothing_waits(spark, streams, folders, tmp_path):
    quotes = spark.read.parquet(str(folders / "quotes"))
    query = quoted(streams | {"quotes": quotes})
    found = results(query, tmp_path)
    assert found == rows(NEAREST, folders)
    assert found.total() == N
    assert "rows meet the table and do not wait" in query.explain()


def test_what_is_still_open_waits_in_the_checkpoint(streams, folders, tmp_path):
    """Trades after the last quote wait for quotes to come; all others are there."""
    found = results(quoted(streams), tmp_path)
    wanted = rows(NEAREST, folders)
    assert not found - wanted
    ends = duckdb.sql(
        f"select least((select max(t_ts) from '{folders}/trades/*.parquet'), "
        f"(select max(q_ts) from '{folders}/quotes/*.parquet'))"
    ).fetchall()[0][0]
    assert all(row[2] >= ends for row in wanted - found)
    assert found.total() > N * 0.95


def test_a_windowed_join_goes_on_with_the_left_time(streams, folders, tmp_path):
    joined = StreamJoin(
        quoted(streams),
        streams["news"],
        on=equi("t_item", "n_item"),
        within=within("t_ts", "n_ts", lower="-60 s", upper="0 s", delay="0 s"),
        instances=4,
    )
    found = results(joined, tmp_path)
    wanted = rows(
        f"select * from ({NEAREST}) j join '{{home}}/news/*.parquet' n on t_item = n_item "
        "and epoch_us(n_ts) - epoch_us(t_ts) between -60000000 and 0",
        folders,
    )
    assert not found - wanted
    assert found.total() > wanted.total() * 0.95 > 100


def test_an_aggregate_goes_on_with_the_left_time(streams, folders, tmp_path):
    counted = StreamAggregate(
        quoted(streams),
        by="t_item",
        aggregates={"n": "count(*)", "q": "max(q_id)"},
        window=windows("t_ts", "1000 s"),
        instances=4,
    )
    found = results(counted, tmp_path)
    wanted = rows(
        f"select t_item, count(*), max(q_id), to_timestamp(epoch(t_ts)::int // 1000 * 1000) as w, "
        f"w + interval 1000 seconds from ({NEAREST}) group by t_item, w",
        folders,
    )
    assert not found - wanted
    assert found.total() > wanted.total() * 0.85 > 100


REFUSED = {
    "asof: direction: 'up' is unknown": {"direction": "up"},
    "asof: tolerance '-1 s' is negative": {"tolerance": "-1 s"},
    r"t_item of the left side is int64 and q_ts of the right side is timestamp.*, which cannot": {
        "by": equi("t_item", "q_ts")
    },
    "column 'none' of the right side does not exist": {"by": equi("t_item", "none")},
    "asof: strict: 1 .int. is not a boolean": {"strict": 1},
    "asof: event time must be a timestamp, but t_id is .* 'timestamp_seconds.`t_id`": {
        "left_time": "t_id"
    },
    r"asof: by: Theta.* is not a column name or a list": {"by": theta("a = b")},
    r"asof: by: \{'k': 'k2'\} \(dict\) is not a column": {"by": {"k": "k2"}},
    "asof: by names no columns; leave it out": {"by": []},
    "how: 'full' is not for asof": {"how": "full"},
    "within: asof takes no window": {"within": within("t_ts", "q_ts", upper="1 s", delay="0 s")},
    "where: asof looks among all rows": {"where": "t_id > q_id"},
    "asof: the delay of t_ts is missing. Give asof": {"delay": None},
}


@pytest.mark.parametrize("message", REFUSED)
def test_an_asof_that_cannot_be_served(streams, message):
    given = {"left_time": "t_ts", "by": equi("t_item", "q_item"), "delay": "0 s"} | REFUSED[message]
    of_join = {name: given.pop(name) for name in ("how", "within", "where") if name in given}
    quotes = streams["quotes"].select(["q_item", "q_id", "q_ts"])
    with pytest.raises(InvalidRequest, match=message):
        StreamJoin(
            streams["trades"], quotes, on=asof(given.pop("left_time"), "q_ts", **given), **of_join
        )


def test_the_left_side_is_no_table(spark, streams, folders):
    trades = spark.read.parquet(str(folders / "trades"))
    with pytest.raises(InvalidRequest, match="asof: the left side is a table"):
        quoted(streams | {"trades": trades})


def test_a_later_window_needs_the_left_time_and_an_end(streams):
    window = within("q_ts", "n_ts", lower="0 s", upper="1 s", delay="0 s")
    with pytest.raises(InvalidRequest, match="is not the event time of as-of joined rows"):
        StreamJoin(quoted(streams), streams["news"], on=equi("t_item", "n_item"), within=window)
    endless = quoted(streams, direction="nearest")
    window = within("t_ts", "n_ts", lower="0 s", upper="1 s", delay="0 s")
    with pytest.raises(InvalidRequest, match="an asof that looks nearest without tolerance"):
        StreamJoin(endless, streams["news"], on=equi("t_item", "n_item"), within=window)
