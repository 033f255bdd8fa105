"""Sources of odd files, in running queries: named, skipped, and read as Spark reads them."""

from __future__ import annotations

import datetime as dt
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import ArrayType, IntegerType, MapType, StructType

from joinengine import StreamJoin, equi, parquet_stream
from joinengine.model.errors import CheckpointMismatch, DamagedState, InvalidRequest
from joinengine.spark.sources.inputs import Table
from joinengine.spark.sources.types import arrow_schema
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
    parts = [pq.read_table(path) for path in (inputs / "out").glob("*.parquet")]
    table = pa.concat_tables(parts, promote_options="permissive").select(list(columns))
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
    said = {"schema": "id bigint, name string", "on_bad_file": "skip"}
    query = run(joined(spark, inputs, **said), inputs)
    assert [row["id"] for row in results(inputs, "id")] == [1, 2, 4]
    (text,) = skipped_in(query)
    assert text.startswith(f"{inputs}/left/bad.parquet: does not fit: the stream has no column")
    ((file, batch),) = (
        (row["file"], row["batch"]) for row in pq.read_table(inputs / "side/skipped").to_pylist()
    )
    assert (file, batch) == (f"{inputs}/left/bad.parquet", query.metrics()["batch"][0].as_py())
    put(inputs / "left", "bad.parquet", id=[3], name=["c"])
    again = run(joined(spark, inputs, **said), inputs)
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


def test_columns_of_frames_may_have_any_name(spark, inputs, tmp_path):
    """PySpark's `mapInArrow` takes a dot in a name for one between a struct and its field."""
    names = ["a.b", "x`y", "ü ö", "key"]
    folder = str(tmp_path / "odd")
    spark.range(3).selectExpr("id", "id + 1", "id + 2", "id").toDF(*names).write.parquet(folder)
    frame = spark.readStream.schema(spark.read.parquet(folder).schema).parquet(folder)
    table = Table(spark, folder, arrow_schema(spark.read.parquet(folder).schema))
    run(StreamJoin(frame, table, on=equi("a.b", "a.b"), suffixes=("", "_r"), instances=2), inputs)
    rows = results(inputs, *names, *(f"{name}_r" for name in names))
    assert [tuple(row.values()) for row in rows] == [(n, n + 1, n + 2, n) * 2 for n in range(3)]


@pytest.mark.parametrize("kind", ["string collate UTF8_LCASE", "array<string collate UNICODE>"])
def test_text_that_spark_does_not_compare_by_its_bytes_is_refused(spark, inputs, kind):
    """Two texts that are equal to Spark would not meet."""
    rate = spark.readStream.format("rate").load()
    frame = rate.selectExpr("value", f"named_struct('c', cast(null as {kind})) s")
    right = parquet_stream(spark, inputs / "right")
    with pytest.raises(InvalidRequest, match=r"a DataFrame: column 's' .* by its bytes"):
        StreamJoin(frame, right, on=equi("value", "key"), instances=2)
    with pytest.raises(InvalidRequest, match=r"schema: column 'name' .* by its bytes"):
        parquet_stream(spark, inputs / "left", schema=f"id bigint, name {kind}")


TWICE = StructType().add("a", IntegerType()).add("a", IntegerType())


@pytest.mark.parametrize(
    "kind",
    [VectorUDT(), ArrayType(VectorUDT()), StructType(), MapType(IntegerType(), TWICE)],
    ids=repr,
)
def test_columns_that_do_not_travel_are_refused_before_a_query_starts(kind):
    """PySpark gives their types in Arrow; the first batch would fail."""
    columns = StructType().add("id", IntegerType()).add("s", kind)
    with pytest.raises(InvalidRequest, match=r"column 's' is of type .* does not support; cast it"):
        arrow_schema(columns)


# Columns that come while the query lives


def test_a_restart_has_the_columns_of_the_checkpoint(spark, inputs):
    run(joined(spark, inputs), inputs)
    put(inputs / "left", "bad.parquet", id=[3], name=["c"], more=[1])
    put(inputs / "left", "good.parquet", id=[4], name=["d"])
    with pytest.raises(InvalidRequest, match=r"bad\.parquet .* no column 'more'.*'add' adds"):
        run(joined(spark, inputs), inputs)
    query = run(joined(spark, inputs, on_bad_file="skip"), inputs)
    assert [row["id"] for row in results(inputs, "id")] == [1, 2, 4]
    assert "more" not in pq.read_table(inputs / "out").schema.names
    assert len(skipped_in(query)) == 1
    with pytest.raises(InvalidRequest, match=r"bad\.parquet .* no column 'more'.*'add' adds"):
        run(joined(spark, inputs), inputs)
    query = run(joined(spark, inputs, on_bad_file="skip"), inputs)
    assert skipped_in(query) == []
    query = run(joined(spark, inputs, on_bad_file="skip", schema_changes="add"), inputs)
    assert results(inputs, "id")[2] == {"id": 3}
    assert skipped_in(query) == []


@pytest.mark.parametrize("layout", ["mnrt", "hash"])
def test_added_and_widened_columns_are_taken_in_over_live_state(spark, inputs, layout):
    def join(**options):
        left = parquet_stream(spark, inputs / "left", schema_changes="add", **options)
        right = parquet_stream(spark, inputs / "right")
        return StreamJoin(left, right, on=equi("id", "key"), instances=2, layout=layout)

    put(
        inputs / "left",
        "0.parquet",
        id=[1, 2, 7],
        name=["a", "b", "g"],
        n=pa.array([1, 2, 7], "int8"),
    )
    for number in range(3):  # runs that a merge meets
        put(inputs / "left", f"1{number}.parquet", id=[50 + number], name=["x"])
        run(join(), inputs)
    put(inputs / "left", "2.parquet", id=[3, 8], name=["c", "h"], n=[300, 8], more=["m3", "m8"])
    run(join(), inputs)
    for number in range(3):
        put(inputs / "left", f"3{number}.parquet", id=[60 + number], name=["y"], more=["z"])
        run(join(), inputs)
    put(inputs / "right", "1.parquet", key=[7, 8, 51, 61], price=[70, 80, 51, 61])
    run(join(), inputs)
    found = [tuple(row.values()) for row in results(inputs, "id", "n", "more", "price")]
    assert sorted(found) == [
        (1, 1, None, 10),
        (2, 2, None, 20),
        (3, 300, "m3", 30),
        (7, 7, None, 70),
        (8, 8, "m8", 80),
        (51, None, None, 51),
        (61, None, "z", 61),
    ]


def test_columns_come_to_a_stream_with_computed_ones(spark, inputs):
    def join():
        left = parquet_stream(spark, inputs / "left", schema_changes="add")
        left = left.withColumn("twice", "id * 2").where("twice > 2")
        return StreamJoin(left, parquet_stream(spark, inputs / "right"), on=equi("id", "key"))

    run(join(), inputs)
    put(inputs / "left", "1.parquet", id=[3], more=["m3"])
    (inputs / "left" / "0.parquet").unlink()
    put(inputs / "right", "1.parquet", key=[2], price=[21])
    run(join(), inputs)
    found = [tuple(row.values()) for row in results(inputs, "name", "more", "twice", "price")]
    assert sorted(found, key=str) == [("b", None, 4, 20), ("b", None, 4, 21), (None, "m3", 6, 30)]


def test_columns_that_come_do_not_shift_those_of_csv(spark, inputs):
    """Spark's readers take one header for all files."""

    def writer(**given):
        join = joined(spark, inputs, schema_changes="add", **given)
        kept = join.writeStream.format("csv").option("checkpointLocation", inputs / "csv-state")
        return kept.option("header", True).trigger(availableNow=True)

    writer().start(str(inputs / "csv")).awaitTermination()
    put(inputs / "left", "1.parquet", id=[3], name=["c"], more=["m3"])
    with pytest.raises(InvalidRequest, match=r"places, and the results have had id, name, .* more"):
        writer().start(str(inputs / "csv"))


def test_the_type_of_a_key_does_not_change(spark, inputs):
    put(inputs / "left", "0.parquet", id=pa.array([1], pa.int32()), name=["a"])
    run(joined(spark, inputs, schema_changes="add"), inputs)
    put(inputs / "left", "1.parquet", id=pa.array([2], pa.int64()), name=["b"])
    with pytest.raises(InvalidRequest, match="'id' is int32 in the check"):
        run(joined(spark, inputs, schema_changes="add"), inputs)


def test_a_query_over_columns_that_the_checkpoint_has_not(spark, inputs):
    run(joined(spark, inputs), inputs)
    put(inputs / "left", "1.parquet", id=[3], name=["c"], more=[1])
    left, right = (parquet_stream(spark, inputs / name) for name in ("left", "right"))
    other = StreamJoin(left.where("more > 0"), right, on=equi("id", "key"), instances=2)
    with pytest.raises(InvalidRequest, match="another query"):
        started(other, inputs)
    asking = StreamJoin(left, right, on=equi("id", "key"), where="more > 0", instances=2)
    with pytest.raises(InvalidRequest, match=r"'more' does not exist.*schema_changes='add'"):
        started(asking, inputs)
    selecting = StreamJoin(left.select("id", "more"), right, on=equi("id", "key"), instances=2)
    with pytest.raises(CheckpointMismatch, match=r"'more' does not exist.*schema_changes='add'"):
        started(selecting, inputs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "schema: no column is named"),
        ("id bigint,", r"schema: 'id bigint,' is not a list of columns: \[PARSE_SYNTAX_ERROR\]"),
        ("id nope", "schema: 'id nope' is not a list of columns: .* data type"),
        ("id bigint, id int", "schema: column 'id' is given twice"),
        ("id interval", "schema: column 'id' is of type interval, which joinengine does not"),
        ("bigint", "schema: 'bigint' is a str; give a StructType or DDL text"),
        ("id bigint\u202e", r"schema: 'id bigint\\u202e' is not a list of columns"),
        ("x" * 5000, r"schema: 'x{200}\.\.' is not a list of columns"),
    ],
)
def test_columns_in_words_that_are_none(spark, folders, text, said):
    with pytest.raises(InvalidRequest, match=said) as told:
        parquet_stream(spark, folders.orders, schema=text)
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 400
