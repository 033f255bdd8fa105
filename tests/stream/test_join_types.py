"""Outer, semi and anti joins, windows with edges, and tables, on Spark against DuckDB."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pytest

from joinengine import (
    InvalidRequest,
    StreamJoin,
    band,
    equi,
    parquet_stream,
    sliding,
    theta,
    tumbling,
    within,
)
from joinengine.layouts import Mnrt
from tests.stream.cases import pairs, run, streams, tables, windowed_sql
from tests.stream.conftest import EACH_LAYOUT, EPOCH, ORDERS, ended, found_in, oracle, same

pytestmark = pytest.mark.spark

WINDOW = within("o_ts", "i_ts", lower="-1 s", upper="300 ms", delay="10 s")
LEAD = "epoch_us(i_ts) - epoch_us(o_ts) between -1000000 and 300000"


def joined_sql(folders, how, on):
    orders, items = tables(folders)
    kind = how.removeprefix("left_") if how in ("left_semi", "left_anti") else f"{how} join"
    kind = kind if kind.endswith("join") else f"{kind} join"
    return f"select * from {orders} {kind} {items} on {on}"


@pytest.mark.usefixtures("each_exchange")
@pytest.mark.parametrize("how", ["left", "rightouter", "full", "left_semi", "anti"])
def test_join_types(spark, folders, tmp_path, how):
    joined = StreamJoin(
        *ended(spark, folders),
        on=equi("id", "order_id"),
        within=WINDOW,
        how=how,
        where="price <> amount",
        layout=Mnrt(imbalance=0.01),
        instances=5,
    )
    query = run(joined, tmp_path)
    name = {"rightouter": "right", "anti": "left_anti"}.get(how, how)
    same(
        tmp_path / "out", joined_sql(folders, name, f"id = order_id and price <> amount and {LEAD}")
    )
    assert found_in(tmp_path / "out").total() == sum(
        query.metrics().column("output_rows").to_pylist()
    )


@pytest.mark.parametrize("layout", EACH_LAYOUT)
def test_a_full_join_under_every_layout(spark, folders, tmp_path, layout):
    """Both sides are watched, and both are hot in key 0."""
    joined = StreamJoin(
        *ended(spark, folders),
        on=equi("id", "order_id"),
        within=WINDOW,
        how="full",
        layout=layout,
        instances=5,
    )
    writer = joined.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", tmp_path / "checkpoint")
    query = writer.relayout(2, "bi", 4).relayout(3, "mnrt", 3).start(str(tmp_path / "out"))
    query.awaitTermination()
    same(tmp_path / "out", joined_sql(folders, "full", f"id = order_id and {LEAD}"))
    last = query.batches()[-1]
    assert last.input_rows == 0
    assert last.joins[0].state.rows == 0


def test_a_full_join_of_a_band_and_of_any_predicate(spark, folders, tmp_path):
    left, right = ended(spark, folders)
    on = band("id", "order_id", lower=1, upper=2)
    run(StreamJoin(left, right, on=on, within=WINDOW, how="full", instances=4), tmp_path)
    same(tmp_path / "out", joined_sql(folders, "full", f"order_id - id between 1 and 2 and {LEAD}"))
    on = theta("left.id < right.order_id and price = amount")
    joined = StreamJoin(
        left, right, on=on, within=WINDOW, how="full", layout="dynamic", instances=4
    )
    run(joined, tmp_path, "theta")
    same(
        tmp_path / "theta",
        joined_sql(folders, "full", f"id < order_id and price = amount and {LEAD}"),
    )


def test_a_full_join_using_a_name_shows_whichever_key_is_there(spark, folders, tmp_path):
    left, right = ended(spark, folders)
    left = left.select(["id", "o_ts"])
    items = parquet_stream(spark, folders.items).to_df()
    items = items.selectExpr("order_id as id", "i_ts")
    joined = StreamJoin(left, items, on="id", within=WINDOW, how="full", instances=3)
    assert joined.schema.names == ["id", "o_ts", "i_ts"]
    assert joined.schema["id"].dataType.typeName() == "long"
    frame = StreamJoin(
        left, right, on=equi("id", "order_id"), within=WINDOW, how="right", instances=3
    )
    run(frame, tmp_path)
    orders, items = tables(folders)
    same(
        tmp_path / "out",
        f"select o.id, o.o_ts, i.* from {orders} o right join {items} i "
        f"on id = order_id and {LEAD}",
    )


def test_a_semi_join_shows_a_tuple_once_its_first_partner_is_there(spark, folders, tmp_path):
    """Over the full history, a batch after the match."""
    left, right = streams(spark, folders)
    joined = StreamJoin(left, right, on=equi("id", "order_id"), how="semi", instances=4)
    query = run(joined, tmp_path)
    same(tmp_path / "out", joined_sql(folders, "left_semi", "id = order_id"))
    assert [batch.output_rows > 0 for batch in query.batches()] == [False] + [True] * 4


@pytest.mark.usefixtures("exchange")
def test_unmatched_rows_leave_though_nothing_comes(spark, folders, tmp_path):
    """A side falls silent; once it is idle the watermark goes on, and so do unmatched rows."""
    left = parquet_stream(spark, folders.orders, rows_per_interval=40)
    right = parquet_stream(spark, folders.items, rows_per_interval=120)
    window = within("o_ts", "i_ts", lower="-1 s", upper="1 s", delay="1 s", idle_after="1500 ms")
    joined = StreamJoin(
        left, right, on=equi("id", "order_id"), within=window, how="left_anti", instances=2
    )
    writer = joined.writeStream.format("parquet").option("checkpointLocation", tmp_path / "c")
    query = writer.start(str(tmp_path / "out"))
    query.processAllAvailable()
    before = found_in(tmp_path / "out").total()
    folders.batches = 100
    folders._write(folders.orders, ORDERS, 40)
    orders, items = tables(folders)
    until = EPOCH + dt.timedelta(minutes=5)
    wanted = oracle(
        f"select * from {orders} anti join {items} on id = order_id and "
        f"abs(epoch_us(i_ts) - epoch_us(o_ts)) <= 1e6 where o_ts < timestamptz '{until}'"
    )
    for _ in range(100):
        query.awaitTermination(0.2)
        found = found_in(tmp_path / "out")
        old = Counter({row: n for row, n in found.items() if row[-1] < until})
        if old.total() >= wanted.total():
            break
    query.stop()
    assert before < wanted.total()
    assert old == wanted
    # New tuples leave if the watermark has passed the window by their own side's time.
    assert 0 < found.total() - old.total() < 40


@pytest.mark.usefixtures("exchange")
def test_outer_joins_in_a_chain(spark, folders, tmp_path):
    """Unmatched rows of the first join arrive in the second a batch later, and are not late."""
    left, right = ended(spark, folders)
    (third, _) = ended(spark, folders)
    first = StreamJoin(
        left, right, on=equi("id", "order_id"), within=WINDOW, how="left", instances=4
    )
    second = StreamJoin(
        first,
        third.select(["customer", "o_ts"]),
        on=equi("customer", "customer"),
        within=within(["o_ts", "i_ts"], "o_ts", lower="1 us", upper="2 s", delay="10 s"),
        how="left",
        suffixes=("", "_3"),
        layout="bi-k",
        instances=4,
    )
    query = run(second, tmp_path)
    orders, items = tables(folders)
    sql = (
        f"select a.*, c.customer as customer_3, c.o_ts as o_ts_3 from "
        f"(select * from {orders} left join {items} on id = order_id and {LEAD}) a "
        f"left join {orders} c on a.customer = c.customer and epoch_us(c.o_ts) - "
        f"epoch_us(greatest(a.o_ts, a.i_ts)) between 1 and 2000000"
    )
    same(tmp_path / "out", sql)
    assert sum(query.metrics().column("late_rows").to_pylist()) == 0
    rows = found_in(tmp_path / "out")
    assert any(row[5] is None and row[-1] is not None for row in rows)
    assert any(row[5] is not None and row[-1] is None for row in rows)


@pytest.mark.parametrize("how", ["inner", "full", "left_anti"])
def test_sliding_windows(spark, folders, tmp_path, how):
    window = sliding("o_ts", "i_ts", size="500 ms", slide="200 ms", delay="10 s")
    joined = StreamJoin(
        *ended(spark, folders), on=equi("id", "order_id"), within=window, how=how, instances=4
    )
    assert joined.schema.names[-2:] == ["window_start", "window_end"]
    query = run(joined, tmp_path)
    same(tmp_path / "out", windowed_sql(folders, how, 500_000, 200_000))
    assert sum(query.metrics().column("expired_rows").to_pylist()) > 0


@pytest.mark.parametrize("layout", EACH_LAYOUT)
def test_tumbling_windows(spark, folders, tmp_path, layout):
    window = tumbling("o_ts", "i_ts", "3 seconds", delay="10 s")
    joined = StreamJoin(
        *ended(spark, folders), on=equi("id", "order_id"), within=window, layout=layout, instances=4
    )
    run(joined, tmp_path)
    same(tmp_path / "out", windowed_sql(folders, "inner", 3_000_000, 3_000_000))


@pytest.mark.usefixtures("exchange")
def test_a_window_join_as_the_input_of_another(spark, folders, tmp_path):
    """Event time goes on by the end of the window."""
    left, right = ended(spark, folders)
    (third, _) = ended(spark, folders)
    first = StreamJoin(
        left,
        right,
        on=equi("id", "order_id"),
        within=tumbling("o_ts", "i_ts", "2 seconds", delay="10 s"),
        how="left",
        instances=3,
    )
    second = StreamJoin(
        first,
        third.select(["id", "o_ts"]),
        on="id",
        within=within("window_end", "o_ts", lower="0 s", upper="1 s", delay="10 s"),
        suffixes=("", "_3"),
        instances=3,
    )
    query = run(second, tmp_path)
    inner = windowed_sql(folders, "left", 2_000_000, 2_000_000)
    same(
        tmp_path / "out",
        f"select a.*, c.o_ts as o_ts_3 from ({inner}) a join {tables(folders)[0]} c on a.id = c.id "
        f"and epoch_us(c.o_ts) - epoch_us(a.window_end) between 0 and 1000000",
    )
    assert sum(query.metrics().column("late_rows").to_pylist()) == 0


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("layout", EACH_LAYOUT)
def test_a_table_on_one_side(spark, folders, tmp_path, layout):
    (left, _) = streams(spark, folders)
    table = spark.read.parquet(str(folders.items))
    joined = StreamJoin(left, table, on=equi("id", "order_id"), layout=layout, instances=4)
    query = run(joined, tmp_path)
    same(tmp_path / "out", pairs(folders, "id = order_id"))
    # The stream is not kept, and the table is read once.
    held = query.metrics().column("state_rows").to_pylist()
    folders.add()
    again = run(joined, tmp_path)
    table_rows = 4 * 120
    assert again.metrics().column("input_rows").to_pylist() == [40]
    if layout in ("mnrt", "w-choices"):
        assert held[0] <= table_rows
    orders, _ = tables(folders)
    old = " or ".join(f"filename like '%{n:04d}.parquet'" for n in range(4))
    items = f"read_parquet('{folders.items}/*.parquet', filename=true)"
    items = f"(select * exclude filename from {items} where {old})"
    same(tmp_path / "out", f"select * from {orders} join {items} on id = order_id")


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("how", ["left", "left_semi", "left_anti", "right"])
def test_join_types_beside_a_table(spark, folders, tmp_path, how):
    (left, right) = streams(spark, folders)
    if how == "right":
        table = spark.read.parquet(str(folders.orders)).where("id < 20")
        joined = StreamJoin(table, right, on=equi("id", "order_id"), how=how, instances=4)
    else:
        table = spark.read.parquet(str(folders.items)).where("order_id < 20")
        joined = StreamJoin(left, table, on=equi("id", "order_id"), how=how, instances=4)
    query = run(joined, tmp_path)
    side = "id" if how == "right" else "order_id"
    orders, items = tables(folders)
    orders = f"(from {orders} where id < 20)" if how == "right" else orders
    items = items if how == "right" else f"(from {items} where {side} < 20)"
    kind = how.removeprefix("left_") if how != "left" else how
    same(tmp_path / "out", f"select * from {orders} {kind} join {items} on id = order_id")
    assert query.batches()[-1].input_rows == 0


@pytest.mark.usefixtures("exchange")
def test_a_window_after_a_table(spark, folders, tmp_path):
    """Joined rows keep the stream's event time, its watermark and its end."""
    left, right = ended(spark, folders)
    table = spark.createDataFrame([(n, f"kind {n % 3}") for n in range(30)], "nr int, kind string")
    first = StreamJoin(left, table, on=equi("id", "nr"), how="left", instances=3)
    second = StreamJoin(
        first, right, on=equi("id", "order_id"), within=WINDOW, how="full", instances=4
    )
    query = run(second, tmp_path)
    orders, items = tables(folders)
    kinds = "(select range::int as nr, 'kind ' || (range % 3) as kind from range(30))"
    same(
        tmp_path / "out",
        f"select * from (select * from {orders} left join {kinds} on id = nr) "
        f"full join {items} on id = order_id and {LEAD}",
    )
    assert sum(query.metrics().column("late_rows").to_pylist()) == 0
    assert query.batches()[-1].joins[1].state.rows == 0


def test_refusals(spark, folders):
    left, right = streams(spark, folders)
    table = spark.read.parquet(str(folders.items))
    on = equi("id", "order_id")
    with pytest.raises(InvalidRequest, match="how: 'full' needs a window"):
        StreamJoin(left, right, on=on, how="outer", instances=2)
    with pytest.raises(
        InvalidRequest, match="'right' keeps unmatched rows of the table on the right side"
    ):
        StreamJoin(left, table, on=on, how="right", instances=2)
    with pytest.raises(InvalidRequest, match="the right side is a table, which has no event time"):
        StreamJoin(left, table, on=on, within=WINDOW, instances=2)
    first = StreamJoin(left, table, on=on, instances=2)
    window = within("i_ts", "o_ts", lower="0 s", upper="1 s", delay="0 s")
    with pytest.raises(InvalidRequest, match="i_ts comes from a table side; name the event time"):
        StreamJoin(first, left, on="id", within=window, suffixes=("", "_3"), instances=2)
    many = sliding("o_ts", "i_ts", "1 hour", "100 ms", delay="0 s")
    with pytest.raises(
        InvalidRequest, match="allows at most 4096 windows for each row, found 36000"
    ):
        StreamJoin(left, right, on=on, within=many, how="left", instances=2)
    StreamJoin(left, right, on=on, within=many, instances=2)
    too_many = sliding("o_ts", "i_ts", "1 hour", "1 ms", delay="0 s")
    with pytest.raises(InvalidRequest, match="windows for each row, found 3600000"):
        StreamJoin(left, right, on=on, within=too_many, instances=2)
