"""Bad input is refused before a job starts, with what was asked, the value, and what to change."""

from __future__ import annotations

import pytest
from pyspark import SparkContext

from joinengine import (
    CheckpointMismatch,
    InvalidRequest,
    StreamJoin,
    equi,
    parquet_stream,
    sliding,
    tumbling,
    within,
)
from joinengine.layouts import Mnrt, Qmmp
from joinengine.state.checkpoint import Checkpoint, read_account, write_account
from tests.stream.cases import run

pytestmark = pytest.mark.spark


@pytest.fixture
def sides(spark, folders):
    return parquet_stream(spark, folders.orders), parquet_stream(spark, folders.items)


def interval(**changes):
    settings = {"lower": "0 s", "upper": "1 s", "delay": "0 s"} | changes
    return within("o_ts", "i_ts", **settings)


REFUSED = {
    "layout: expected one of auto, hash, .*, found 'best'": {"layout": "best"},
    "found 'Hsh:base=ring'. Did you mean 'hash'": {"layout": "Hsh:base=ring"},
    "column 'nokey' of the left side does not exist; the columns of the left side are id": {
        "on": equi("nokey", "order_id")
    },
    "id of the left side is int64 and buyer of the right side is string, .* cast": {
        "on": equi("id", "buyer")
    },
    "column 'id' of the right side does not exist; .* are order_id": {"on": "id"},
    "instances: layout auto needs from 1 to 65536 instances, found 0": {"instances": 0},
    "how: expected one of .*, found 'sideways'": {"how": "sideways"},
    "how: 'left' needs a window": {"how": "left_outer"},
    r"the delay of o_ts is missing. Give tumbling\(": {
        "within": tumbling("o_ts", "i_ts", size="1 s")
    },
    r"the delay of i_ts is missing. Give sliding\(": {
        "within": sliding("o_ts", "i_ts", size="2 s", slide="1 s", delay=("0 s", None))
    },
    "where: column 'o.price' does not exist; .*Write left.price$": {"where": "o.price > 3"},
    "column 't' of the right side does not exist": {
        "within": sliding("o_ts", "t", size="2 s", slide="1 s")
    },
    "event time must be a timestamp, but day is date32.*'cast.`day` as timestamp.'": {
        "within": within("day", "i_ts", lower="0 s", upper="1 s", delay="0 s")
    },
    "how: 'left' needs the upper bound of the interval": {
        "within": within("o_ts", "i_ts", lower="0 s", delay="0 s"),
        "how": "left",
    },
    "how: 'full' needs the lower bound of the interval": {
        "within": within("o_ts", "i_ts", upper="0 s", delay="0 s"),
        "how": "full",
    },
    "how: 'left_semi' needs the upper bound of the interval": {
        "within": within("o_ts", "i_ts", lower="0 s", delay="0 s"),
        "how": "left_semi",
    },
    "the delay of o_ts is missing. Give": {
        "within": within("o_ts", "i_ts", lower="0 s", upper="1 s")
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_join_that_cannot_be_served(sides, message):
    settings = {"on": equi("id", "order_id")} | REFUSED[message]
    with pytest.raises(InvalidRequest, match=message):
        StreamJoin(*sides, **settings)


def test_windows_and_planners_refuse_impossible_settings():
    with pytest.raises(InvalidRequest, match="lower 5 s is above upper 1 s"):
        interval(lower="5 s")
    with pytest.raises(InvalidRequest, match="delay -1 s is negative"):
        interval(delay="-1 s")
    with pytest.raises(InvalidRequest, match="imbalance must be 0 or more, found -1"):
        Mnrt(imbalance=-1)
    with pytest.raises(InvalidRequest, match="intervals must be at least 1, found 0"):
        Qmmp(intervals=0)


def test_no_shared_event_time_type(spark, sides, folders):
    naive = spark.readStream.schema(spark.read.parquet(str(folders.items)).schema).parquet(
        str(folders.items)
    )
    naive = naive.selectExpr("order_id", "cast(i_ts as timestamp_ntz) as i_ts")
    with pytest.raises(
        InvalidRequest, match=r"both sides need the same event-time .*'cast.`i_ts` as"
    ):
        StreamJoin(sides[0], naive, on=equi("id", "order_id"), within=interval())


def test_float_keys(spark, sides, folders):
    frame = spark.readStream.schema("f double").parquet(str(folders.items))
    with pytest.raises(
        InvalidRequest, match=r"f of the right side is double, but floating-point .*\. Cast the key"
    ):
        StreamJoin(sides[0], frame, on=equi("id", "f"))


def test_ambiguous_names(spark, sides):
    left, _ = sides
    with pytest.raises(InvalidRequest, match="ambiguous output column names: both sides have"):
        StreamJoin(left, left, on=equi("id", "id"))
    joined = StreamJoin(left, left, on="id", suffixes=("_a", "_b"))
    assert joined.schema.names[:3] == ["id", "customer_a", "price_a"]
    doubled = spark.readStream.format("rate").load().selectExpr("value as v", "value as V")
    with pytest.raises(InvalidRequest, match="ambiguous column names: an input has v twice"):
        StreamJoin(left, doubled, on=equi("id", "v"))


def test_bounded_sides(spark, sides, folders):
    table = spark.read.parquet(str(folders.items))
    with pytest.raises(InvalidRequest, match="found two bounded DataFrames"):
        StreamJoin(table, table, on="order_id")
    with pytest.raises(InvalidRequest, match="column 'id' of the right side does not exist"):
        StreamJoin(sides[0], table, on="id")
    with pytest.raises(InvalidRequest, match=r"an input must be .*; found str"):
        StreamJoin("orders", table, on="order_id")


def test_a_window_on_a_full_history_join(sides):
    inner = StreamJoin(*sides, on=equi("id", "order_id"))
    third = sides[0].select(["id", "o_ts"])
    window = within("i_ts", "o_ts", lower="0 s", upper="1 s", delay="0 s")
    with pytest.raises(InvalidRequest, match="comes from a full-history join"):
        StreamJoin(inner, third, on="id", within=window, suffixes=("", "_3"))


def test_a_window_on_the_time_of_a_side_that_never_leaves(sides):
    """An open interval has a watermark by the time of the side that ends; explain says so."""
    opened = within("o_ts", "i_ts", lower="0 s", delay="0 s")
    inner = StreamJoin(*sides, on=equi("id", "order_id"), within=opened)
    third = sides[0].select(["id", "o_ts"])
    settings = {"lower": "0 s", "upper": "1 s", "delay": "0 s"}
    for time in ("i_ts", ["o_ts", "i_ts"]):
        within_it = within(time, "o_ts", **settings)
        StreamJoin(inner, third, on="id", within=within_it, suffixes=("", "_3"))
    by_left = within("o_ts", "o_ts", **settings)
    with pytest.raises(InvalidRequest, match=r"o_ts may have any age, .* of its right side: i_ts"):
        StreamJoin(inner, third, on="id", within=by_left, suffixes=("", "_3"))
    text = inner.explain()
    assert "because the interval has no upper bound" in text
    assert "kept until the watermark passes i_ts + 0 s" in text


def test_a_window_on_half_of_a_time(spark, sides):
    inner = StreamJoin(*sides, on=equi("id", "order_id"), within=interval())
    other = sides[0].select(["id", "o_ts"])
    middle = StreamJoin(
        inner,
        other,
        on="id",
        within=within(["o_ts", "i_ts"], "o_ts", lower="0 s", upper="1 s", delay="0 s"),
        suffixes=("", "_3"),
    )
    last = spark.readStream.format("rate").load()
    with pytest.raises(
        InvalidRequest,
        match=r"\(i_ts\) is not the event time of joined rows; name all time columns of one side",
    ):
        StreamJoin(
            middle,
            last,
            on=equi("id", "value"),
            within=within("i_ts", "timestamp", lower="0 s", upper="1 s", delay="0 s"),
        )


def test_the_writer_refuses(sides, tmp_path):
    writer = StreamJoin(*sides, on=equi("id", "order_id")).writeStream
    with pytest.raises(InvalidRequest, match=r"outputMode: expected 'append', .* found 'complete'"):
        writer.outputMode("complete")
    with pytest.raises(InvalidRequest, match=r"trigger: expected .*, found continuous"):
        writer.trigger(continuous="1 second")
    with pytest.raises(InvalidRequest, match="checkpointLocation is missing"):
        writer.format("noop").start()
    there = writer.option("checkpointLocation", tmp_path / "c")
    with pytest.raises(InvalidRequest, match="has no sink"):
        there.start()
    with pytest.raises(InvalidRequest, match="parquet: path is missing"):
        there.format("parquet").start()
    with pytest.raises(InvalidRequest, match="memory: the table has no name"):
        there.format("memory").start()
    with pytest.raises(InvalidRequest, match=r"memoryPerTask: expected .*, found 'much'"):
        there.format("noop").option("memoryPerTask", "much").start()
    with pytest.raises(InvalidRequest, match="moves: 'later' is unknown; choose one of eager"):
        there.format("noop").option("moves", "later").start()
    with pytest.raises(
        InvalidRequest, match="workPerTuple: expected a duration of 0 or more, found -1 s"
    ):
        there.format("noop").option("workPerTuple", "-1 s").start()
    with pytest.raises(
        InvalidRequest, match="workPerResult: expected a duration of 0 or more, found -1 s"
    ):
        there.format("noop").option("workPerResult", "-1 s").start()
    with pytest.raises(InvalidRequest, match="is not a path of a POSIX file system"):
        writer.option("checkpointLocation", "hdfs://host/x").format("noop").start()
    with pytest.raises(InvalidRequest, match="stateLocation: s3:// names no bucket"):
        there.option("stateLocation", "s3://").format("noop").start()
    assert not (tmp_path / "c").exists()


def test_another_querys_checkpoint(spark, sides, folders, tmp_path):
    run(StreamJoin(*sides, on=equi("id", "order_id"), instances=2), tmp_path)
    checkpoint = Checkpoint.below(tmp_path / "out-checkpoint")
    other = StreamJoin(*sides, on=equi("customer", "buyer"), instances=2)
    with pytest.raises(
        CheckpointMismatch, match="another query: its on of operator 0 is id = order_id"
    ):
        run(other, tmp_path)
    write_account(checkpoint, read_account(checkpoint) | {"format": 99})
    with pytest.raises(CheckpointMismatch, match="has format 99"):
        run(StreamJoin(*sides, on=equi("id", "order_id"), instances=2), tmp_path)


def test_a_checkpoint_that_is_not_ours(spark, sides, folders, tmp_path):
    frame = spark.readStream.format("rate").load()
    foreign = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = foreign.start()
    query.processAllAvailable()
    query.stop()
    writer = StreamJoin(*sides, on=equi("id", "order_id")).writeStream.format("noop")
    with pytest.raises(CheckpointMismatch, match="that joinengine did not start"):
        writer.option("checkpointLocation", tmp_path / "c").start()


def test_a_connect_session_is_refused():
    from joinengine.spark.session.session import check_classic  # noqa: PLC0415

    class Session:
        pass

    Session.__module__ = "pyspark.sql.connect.session"
    with pytest.raises(InvalidRequest, match="Spark Connect"):
        check_classic(Session())


def test_a_broken_shuffle_setting_is_refused(spark, sides, tmp_path):
    name = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
    writer = StreamJoin(*sides, on=equi("id", "order_id")).writeStream.format("noop")
    spark.conf.set(name, "false")
    try:
        with pytest.raises(InvalidRequest, match=name):
            writer.option("checkpointLocation", tmp_path / "c").start()
    finally:
        spark.conf.unset(name)


def test_threads_that_share_those_of_the_jvm_are_refused(spark, sides, tmp_path, monkeypatch):
    """Jobs of two queries would get each other's instructions."""
    writer = StreamJoin(*sides, on=equi("id", "order_id")).writeStream.format("noop")
    monkeypatch.setattr(SparkContext, "_gateway", object())  # not a ClientServer: a JavaGateway
    with pytest.raises(InvalidRequest, match="PYSPARK_PIN_THREAD is false"):
        writer.option("checkpointLocation", tmp_path / "c").start()


def test_streams_refuse(spark, folders, tmp_path):
    with pytest.raises(InvalidRequest, match="does not exist"):
        parquet_stream(spark, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidRequest, match="holds no Parquet file yet"):
        parquet_stream(spark, tmp_path / "empty")
    (tmp_path / "empty" / "x.parquet").write_bytes(b"half")
    with pytest.raises(InvalidRequest, match=r"x.parquet is not a whole Parquet file"):
        parquet_stream(spark, tmp_path / "empty")
    with pytest.raises(InvalidRequest, match="rows_per_interval: 0"):
        parquet_stream(spark, folders.orders, rows_per_interval=0)
    with pytest.raises(InvalidRequest, match="select: column 'x' does not exist"):
        parquet_stream(spark, folders.orders).select(["x"])


WRONG_SINKS = {
    "format: Spark does not know 'parqet'": lambda w, _: w.format("parqet"),
    "csv: path is missing": lambda w, _: w.format("csv"),
    "noop: option 'capcity' is unknown. Did you mean 'capacity'": lambda w, _: w.format(
        "noop"
    ).option("capcity", 3),
    "fsync: expected true or false, found 'yes'": lambda w, _: w.format("noop").option(
        "FSync", "yes"
    ),
    "memoryPerTask: expected at least .* bytes, found '1'": lambda w, _: w.format("noop").option(
        "memoryPerTask", 1
    ),
    "path: /proc/x cannot be created": lambda w, _: w.format("parquet").option("path", "/proc/x"),
    "path: .*/file is a file": lambda w, root: w.format("csv").option("path", root / "file"),
    "checkpointLocation and path are both": lambda w, root: w.format("parquet").option(
        "path", root / "c"
    ),
    "path: .* lies in the folder .* so the query would read": lambda w, root: w.format(
        "parquet"
    ).option("path", root / "in" / "orders"),
    "path and sideOutput are both": lambda w, root: (
        w.format("parquet").option("path", root / "o").option("sideOutput", root / "o")
    ),
}


@pytest.mark.parametrize("message", WRONG_SINKS)
def test_a_sink_is_checked_at_start(sides, tmp_path, message):
    (tmp_path / "file").touch()
    writer = StreamJoin(*sides, on=equi("id", "order_id")).writeStream
    writer = WRONG_SINKS[message](writer.option("checkpointLocation", tmp_path / "c"), tmp_path)
    with pytest.raises(InvalidRequest, match=message):
        writer.start()
    assert not (tmp_path / "c" / "offsets").exists()


WRONG_CALLS = {
    "database `nodb` does not exist": lambda w: w.toTable("nodb.t"),
    "'a b' is not a table name": lambda w: w.toTable("a b"),
    "toTable: 5 is not a table name": lambda w: w.toTable(5),
    "'some_view' is a view": lambda w: w.toTable("some_view"),
    "foreachBatch: expected a function .*, found 'x'": lambda w: w.foreachBatch("x"),
    "foreach is not supported": lambda w: w.foreach(print),
    "write processingTime='5 s'": lambda w: w.trigger("5 s"),
    "outputMode: expected 'append', .* found None": lambda w: w.outputMode(None),
    "relayout: expected a batch from 1 on, found '1'": lambda w: w.relayout("1"),
    "relayout: batch 1 needs layout=": lambda w: w.relayout(1),
    "layout: expected a name .*, found 3": lambda w: w.relayout(1, layout=3),
    "layout: expected a name .*, found <class": lambda w: w.relayout(1, layout=Mnrt),
    "instances: expected a whole number, found '4'": lambda w: w.relayout(1, instances="4"),
}


@pytest.mark.parametrize("message", WRONG_CALLS)
def test_wrong_arguments_of_a_writer(spark, sides, tmp_path, message):
    spark.range(1).createOrReplaceTempView("some_view")
    writer = StreamJoin(*sides, on=equi("id", "order_id")).writeStream
    with pytest.raises(InvalidRequest, match=message):
        WRONG_CALLS[message](writer.option("checkpointLocation", tmp_path / "c"))


def test_a_checksum_needs_hashes(spark, sides, tmp_path):
    nested = spark.readStream.format("rate").load().selectExpr("value", "array(value) as many")
    joined = StreamJoin(sides[0], nested, on=equi("id", "value"))
    writer = joined.writeStream.format("noop").option("checkpointLocation", tmp_path / "c")
    with pytest.raises(InvalidRequest, match="checksummed: many: a column of type list"):
        writer.checksummed().start()
