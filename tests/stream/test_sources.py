"""Sources of odd files, in running queries: named, skipped, and read as Spark reads them."""

from __future__ import annotations

import datetime as dt
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import StreamJoin, equi, parquet_stream
from joinengine.model.errors import DamagedState, InvalidRequest
from tests.unit.files import put

pytestmark = pytest.mark.spark


@pytest.fixture
def inputs(tmp_path):
    put(tmp_path / "left", "0.parquet", id=[1, 2], name=["a", "b"])
    put(tmp_path / "right", "0.parquet", key=[1, 2, 3, 4], price=[10, 20, 30, 40])
    return tmp_path


def joined(spark, inputs, **options):
    return StreamJoin(
        parquet_stream(spark, inputs / "left", settle="0 s", **options),
        parquet_stream(spark, inputs / "right"),
        on=equi("id", "key"),
        instances=2,
    )


def started(join, inputs):
    return (
        join.writeStream.format("parquet")
        .option("checkpointLocation", str(inputs / "checkpoint"))
        .option("sideOutput", str(inputs / "side"))
        .trigger(availableNow=True)
        .start(str(inputs / "out"))
    )


def run(join, inputs):
    query = started(join, inputs)
    query.awaitTermination()
    return query


def results(inputs, *columns):
    table = pq.read_table(inputs / "out").select(list(columns))
    return sorted(table.to_pylist(), key=str)


def skipped_in(query):
    return [text for texts in query.metrics()["skipped_files"].to_pylist() for text in texts]


def test_a_bad_file_is_refused_then_skipped_and_named_once(spark, inputs):
    join = joined(spark, inputs)
    run(join, inputs)
    put(inputs / "left", "bad.parquet", id=[3], nam=["c"])
    put(inputs / "left", "good.parquet", id=[4], name=["d"])
    with pytest.raises(InvalidRequest, match=r"bad\.parquet does not fit: .* no column 'nam'"):
        started(join, inputs)
    skipping = parquet_stream(
        spark, inputs / "left", schema="id bigint, name string", on_bad_file="skip", settle="0 s"
    )
    right = parquet_stream(spark, inputs / "right")
    query = run(StreamJoin(skipping, right, on=equi("id", "key"), instances=2), inputs)
    assert [row["id"] for row in results(inputs, "id")] == [1, 2, 4]
    (text,) = skipped_in(query)
    assert text.startswith(f"{inputs}/left/bad.parquet: does not fit: the stream has no column")
    ((file, batch),) = (
        (row["file"], row["batch"]) for row in pq.read_table(inputs / "side/skipped").to_pylist()
    )
    assert (file, batch) == (f"{inputs}/left/bad.parquet", query.metrics()["batch"][0].as_py())
    put(inputs / "left", "bad.parquet", id=[3], name=["c"])
    again = run(StreamJoin(skipping, right, on=equi("id", "key"), instances=2), inputs)
    assert [row["id"] for row in results(inputs, "id")] == [1, 2, 3, 4]
    assert skipped_in(again) == []


def test_a_bad_file_that_comes_while_the_query_runs(spark, inputs):
    query = (
        joined(spark, inputs)
        .writeStream.format("noop")
        .option("checkpointLocation", str(inputs / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    put(inputs / "left", "bad.parquet", id=["x"])
    with pytest.raises(
        InvalidRequest, match=r"^source file .*bad\.parquet does not fit: column 'id'"
    ):
        query.awaitTermination()


def spoil(path):
    stat, content = path.stat(), bytearray(path.read_bytes())
    footer = int.from_bytes(content[-8:-4], "little") + 8
    content[4 : len(content) - footer] = b"\xff" * (len(content) - footer - 4)
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_corrupt_pages_name_the_file_and_can_be_skipped(spark, inputs):
    run(joined(spark, inputs), inputs)
    bad = put(inputs / "left", "bad.parquet", id=[3], name=["c"])
    put(inputs / "left", "good.parquet", id=[4], name=["d"])
    spoil(bad)
    with pytest.raises(DamagedState, match=r"source file .*bad\.parquet cannot be read .*'skip'"):
        run(joined(spark, inputs), inputs)
    query = run(joined(spark, inputs, on_bad_file="skip"), inputs)
    assert [row["id"] for row in results(inputs, "id")] == [1, 2, 4]
    (text,) = skipped_in(query)
    assert text.startswith(f"{bad}: cannot be read")
    assert pq.read_table(inputs / "side/skipped").num_rows == 1


def test_types_and_folder_names_are_read_as_spark_reads_them(spark, inputs):
    at = pa.array([1_704_067_200_000_000_000], pa.timestamp("ns", "UTC"))
    odd = {"u8": pa.array([200], pa.uint8()), "u64": pa.array([2**64 - 1], pa.uint64())}
    for day, number in (("2026-03-01", 1), ("2026-03-02", 2)):
        name = f"day={day}/{number}.parquet"
        put(inputs / "odd", name, id=pa.array([number], pa.uint32()), **odd)
    stream = parquet_stream(spark, f"file://{inputs}/odd")
    assert stream.schema == spark.read.parquet(f"{inputs}/odd").select(*stream.schema.names).schema
    right = parquet_stream(spark, inputs / "right")
    run(StreamJoin(stream, right, on=equi("id", "key"), instances=2), inputs)
    found = results(inputs, "id", "u8", "day", "price")
    days = (dt.date(2026, 3, 1), dt.date(2026, 3, 2))
    assert found == [
        {"id": n, "u8": 200, "day": day, "price": 10 * n} for n, day in enumerate(days, start=1)
    ]
    rows = stream.where("day > date '2026-03-01'").to_df()
    query = rows.writeStream.format("memory").queryName("odd").trigger(availableNow=True).start()
    query.awaitTermination()
    assert [(row.id, row.day) for row in spark.table("odd").collect()] == [(2, days[1])]
    put(inputs / "times", "0.parquet", at=at)
    assert (
        parquet_stream(spark, inputs / "times").schema["at"].dataType.simpleString() == "timestamp"
    )


def test_a_type_that_nobody_can_hold_is_refused_by_column_if_it_is_delivered(spark, inputs):
    put(inputs / "wide", "0.parquet", id=[1], big=pa.array([1], pa.decimal256(50, 2)))
    stream = parquet_stream(spark, inputs / "wide")
    right = parquet_stream(spark, inputs / "right")
    with pytest.raises(InvalidRequest, match=r"column 'big' is of type decimal256\(50, 2\)"):
        StreamJoin(stream, right, on=equi("id", "key"), instances=2)
    with pytest.raises(InvalidRequest, match="column 'big' is of type"):
        stream.select(["id", "big"])
    run(StreamJoin(stream.select(["id"]), right, on=equi("id", "key"), instances=2), inputs)
    assert results(inputs, "id", "price") == [{"id": 1, "price": 10}]


def test_a_frame_with_a_type_that_we_cannot_carry_is_refused_by_column(spark, inputs):
    frame = spark.readStream.format("rate").load().selectExpr("value", "make_ym_interval(1, 2) m")
    right = parquet_stream(spark, inputs / "right")
    with pytest.raises(InvalidRequest, match="column 'm' is of type interval year to month"):
        StreamJoin(frame, right, on=equi("value", "key"), instances=2)
