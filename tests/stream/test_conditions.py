"""Bands, other predicates and `where` on Spark, against DuckDB."""

from __future__ import annotations

import pytest

from joinengine import InvalidRequest, StreamJoin, band, equi, parquet_stream, theta, within
from tests.stream.cases import file_stream, pairs, run, streams
from tests.stream.conftest import EACH_LAYOUT, ITEMS, found_in, oracle, same

pytestmark = pytest.mark.spark

#: (band, the same in SQL)
BANDS = {
    "integers": (
        band("id", "order_id", lower=-1, upper=2),
        "order_id - id between -1 and 2",
    ),
    "far away": (
        band("id", "order_id", lower=20, upper=31),
        "order_id - id between 20 and 31",
    ),
    "decimals": (
        band("price", "amount", lower=-0.25, upper=0.5),
        "amount - price between -0.25 and 0.5",
    ),
    "dates": (
        band("day", "sold", lower="-1 day", upper="0 s"),
        "sold - day between -1 and 0",
    ),
    "timestamps": (
        band("o_ts", "i_ts", lower="-50 ms", upper="100 ms"),
        "epoch_us(i_ts) - epoch_us(o_ts) between -50000 and 100000",
    ),
}


@pytest.mark.parametrize("kind", BANDS)
def test_bands(spark, folders, tmp_path, kind):
    on, sql = BANDS[kind]
    left, right = streams(spark, folders)
    run(StreamJoin(left, right, on=on, instances=5), tmp_path)
    same(tmp_path / "out", pairs(folders, sql))


@pytest.mark.parametrize("layout", EACH_LAYOUT)
def test_a_windowed_band_under_every_layout(spark, folders, tmp_path, layout):
    left, right = streams(spark, folders)
    window = within("o_ts", "i_ts", lower="-3 seconds", upper="8 seconds", delay="10 seconds")
    on = band("id", "order_id", lower=-1, upper=1)
    joined = StreamJoin(left, right, on=on, within=window, layout=layout, instances=5)
    query = run(joined, tmp_path)
    lead = "epoch_us(i_ts) - epoch_us(o_ts)"
    same(
        tmp_path / "out",
        pairs(folders, f"order_id - id between -1 and 1 and {lead} between -3e6 and 8e6"),
    )
    assert sum(query.metrics().column("expired_rows").to_pylist()) > 0


def test_floats_and_what_is_no_number(spark, folders, tmp_path):
    left = file_stream(spark, folders.orders, limit=2).selectExpr(
        "id", "case when id = 3 then double('NaN') else id / 4.0D end as f"
    )
    right = file_stream(spark, folders.items, limit=2).selectExpr(
        "order_id", "float(order_id) / 8 as g"
    )
    joined = StreamJoin(left, right, on=band("f", "g", lower=-0.3, upper=0.125), instances=4)
    query = run(joined, tmp_path)
    orders, items = f"'{folders.orders}/*.parquet'", f"'{folders.items}/*.parquet'"
    same(
        tmp_path / "out",
        f"select id, f, order_id, g from (select id, id / 4.0::double as f from {orders} "
        f"where id <> 3) join (select order_id, order_id / 8.0::double as g from {items}) "
        f"on g - f between -0.3 and 0.125",
    )
    counted = sum(query.metrics().column("null_rows").to_pylist())
    missing = oracle(
        f"select * from (select id from {orders} where id is null or id = 3 union all "
        f"select order_id from {items} where order_id is null)"
    )
    assert counted == missing.total()


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("layout", ["mnrt", "bi-k", "pkg"])
def test_where_beside_equal_keys(spark, folders, tmp_path, layout):
    left, right = streams(spark, folders)
    where = "price > amount and (customer not like '%7' or i_ts is null) and abs(id - 20) < 15"
    joined = StreamJoin(
        left, right, on=equi("id", "order_id"), where=where, layout=layout, instances=5
    )
    run(joined, tmp_path)
    same(tmp_path / "out", pairs(folders, f"id = order_id and {where}"))


@pytest.mark.parametrize("layout", ["dynamic", "bi", "shuffle"])
def test_theta(spark, folders, tmp_path, layout):
    left, right = streams(spark, folders)
    on = theta("left.id < right.order_id and price = amount and Left.day <> Right.sold")
    run(StreamJoin(left, right, on=on, layout=layout, instances=5), tmp_path)
    same(tmp_path / "out", pairs(folders, "id < order_id and price = amount and day <> sold"))


def test_instants_have_the_hours_of_the_session(spark, folders, tmp_path):
    zone = "Asia/Kolkata"  # half an hour apart from UTC's, so that minutes differ too
    left, right = streams(spark, folders)
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        joined = StreamJoin(
            *(left, right),
            on=equi("id", "order_id"),
            where="hour(o_ts) * 60 + minute(i_ts) >= 330 and date_trunc('day', o_ts) <= i_ts",
            instances=3,
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    run(joined, tmp_path)
    first, second = (f"timezone('{zone}', {column}::timestamptz)" for column in ("o_ts", "i_ts"))
    there = f"hour({first}) * 60 + minute({second}) >= 330 and {first}::date <= {second}::date"
    same(tmp_path / "out", pairs(folders, f"id = order_id and {there}"))


@pytest.mark.usefixtures("exchange")
def test_a_band_beside_an_equality(spark, folders, tmp_path):
    left, right = streams(spark, folders)
    on = [equi("id", "order_id"), band("o_ts", "i_ts", lower="0 s", upper="1 second")]
    run(StreamJoin(left, right, on=on, instances=5), tmp_path)
    lead = "epoch_us(i_ts) - epoch_us(o_ts)"
    same(tmp_path / "out", pairs(folders, f"id = order_id and {lead} between 0 and 1000000"))


@pytest.mark.usefixtures("exchange")
def test_a_chain_with_a_band(spark, folders, tmp_path):
    """The results of a band are the tuples of the next join."""
    left, right = streams(spark, folders)
    (again, _) = streams(spark, folders)
    first = StreamJoin(left, right, on=band("id", "order_id", lower=1, upper=2), instances=4)
    on = [equi("customer", "customer"), band("order_id", "id", lower=-2, upper=-2)]
    joined = StreamJoin(first, again, on=on, suffixes=("", "_2"), layout="qmmp", instances=3)
    run(joined, tmp_path)
    orders = f"'{folders.orders}/*.parquet'"
    same(
        tmp_path / "out",
        f"select a.*, b.id as id_2, b.customer as customer_2, b.price as price_2, b.day as day_2, "
        f"b.o_ts as o_ts_2 from ({pairs(folders, 'order_id - id between 1 and 2')}) a "
        f"join {orders} b on a.customer = b.customer and b.id - a.order_id = -2",
    )
    assert found_in(tmp_path / "out")


@pytest.mark.parametrize("layout", EACH_LAYOUT)
def test_a_self_join_reads_once(spark, folders, tmp_path, layout):
    """One source, two roles; a tuple meets itself."""
    items = parquet_stream(spark, folders.items, rows_per_interval=120)
    joined = StreamJoin(
        items,
        items,
        on=band("order_id", "order_id", lower=-1, upper=1),
        left_where="amount > 2.5",
        right_where="right.amount <> 3 and buyer is not null",
        suffixes=("_1", "_2"),
        layout=layout,
        instances=5,
    )
    query = run(joined, tmp_path)
    names = ", ".join(
        f"{side}.{name} as {name}_{n}" for n, side in ((1, "a"), (2, "b")) for name in ITEMS.names
    )
    items_sql = f"from '{folders.items}/*.parquet'"
    same(
        tmp_path / "out",
        f"select {names} from ({items_sql} where amount > 2.5) a join ({items_sql} where "
        f"amount <> 3 and buyer is not null) b on abs(a.order_id - b.order_id) <= 1",
    )
    assert sum(query.metrics().column("input_rows").to_pylist()) == 4 * 120


REFUSED = {
    "band: both columns .* id is int64 and sold is date32.*; cast them": {
        "on": band("id", "sold", lower=0, upper=1)
    },
    r"band: expected a number .* 0:00:05 \(id is int64": {
        "on": band("id", "order_id", lower="5 s", upper="6 s")
    },
    "band: expected a duration .* found 3 .o_ts is timestamp": {
        "on": band("o_ts", "i_ts", lower=3, upper=4)
    },
    "band: expected whole days, found 1:00:00": {
        "on": band("day", "sold", lower="0 s", upper="1 hour")
    },
    "band: both columns must be .* customer is string and buyer is string": {
        "on": band("customer", "buyer", lower=0, upper=1)
    },
    "band: column 'nothing' of the left side does not exist": {
        "on": band("nothing", "order_id", lower=0, upper=1)
    },
    "layout mnrt places rows by key and does not support bands with an open end; use auto": {
        "on": band("id", "order_id", lower=0),
        "layout": "mnrt",
    },
    "layout mnrt places rows by key and does not support theta joins; use auto, dynamic": {
        "on": theta("id < 3"),
        "layout": "mnrt",
    },
    "theta: 'id <' is not a valid predicate": {"on": theta("id <"), "layout": "bi"},
    "theta: column 'left.sold' does not exist; the columns of the left side are id": {
        "on": theta("left.sold = 3"),
        "layout": "bi",
    },
    "theta: random in .* is not supported": {"on": theta("random() < 1"), "layout": "shuffle"},
    "where: expected a predicate, found 'id [+] 1' of type BIGINT": {"where": "id + 1"},
    "where: subquery in .* is not supported": {"where": "id in (select 1)"},
    "left_where: column 'sold' does not exist; the columns are id": {"left_where": "sold is null"},
    "right_where: column 'left.id' does not exist; it may use columns of one side only": {
        "right_where": "left.id = 3"
    },
    "on: 2 conditions, 2 of them equi": {"on": [equi("id", "order_id"), equi("id", "order_id")]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(spark, folders, message):
    settings = {"on": equi("id", "order_id"), "instances": 4} | REFUSED[message]
    with pytest.raises(InvalidRequest, match=message):
        StreamJoin(*streams(spark, folders), **settings)


def test_bounds_are_checked_where_they_are_written():
    with pytest.raises(InvalidRequest, match="lower 3 is above upper 1"):
        band("a", "b", lower=3, upper=1)
    with pytest.raises(InvalidRequest, match="neither lower nor upper"):
        band("a", "b")
    with pytest.raises(InvalidRequest, match="a duration and a number"):
        band("a", "b", lower="1 s", upper=5)
    with pytest.raises(InvalidRequest, match="lower nan is not a finite number"):
        band("a", "b", lower=float("nan"))


def test_the_plan_says_what_is_joined(spark, folders):
    on = [equi("id", "order_id"), band("price", "amount", lower=-1)]
    joined = StreamJoin(*streams(spark, folders), on=on, where="customer <> buyer", instances=4)
    assert "on id = order_id and -1 <= amount - price, where customer <> buyer" in joined.explain()
