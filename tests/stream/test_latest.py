"""Joins with the latest: loaded first, by batch or by time, deletes, restarts; refusals."""

from __future__ import annotations

import datetime as dt

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
    band,
    equi,
    kafka_stream,
    latest,
    parquet_stream,
    windows,
)
from tests.brokers import fresh_topic, produce
from tests.stream.conftest import oracle

pytestmark = pytest.mark.spark

TIME = pa.timestamp("us", "UTC")
N = 3000


def write(folder, name, prefix, keys, versions, times):
    n = len(keys)
    table = pa.table(
        {
            f"{prefix}_key": pa.array(keys, pa.int64()),
            f"{prefix}_version": pa.array(versions, pa.int64()),
            f"{prefix}_ts": pa.array(times).cast(TIME),
            f"{prefix}_op": np.where(np.arange(n) % 11 == 5, "D", "U"),
        }
    )
    (folder / prefix).mkdir(exist_ok=True)
    pq.write_table(table, folder / prefix / f"{name}.parquet", row_group_size=max(n // 4, 1))


@pytest.fixture
def folders(tmp_path):
    """Orders, and versions of their customers in no order: a hot customer, and some without."""
    rng = np.random.default_rng(8)
    keys = np.where(rng.random(N) < 0.3, 0, rng.integers(0, 300, N))
    write(tmp_path, 0, "o", keys, np.arange(N), np.sort(rng.integers(0, 10**10, N)))
    # The moments and versions of customers are their own.
    versions = rng.permutation(N)
    write(tmp_path, 0, "c", rng.integers(0, 250, N), versions, 3_300_000 * versions)
    return tmp_path


def sides(spark, folders, **of):
    orders = parquet_stream(spark, str(folders / "o"), rows_per_interval=N // 4)
    customers = parquet_stream(spark, str(folders / "c"), rows_per_interval=N // 4)
    given = {"key": "c_key", "order_by": "c_version"} | of
    return orders, latest(customers, **given)


def joined(spark, folders, how="left", on=None, **of):
    on = on or equi("o_key", "c_key")
    return StreamJoin(*sides(spark, folders, **of), on=on, how=how, instances=4)


def run(query, folders):
    writer = query.writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folders / "checkpoint"))
    running = writer.trigger(availableNow=True).start(str(folders / "out"))
    running.awaitTermination()
    return running


def rows(sql, folders):
    return oracle(sql.format(home=folders))


def wanted(folders, *, order="c_version", deleted="false", how="left", orders="*"):
    """Orders beside the newest version of their customers."""
    newest = (
        f"select * from '{{home}}/c/*.parquet' qualify row_number() over "
        f"(partition by c_key order by {order} desc) = 1"
    )
    sql = f"""
        select o.*, c.* from '{{home}}/o/{orders}.parquet' o {how} join
        (select * from ({newest}) where not ({deleted})) c on o_key = c_key
    """
    return rows(sql, folders)


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("deleted", [None, "c_op = 'D'"])
def test_the_newest_versions_are_there_before_the_first_order(spark, folders, how, deleted):
    query = joined(spark, folders, how, deleted=deleted)
    running = run(query, folders)
    found = rows("from '{home}/out/*.parquet'", folders)
    assert found == wanted(folders, deleted=deleted or "false", how=how)
    assert found.total() > N / 2
    loading = running.metrics().to_pylist()[:4]
    assert [(one["input_rows"], one["output_rows"]) for one in loading] == [(N // 4, 0)] * 4


def test_without_an_order_the_last_read_counts(spark, folders):
    run(joined(spark, folders, order_by=None), folders)
    found = rows("from '{home}/out/*.parquet'", folders)
    read_last = wanted(folders, order="file_row_number")
    assert {key: n for key, n in found.items() if key[4] is None} == {
        key: n for key, n in read_last.items() if key[4] is None
    }
    assert found.total() == N
    several = duckdb.sql(
        f"select count(*) from (select o_key, count(distinct c_version) n "
        f"from '{folders}/out/*.parquet' group by o_key) where n > 1"
    ).fetchall()[0][0]
    assert several == 0, "each order of a customer meets the same version"


def test_an_order_meets_what_was_newest_before_its_batch(spark, folders):
    """Later orders meet later versions, on the same checkpoint; earlier ones stay."""
    run(joined(spark, folders), folders)
    first = wanted(folders)
    keys = np.arange(100)
    write(folders, 1, "c", keys, N + keys, 3_300_000 * (N + keys))
    write(folders, 1, "o", keys, N + keys, keys)
    run(joined(spark, folders), folders)
    second = wanted(folders, orders="1")
    assert rows("from '{home}/out/*.parquet'", folders) == first + second
    assert all(row[5] >= N for row in second)


def test_the_version_that_was_valid_at_the_time(spark, folders):
    on = asof("o_ts", "c_ts", by=equi("o_key", "c_key"), delay="0 s")
    query = joined(spark, folders, on=on, order_by="c_ts", at="event", deleted="c_op = 'D'")
    run(query, folders)
    found = rows("from '{home}/out/*.parquet'", folders)
    sql = """
        select o.*, case when c_op = 'D' then null else c_key end,
            case when c_op = 'D' then null else c_version end,
            case when c_op = 'D' then null else c_ts end,
            case when c_op = 'D' then null else c_op end
        from '{home}/o/*.parquet' o asof left join '{home}/c/*.parquet' c
        on o_key = c_key and o_ts >= c_ts
    """
    everything = rows(sql, folders)
    assert not found - everything
    assert found.total() > 0.95 * N, "the last ones wait for versions to come"


def test_an_aggregate_goes_on_with_the_time_of_the_orders(spark, folders):
    counted = StreamAggregate(
        joined(spark, folders, "inner"),
        by="c_version",
        aggregates={"n": "count(*)"},
        window=windows("o_ts", "1000 s", delay="0 s"),
        instances=4,
    )
    run(counted, folders)
    found = duckdb.sql(f"select sum(n) from '{folders}/out/*.parquet'").fetchall()[0][0]
    assert (
        0.8 * wanted(folders, how="inner").total() < found <= wanted(folders, how="inner").total()
    )


REFUSED = {
    "latest: key: column 'none'": {"key": "none"},
    "latest: its key is c_key, but on names": {"on": equi("o_key", "c_version")},
    "latest: order_by must be a timestamp": {"order_by": "c_op"},
    "latest: at: 'noon' is unknown": {"at": "noon"},
    "latest: at='event' needs order_by": {"at": "event", "order_by": None},
    "latest: at='event' needs the time of left rows": {"at": "event", "order_by": "c_ts"},
    "latest: a row meets the newest version": {"on": band("o_key", "c_key", lower=0)},
    "how: 'full' is not for latest": {"how": "full"},
    "latest: no key is named": {"key": []},
    "latest: until needs order_by": {"until": "2026-03-01"},
    "latest: until: expected a time": {"until": "noon", "order_by": "c_ts"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_latest_that_cannot_be_served(spark, folders, message):
    with pytest.raises(InvalidRequest, match=message):
        joined(spark, folders, **REFUSED[message])


def test_the_latest_is_a_stream_on_the_right(spark, folders):
    orders, customers = sides(spark, folders)
    with pytest.raises(InvalidRequest, match="latest: it is the right side of a join"):
        StreamJoin(customers, orders, on=equi("c_key", "o_key"))
    with pytest.raises(InvalidRequest, match="latest: expected a stream of parquet_stream"):
        latest(spark.read.parquet(str(folders / "c")), key="c_key")
    at_event = latest(customers.stream, key="c_key", order_by="c_ts", at="event")
    forward = asof("o_ts", "c_ts", by=equi("o_key", "c_key"), direction="forward", delay="0 s")
    with pytest.raises(InvalidRequest, match="latest: the version that is valid at a time"):
        StreamJoin(orders, at_event, on=forward)


def test_no_order_is_read_before_the_versions_have_come_so_far(spark, folders, caplog):
    """Over restarts, which wait for the time as the first start does, and not once it has come."""

    def start():
        query = joined(spark, folders, order_by="c_ts", until="1970-01-01T02:46:40Z")  # 10,000 s
        return run(query, folders)

    start()
    assert not list((folders / "out").glob("*.parquet"))
    assert "has brought no version from latest(.., until=..) on" in caplog.text
    keys = np.arange(250)
    write(folders, 1, "c", keys, N + keys, 10**10 + keys)
    start()
    found = rows("from '{home}/out/*.parquet'", folders)
    assert found == wanted(folders, order="c_ts")
    assert all(row[5] is None or row[5] >= N for row in found)
    write(folders, 1, "o", keys, N + keys, keys)
    start()
    assert rows("from '{home}/out/*.parquet'", folders).total() == N + 250


def test_no_order_is_read_before_a_topic_has_come_to_its_offsets(spark, folders, broker, caplog):
    """Over restarts, and with offsets that are there already when the query begins to read."""
    topic, told = fresh_topic(broker, 2), "c_key bigint, c_version bigint"

    def versions(first, last, partition):
        texts = [f'{{"c_key": {n}, "c_version": {n}}}' for n in range(first, last)]
        produce(broker, topic, texts, partition=partition)

    def start(until):
        stream = kafka_stream(spark, broker.servers, topic, schema=told, max_rows=40)
        customers = latest(stream, key="c_key", order_by="c_version", until=until)
        orders = parquet_stream(spark, str(folders / "o"), rows_per_interval=N // 4)
        joined = StreamJoin(orders, customers, on=equi("o_key", "c_key"), instances=2)
        run(joined, folders)
        out = str(folders / "out" / "*.parquet")
        return duckdb.sql(f"select count(*) from '{out}'").fetchall()[0][0] if found() else 0

    def found():
        return list((folders / "out").glob("*.parquet"))

    versions(0, 100, 0)
    assert start({1: 100}) == 0
    assert f"{topic}" in caplog.text
    assert "has not come to the offsets of latest(.., until=..)" in caplog.text
    versions(100, 199, 1)
    assert start({1: 100}) == 0  # one is missing
    versions(199, 200, 1)
    caplog.clear()
    keys = f"select count(*) from '{folders}/o/*.parquet' where o_key < 200"
    assert start({1: 100}) == duckdb.sql(keys).fetchall()[0][0] > 1000
    assert "until" not in caplog.text
    with pytest.raises(InvalidRequest, match=r"latest: until: topic .* has no partition 2"):
        start({0: 1, 2: 5})


@pytest.mark.parametrize("until", [{}, {0: -1}, {"0": 1}, {0: 1.5}])
def test_offsets_that_are_none(spark, folders, until):
    with pytest.raises(InvalidRequest, match="latest: until: expected offsets such as"):
        joined(spark, folders, until=until)


def test_a_table_is_checked_before_it_is_joined(spark, folders):
    customers = parquet_stream(spark, str(folders / "c"))
    with pytest.raises(InvalidRequest, match="latest: deleted: column 'op' does not exist"):
        latest(customers, key="c_key", deleted="op = 'd'")
    day = dt.date(1970, 1, 2)
    until = latest(customers, key="c_key", order_by="c_ts", until=day).until_us
    assert until == latest(customers, key="c_key", order_by="c_ts", until=str(day)).until_us
    assert until == 86_400_000_000


def test_files_have_no_offsets(spark, folders):
    with pytest.raises(InvalidRequest, match=r"are offsets of a topic, and .* give the time"):
        joined(spark, folders, until={0: 10})
