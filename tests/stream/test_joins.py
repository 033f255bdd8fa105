"""Joins on Spark against DuckDB: sources, key types, windows, chains, restarts."""

from __future__ import annotations

from collections import Counter

import pyarrow.parquet as pq
import pytest

from joinengine import StreamJoin, equi, parquet_stream, within
from joinengine.layouts import Mnrt
from joinengine.model.errors import DamagedState, InvalidRequest
from tests.stream.cases import file_stream, pairs, run, streams
from tests.stream.conftest import EACH_LAYOUT, ORDERS, found_in, oracle, same

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("layout", EACH_LAYOUT)
def test_full_history(spark, folders, tmp_path, layout):
    left, right = streams(spark, folders)
    joined = StreamJoin(left, right, on=equi("id", "order_id"), layout=layout, instances=5)
    query = run(joined, tmp_path)
    same(tmp_path / "out", pairs(folders, "id = order_id"))
    metrics = query.metrics()
    assert metrics.num_rows == 4
    assert sum(metrics.column("input_rows").to_pylist()) == 4 * 160
    assert sum(metrics.column("output_rows").to_pylist()) == found_in(tmp_path / "out").total()
    assert sum(metrics.column("null_rows").to_pylist()) > 0


@pytest.mark.parametrize("layout", EACH_LAYOUT)
def test_interval_window(spark, folders, tmp_path, layout):
    left, right = streams(spark, folders)
    window = within("o_ts", "i_ts", lower="-3 seconds", upper="8 seconds", delay="10 seconds")
    joined = StreamJoin(
        left, right, on=equi("id", "order_id"), within=window, layout=layout, instances=5
    )
    query = run(joined, tmp_path)
    lead = "epoch_us(i_ts) - epoch_us(o_ts)"
    same(tmp_path / "out", pairs(folders, f"id = order_id and {lead} between -3e6 and 8e6"))
    assert sum(query.metrics().column("late_rows").to_pylist()) == 0
    assert sum(query.metrics().column("expired_rows").to_pylist()) > 0


KEYS = {
    "string": (["customer"], ["buyer"]),
    "decimal": (["price"], ["amount"]),
    "date": (["day"], ["sold"]),
    "timestamp": (["o_ts"], ["i_ts"]),
    "int with bigint": (["id"], ["order_id"]),
    "composite": (["id", "day", "customer"], ["order_id", "sold", "buyer"]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_key_types(spark, folders, tmp_path, kind):
    left_keys, right_keys = KEYS[kind]
    left, right = streams(spark, folders)
    joined = StreamJoin(left, right, on=equi(left_keys, right_keys), instances=3)
    run(joined, tmp_path)
    condition = " and ".join(f"{a} = {b}" for a, b in zip(left_keys, right_keys, strict=True))
    expected = oracle(pairs(folders, condition))
    assert found_in(tmp_path / "out") == expected
    assert bool(expected) == (kind != "timestamp")


@pytest.mark.usefixtures("each_exchange")
def test_other_streaming_sources(spark, folders, tmp_path):
    """A plain file source on one side, our own on the other; watermarks from Spark."""
    left = file_stream(spark, folders.orders, limit=2).withWatermark("o_ts", "10 seconds")
    right = parquet_stream(spark, folders.items, rows_per_interval=120)
    window = within("o_ts", "i_ts", lower="0 s", upper="5 s", delay=None)
    with pytest.raises(Exception, match="the delay of i_ts is missing"):
        StreamJoin(left, right, on=equi("id", "order_id"), within=window, instances=3)
    window = within("o_ts", "i_ts", lower="0 s", upper="5 s", delay=("10 s", "10 s"))
    joined = StreamJoin(left, right, on=equi("id", "order_id"), within=window, instances=3)
    run(joined, tmp_path)
    lead = "epoch_us(i_ts) - epoch_us(o_ts)"
    same(tmp_path / "out", pairs(folders, f"id = order_id and {lead} between 0 and 5e6"))


def test_rows_that_are_kept_for_a_time(spark, folders, tmp_path):
    """The event times of both kinds of streams are known by their watermarks."""
    left = file_stream(spark, folders.orders, limit=2).withWatermark("o_ts", "10 seconds")
    right = parquet_stream(spark, folders.items, rows_per_interval=120)
    timed = right.withWatermark("i_ts", "10 seconds")
    on = {"on": equi("id", "order_id"), "instances": 3}
    joined = StreamJoin(left, timed, keep=("2 seconds", "1 second"), **on)
    run(joined, tmp_path)
    lead = "epoch_us(i_ts) - epoch_us(o_ts)"
    same(tmp_path / "out", pairs(folders, f"id = order_id and {lead} between -1e6 and 2e6"))
    (half,) = StreamJoin(left, timed, keep=(None, "1 minute"), **on).query().operators
    assert half.window == within("o_ts", "i_ts", lower="-1 minute", delay=("10 s", "10 s"))
    (whole,) = StreamJoin(left, timed, keep="1 minute", how="full", **on).query().operators
    assert (whole.window.lower_us, whole.window.upper_us) == (-60_000_000, 60_000_000)
    for wrong, message in {
        (
            right,
            "1 minute",
            None,
        ): "keep: expected one event time of the right input, .* found none",
        (timed, "0 s", None): "keep '0 s' must be positive",
        (timed, (None, None), None): "keep: both sides would be kept forever",
        (timed, "1 minute", half.window): "give one of the two",
    }.items():
        other, keep, window = wrong
        with pytest.raises(InvalidRequest, match=message):
            StreamJoin(left, other, keep=keep, within=window, **on)


def test_pairs_that_are_left_out_are_counted_and_warned_of(spark, folders, tmp_path, caplog):
    left, right = streams(spark, folders)
    few = left.withColumn("k", "id % 3"), right.withColumn("k", "order_id % 3")
    joined = StreamJoin(*few, on="k", max_pairs_per_key=100, instances=2)
    query = run(joined, tmp_path)
    whole = oracle(pairs(folders, "id % 3 = order_id % 3")).total()
    found = found_in(tmp_path / "out").total()
    left_out = sum(query.metrics().column("capped_pairs").to_pylist())
    assert 0 < found
    assert found + left_out == whole
    said = [one.getMessage() for one in caplog.records if "max_pairs_per_key" in one.getMessage()]
    assert len(said) == 2
    assert "of which max_pairs_per_key left out" in said[0]
    assert f"in total, max_pairs_per_key left out {left_out:,} pairs" in said[1]
    assert "at most 100 pairs of a key" in joined.explain()


def test_rate_source(spark, tmp_path):
    """A stream that never ends is stopped in the middle: its results so far are right."""
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 30).load()
    left = rate.selectExpr("value % 10 as k", "value as l")
    right = rate.selectExpr("value % 7 as k", "value as r")
    joined = StreamJoin(left, right, on="k", instances=3)
    query = (
        joined.writeStream.format("parquet")
        .option("path", tmp_path / "out")
        .option("checkpointLocation", tmp_path / "checkpoint")
        .start()
    )
    while query.done[1] < 4:
        query.awaitTermination(0.1)
    query.stop()
    batches = query.batches()
    rows = sum(batch.input_rows for batch in batches) // 2
    found = found_in(tmp_path / "out")
    expected = {(l % 10, l, r) for l in range(rows) for r in range(rows) if l % 10 == r % 7}  # noqa: E741
    assert expected
    assert set(found) == expected
    assert found.total() == len(expected)


def noting(frame, folder, name):
    """The stream, and in `folder` a file for each batch of it that a task reads."""
    kept = str(folder)

    def note(batches):
        import uuid  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        for batch in batches:
            (Path(kept) / f"{name}-{batch.num_rows}-{uuid.uuid4().hex}").touch()
            yield batch

    return frame.mapInArrow(note, frame.schema)


def test_each_source_row_is_read_once_a_batch(spark, folders, tmp_path):
    """Three streams in a chain of joins: one pass over every input."""
    seen = tmp_path / "seen"
    seen.mkdir()
    orders, items = (file_stream(spark, one, limit=2) for one in (folders.orders, folders.items))
    other = items.selectExpr("order_id as id2", "amount as amount2")
    orders, items, more = (
        noting(frame, seen, name)
        for frame, name in ((orders, "orders"), (items, "items"), (other, "more"))
    )
    first = StreamJoin(orders, items, on=equi("id", "order_id"), instances=3)
    second = StreamJoin(first, more, on=equi(["id", "price"], ["id2", "amount2"]), instances=2)
    run(second, tmp_path)
    rows = Counter()
    for path in seen.iterdir():
        name, n, _ = path.name.split("-")
        rows[name] += int(n)
    assert rows == {"orders": 160, "items": 480, "more": 480}
    chain = (
        f"select * from '{folders.orders}/*.parquet' join '{folders.items}/*.parquet' "
        f"on id = order_id join (select order_id as id2, amount as amount2 from "
        f"'{folders.items}/*.parquet') on id = id2 and price = amount2"
    )
    same(tmp_path / "out", chain)


@pytest.mark.usefixtures("exchange")
def test_windowed_chain(spark, folders, tmp_path):
    """The time of a joined row is its latest tuple's; state of both joins expires."""
    left, right = streams(spark, folders)
    third = parquet_stream(spark, folders.orders, rows_per_interval=40).select(["id", "o_ts"])
    inner = StreamJoin(
        left,
        right,
        on=equi("id", "order_id"),
        within=within("o_ts", "i_ts", lower="-4 s", upper="4 s", delay="10 s"),
        instances=3,
    )
    outer = StreamJoin(
        inner,
        third,
        on="id",
        within=within(["o_ts", "i_ts"], "o_ts", lower="-4 s", upper="4 s", delay="10 s"),
        suffixes=("", "_3"),
        layout=Mnrt(imbalance=0.02),
        instances=4,
    )
    query = run(outer, tmp_path)
    sql = (
        f"select a.*, b.*, c.o_ts as o_ts_3 from '{folders.orders}/*.parquet' a "
        f"join '{folders.items}/*.parquet' b on a.id = b.order_id "
        f"and abs(epoch_us(i_ts) - epoch_us(a.o_ts)) <= 4e6 "
        f"join '{folders.orders}/*.parquet' c on c.id = a.id "
        f"and abs(epoch_us(c.o_ts) - epoch_us(greatest(a.o_ts, i_ts))) <= 4e6"
    )
    same(tmp_path / "out", sql)
    batches = query.batches()
    assert all(sum(b.joins[n].state.expired_rows for b in batches) > 0 for n in (0, 1))
    assert sum(join.refused.late for b in batches for join in b.joins) == 0


@pytest.mark.usefixtures("exchange")
def test_restart_continues_and_reads_new_files(spark, folders, tmp_path):
    joined = StreamJoin(*streams(spark, folders), on=equi("id", "order_id"), instances=4)
    run(joined, tmp_path)
    before = found_in(tmp_path / "out").total()
    for _ in range(2):
        folders.add()
    again = StreamJoin(*streams(spark, folders), on=equi("id", "order_id"))
    query = run(again, tmp_path)
    assert [batch.batch for batch in query.batches()] == [4, 5]
    cores = spark.sparkContext.defaultParallelism
    assert {batch.joins[0].instances for batch in query.batches()} == {max(4, cores)}
    assert again.query().operators[0].instances == cores
    same(tmp_path / "out", pairs(folders, "id = order_id"))
    assert found_in(tmp_path / "out").total() > before
    # If nothing is new, no batch runs, and no result comes twice.
    assert run(again, tmp_path).batches() == []
    same(tmp_path / "out", pairs(folders, "id = order_id"))


def test_a_bit_that_flips_between_two_starts_in_a_session_is_seen(spark, folders, tmp_path):
    left, right = streams(spark, folders)
    joined = StreamJoin(left, right, on=equi("id", "order_id"), layout="hash", instances=2)
    run(joined, tmp_path)
    folders.add()
    path = max((tmp_path / "out-checkpoint" / "joinengine" / "runs").glob("g*-run-*"))
    whole = path.read_bytes()
    for part in (15, 30, 45, 60, 85):
        damaged = bytearray(whole)
        damaged[len(whole) * part // 100] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(DamagedState, match=f"^run file .*{path.name}"):
            run(joined, tmp_path)
    path.write_bytes(whole)
    run(joined, tmp_path)
    same(tmp_path / "out", pairs(folders, "id = order_id"))


@pytest.mark.usefixtures("exchange")
def test_layout_and_instances_change_while_it_runs(spark, folders, tmp_path):
    joined = StreamJoin(*streams(spark, folders), on=equi("id", "order_id"), instances=6)
    writer = joined.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", tmp_path / "checkpoint")
    writer = writer.relayout(1, "dynamic").relayout(2, instances=9).relayout(3, "bi-2")
    query = writer.start(str(tmp_path / "out"))
    query.awaitTermination()
    used = [record.joins[0].instances for record in query.batches()]
    assert used == [6, 4, 8, 9]
    assert sum(query.metrics().column("moved_rows").to_pylist()) > 0
    same(tmp_path / "out", pairs(folders, "id = order_id"))
    # A restart with other numbers is one more switch; wishes reach a running query too.
    folders.add()
    folders.add()
    again = StreamJoin(
        *streams(spark, folders), on=equi("id", "order_id"), layout="mnrt", instances=3
    )
    writer = again.writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", tmp_path / "checkpoint").start(
        str(tmp_path / "out")
    )
    query.switch_layout("pkg", instances=5)
    query.awaitTermination()
    assert next(record.joins[0].instances for record in query.batches()) in (3, 5)
    same(tmp_path / "out", pairs(folders, "id = order_id"))
    with pytest.raises(InvalidRequest, match="switch_layout: the query has ended; give the layout"):
        query.switch_layout("qmmp")
    with pytest.raises(InvalidRequest, match="resize: the query has ended"):
        query.resize(2)


def test_filtered_and_narrowed_streams(spark, folders, tmp_path):
    left, right = streams(spark, folders)
    left = left.where("price > 2").where("day < date '2024-01-05'").select(["id", "price"])
    right = right.select(["order_id"])
    joined = StreamJoin(left, right, on=equi("id", "order_id"), instances=2)
    run(joined, tmp_path)
    same(
        tmp_path / "out",
        f"select id, price, order_id from '{folders.orders}/*.parquet' join "
        f"'{folders.items}/*.parquet' on id = order_id where price > 2 and day < date '2024-01-05'",
    )


def test_a_stream_as_an_ordinary_dataframe(spark, folders, tmp_path):
    stream = parquet_stream(spark, folders.orders, rows_per_interval=80).where("price > 2")
    query = (
        stream.to_df()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "rows-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(query.recentProgress) == 2
    same(tmp_path / "rows", f"select * from '{folders.orders}/*.parquet' where price > 2")


def test_a_folder_that_spark_has_written(spark, folders, tmp_path):
    """Instants in INT96 are instants."""
    written = tmp_path / "written"
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        spark.read.parquet(str(folders.orders)).write.parquet(str(written))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    left = parquet_stream(spark, written)
    assert left.schema == spark.read.parquet(str(written)).schema
    right = parquet_stream(spark, folders.items)
    window = within("o_ts", "i_ts", lower="-5 s", upper="5 s", delay="1 hour")
    run(StreamJoin(left, right, on=equi("id", "order_id"), within=window, instances=2), tmp_path)
    lead = "abs(epoch_us(i_ts) - epoch_us(o_ts)) <= 5e6"
    same(tmp_path / "out", pairs(folders, f"id = order_id and {lead}"))


@pytest.mark.usefixtures("exchange")
def test_late_rows_are_counted_and_left_out(spark, folders, tmp_path):
    """A file that arrives last and is far behind: its rows are below the watermark."""
    left, right = streams(spark, folders)
    window = within("o_ts", "i_ts", lower="-9 s", upper="9 s", delay="0 s")
    folders.batches = 0
    folders.rng.seed(99)
    late_orders = folders.orders / "9999.parquet"
    folders._write(folders.root, ORDERS, 40)
    (folders.root / "0000.parquet").rename(late_orders)
    joined = StreamJoin(
        left, right, on=equi("id", "order_id"), within=window, layout="hash", instances=3
    )
    writer = joined.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", tmp_path / "checkpoint")
    query = writer.option("sideOutput", tmp_path / "aside").start(str(tmp_path / "out"))
    query.awaitTermination()
    late = sum(query.metrics().column("late_rows").to_pylist())
    assert late > 0
    total = sum(query.metrics().column("input_rows").to_pylist())
    assert total == 4 * 160 + 40
    lead = "abs(epoch_us(i_ts) - epoch_us(o_ts)) <= 9e6"
    everything = oracle(pairs(folders, f"id = order_id and {lead}"))
    assert not found_in(tmp_path / "out") - everything
    assert found_in(tmp_path / "out").total() < everything.total()
    # They are in the side output, and so are tuples without a key.
    aside = [pq.read_table(tmp_path / "aside" / f"join0-{side}") for side in ("left", "right")]
    reasons = Counter(reason for part in aside for reason in part.column("reason").to_pylist())
    nulls = sum(query.metrics().column("null_rows").to_pylist())
    assert reasons == {"late": late, "null": nulls}
    assert aside[0].schema.names == [*ORDERS.names, "reason"]
    kept = found_in(tmp_path / "out")
    refused = Counter(row[1:5] for row in found_in(tmp_path / "aside" / "join0-left"))
    assert not {row[1:5] for row in kept} & refused.keys()
