"""Output folders of the Parquet sink: whose they are, how they are cut, and when files appear."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections import Counter

import pyarrow.parquet as pq
import pytest

from joinengine import (
    CheckpointMismatch,
    DamagedState,
    InvalidRequest,
    StreamJoin,
    equi,
    parquet_stream,
)
from joinengine.driver.batch import BatchRunner
from tests.stream.cases import pairs, streams
from tests.stream.conftest import multiset, oracle, same

pytestmark = pytest.mark.spark


@pytest.fixture
def writer(spark, folders, tmp_path):
    joined = StreamJoin(*streams(spark, folders, (80, 240)), on=equi("id", "order_id"), instances=3)

    def make(checkpoint="checkpoint", **options):
        writer = joined.writeStream.format("parquet").options(**options)
        writer = writer.option("checkpointLocation", tmp_path / checkpoint)
        return writer.trigger(availableNow=True)

    return make


def run(writer, out):
    query = writer.start(str(out))
    query.awaitTermination()
    return query


def test_checkpoint_and_output_know_each_other(writer, folders, tmp_path):
    out, moved = tmp_path / "out", tmp_path / "moved"
    run(writer(COMPRESSION="zstd"), out)
    (file, *_) = out.glob("*.parquet")
    assert pq.read_metadata(file).row_group(0).column(0).compression == "ZSTD"
    with pytest.raises(
        CheckpointMismatch, match=r"has written its results to .*/out, but the path given"
    ):
        writer().start(str(tmp_path / "other"))
    with pytest.raises(
        InvalidRequest, match=r"results of query .* with the checkpoint .*/checkpoin"
    ):
        writer("second").start(str(out))
    out.rename(moved)
    with pytest.raises(CheckpointMismatch, match=r"/out no longer holds the results of checkpoint"):
        writer().start(str(out))
    assert not out.exists()
    folders.add()
    for folder in (tmp_path / "checkpoint/joinengine/manifest", moved / "_joinengine"):
        (folder / ".a.0123456789ab").touch()
        os.utime(folder / ".a.0123456789ab", (0, 0))  # as a driver that was killed leaves it
    run(writer(), moved)
    assert not list(tmp_path.glob("**/.a.*"))
    same(moved, pairs(folders, "id = order_id"))
    run(writer("second", overwrite=True), moved)
    same(moved, pairs(folders, "id = order_id"))


def test_a_folder_of_sparks_file_sink_is_refused(writer, folders, tmp_path):
    """Spark's readers follow its log there, and would lack what others have written."""
    out = tmp_path / "out"
    (out / "_spark_metadata").mkdir(parents=True)
    (out / "_spark_metadata" / "0").write_text("v1\n")
    for options in ({}, {"shared": True}, {"overwrite": True}):
        with pytest.raises(InvalidRequest, match=r"/out holds _spark_metadata, a log"):
            writer(**options).start(str(out))
    (out / "_spark_metadata" / "0").unlink()
    (out / "_spark_metadata").rmdir()
    run(writer(), out)
    same(out, pairs(folders, "id = order_id"))


def test_second_copies_of_state_in_another_place(writer, folders, tmp_path):
    """A run file that is damaged between two starts is taken from there."""
    out, copies = tmp_path / "out", tmp_path / "disk"
    copies.mkdir()
    copies.chmod(0o755)
    run(writer(storeLocation=copies), out)
    runs = {path.name: path for path in (tmp_path / "checkpoint").rglob("runs/*.arrow")}
    (kept,) = copies.iterdir()  # whose it is, its name says
    assert runs and {path.name for path in kept.iterdir()} == runs.keys()
    assert kept.stat().st_mode & 0o777 == 0o700  # as the checkpoint
    for path in runs.values():
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-9])
    folders.add()
    run(writer(storeLocation=f"{copies}/"), out)
    same(out, pairs(folders, "id = order_id"))
    for place in (out / "copies", tmp_path / "checkpoint"):
        with pytest.raises(InvalidRequest, match="storeLocation"):
            writer(storeLocation=place).start(str(out))


def hive_folders(out):
    names = {str(file.parent.relative_to(out)) for file in out.rglob("part-*.parquet")}
    return {name for name in names if not name.startswith("_")}


def rows_in(spark, out, names):
    frame = spark.read.option("basePath", str(out)).parquet(str(out))
    return Counter(tuple(map(str, row)) for row in frame.select(*names).collect())


#: Values of types that Parquet lacks, also inside others.
LACKING = {
    "lasted": "interval '1 02:03:04.5' day to second",
    "page": """if(id = 1, parse_json('{"a": [1, null]}'), null)""",
    "nothing": "null",
    "inside": "array(named_struct('t', interval '-2 00:00:01' day to second))",
}
FOLDERS = ("customer", "day", "price", "o_ts")


def test_hive_folders_are_those_that_spark_makes(spark, writer, folders, tmp_path):
    for file in folders.root.glob("*/*.parquet"):
        file.unlink()
    folders.add(10, 60)  # each order has a folder of its own
    plain, ours, sparks = (tmp_path / name for name in ("plain", "ours", "sparks"))
    run(writer("plain-checkpoint"), plain)
    spark.read.parquet(str(plain)).write.partitionBy(*FOLDERS).parquet(str(sparks))
    query = run(writer().partitionBy("CUSTOMER", *FOLDERS[1:]), ours)
    assert hive_folders(ours) == hive_folders(sparks)
    assert any("%3A" in name for name in hive_folders(ours))
    names = query._runner.query.operators[-1].output_schema.names
    assert rows_in(spark, ours, names) == rows_in(spark, sparks, names)
    (file, *_) = ours.rglob("day=*/**/part-*.parquet")
    assert not set(FOLDERS) & set(pq.read_schema(file).names)


def test_types_that_parquet_lacks_are_read_back_by_spark(spark, tmp_path):
    """Spark writes them into footers; `day` is none of a file's columns."""
    spark.range(2).selectExpr("id").write.parquet(str(tmp_path / "ids"))
    left = spark.readStream.schema("id long").parquet(str(tmp_path / "ids"))
    left = left.selectExpr("id", *(f"{value} as {name}" for name, value in LACKING.items()))
    joined = StreamJoin(left, parquet_stream(spark, tmp_path / "ids"), on="id", instances=2)
    writer = joined.withColumn("day", "date '2026-03-01'").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", tmp_path / "c").trigger(availableNow=True)
    run(writer.option("partitionBy", "day"), tmp_path / "out")
    found = spark.read.parquet(str(tmp_path / "out")).select(*LACKING)
    wanted = spark.range(2).selectExpr(*(f"{value} as {name}" for name, value in LACKING.items()))
    assert found.dtypes == wanted.dtypes
    texts = [f"cast({name} as string) as {name}" for name in LACKING]
    assert Counter(found.selectExpr(*texts).collect()) == Counter(
        wanted.selectExpr(*texts).collect()
    )


@pytest.mark.slow
def test_a_transformed_result_in_hive_folders(spark, folders, tmp_path):
    joined = StreamJoin(*streams(spark, folders), on=equi("id", "order_id"), instances=3)
    narrow = joined.transform(lambda frame: frame.selectExpr("id", "day", "price - amount as gain"))
    writer = narrow.writeStream.format("parquet").option("checkpointLocation", tmp_path / "c")
    writer = writer.trigger(availableNow=True)
    run(writer.option("partitionBy", "day, id"), tmp_path / "out")
    expected = oracle(f"select id, day, price - amount from ({pairs(folders, 'id = order_id')})")
    found = rows_in(spark, tmp_path / "out", ["id", "day", "gain"])
    assert found == Counter({tuple(map(str, row)): n for row, n in expected.items()})
    with pytest.raises(InvalidRequest, match="compactEvery is not valid with transform"):
        writer.option("compactEvery", 2).start(str(tmp_path / "out"))


def test_folders_that_cannot_be_made(writer, tmp_path):
    for names, message in (
        (["nope"], "partitionBy: column 'nope' does not exist"),
        ([5], "partitionBy: expected the name of a column, found 5"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            writer().partitionBy(*names).start(str(tmp_path / "out"))
    with pytest.raises(InvalidRequest, match="partitionBy: noop writes no folders"):
        writer().partitionBy("day").format("noop").start()


def test_a_restart_into_other_folders_is_refused(writer, folders, tmp_path):
    out = tmp_path / "out"
    run(writer().partitionBy("day"), out)
    folders.add()
    with pytest.raises(
        CheckpointMismatch, match=r"partitionBy: .* in folders by day, and this query writes"
    ):
        writer().start(str(out))
    with pytest.raises(
        InvalidRequest, match=r"partitionBy: query .* in folders by day, and this query"
    ):
        writer("second", shared=True).partitionBy("id").start(str(out))
    changed = {"compactEvery": 2, "targetFileSize": "1 MB", "compression": "zstd"}
    run(writer(**changed).partitionBy("DAY"), out)
    assert {name[:4] for name in hive_folders(out)} == {"day="}
    found = sum(pq.read_metadata(file).num_rows for file in out.glob("day=*/*.parquet"))
    assert found == sum(oracle(pairs(folders, "id = order_id")).values()) > 0


def contents(root):
    return {path: path.is_dir() or path.read_bytes() for path in root.rglob("*")}


def test_a_start_that_is_refused_changes_nothing(spark, folders, tmp_path):
    """Neither a first one, so that a corrected query goes through, nor a restart."""
    sides = [parquet_stream(spark, one, settle="0 s") for one in (folders.orders, folders.items)]
    first, out = StreamJoin(*sides, on=equi("id", "order_id")), tmp_path / "out"

    def refused(writer, message):
        before = contents(tmp_path)
        with pytest.raises(InvalidRequest, match=message):
            writer.start(str(out))
        assert contents(tmp_path) == before

    def writer_of(joined, **options):
        options |= {"sideOutput": tmp_path / "a" / "side", "checkpointLocation": tmp_path / "c"}
        return joined.writeStream.format("parquet").options(**options).trigger(availableNow=True)

    bad = folders.orders / "bad.parquet"
    bad.write_bytes(b"PAR1")
    refused(writer_of(first), "bad.parquet is not a whole")
    bad.unlink()
    refused(writer_of(first).relayout(1, instances=0), "layout .* needs from .* instances, found 0")
    out.mkdir()
    (out / "mine.parquet").write_bytes(b"rows")
    refused(writer_of(first), "no joinengine query")
    (out / "mine.parquet").unlink()
    other = StreamJoin(*sides, on=equi("id", "order_id"), where="amount > 1")
    run(writer_of(other, compactEvery=9), out)
    assert visible(out)
    refused(writer_of(first), "another query")


@pytest.mark.parametrize("why", ["overwritten", "deleted"])
def test_a_folder_that_is_taken_away_ends_its_query(spark, writer, folders, tmp_path, why):
    """Another query's results, or a new folder, would get its next ones without a word."""
    out = tmp_path / "out"
    sides = [parquet_stream(spark, one, settle="0 s") for one in (folders.orders, folders.items)]
    joined = StreamJoin(*sides, on=equi("id", "order_id"), instances=2)
    live = joined.writeStream.format("parquet").option("checkpointLocation", tmp_path / "live")
    query = live.trigger(processingTime="20 milliseconds").start(str(out))
    query.processAllAvailable()
    assert visible(out)
    if why == "deleted":
        shutil.rmtree(out)
    else:
        run(writer("second", overwrite=True), out)
    there = visible(out)
    folders.add()
    with pytest.raises(DamagedState, match=r"/out no longer has the marker of this query"):
        query.awaitTermination(60)
    assert visible(out) == there
    with pytest.raises(CheckpointMismatch, match="no longer holds the results of checkpoint"):
        live.start(str(out))


def test_a_checkpoint_of_another_sink_leaves_the_folder_alone(writer, folders, tmp_path):
    run(writer().format("json"), tmp_path / "json")
    folders.add()
    with pytest.raises(CheckpointMismatch, match="made the results of its last batch for another"):
        writer().start(str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    run(writer().format("json"), tmp_path / "json")
    run(writer("second"), tmp_path / "out")
    same(tmp_path / "out", pairs(folders, "id = order_id"))


def visible(out):
    return sorted(out.glob("part-*.parquet"))


def test_results_of_several_batches_are_one_file(spark, folders, tmp_path, monkeypatch):
    """Held back and merged; the end of the run shows what is left, in one file."""
    joined = StreamJoin(*streams(spark, folders), on=equi("id", "order_id"), instances=3)
    seen, run = [], BatchRunner._run

    def watched(*told):
        run(*told)
        seen.append(len(visible(tmp_path / "out")))

    monkeypatch.setattr(BatchRunner, "_run", watched)
    writer = joined.writeStream.format("parquet").option("checkpointLocation", tmp_path / "c")
    writer = writer.option("compactEvery", 3).trigger(availableNow=True)
    writer.start(str(tmp_path / "out")).awaitTermination()
    assert seen == [0, 0, 1, 1, 2]  # four batches with data, and a quiet one
    same(tmp_path / "out", pairs(folders, "id = order_id"))
    assert not list((tmp_path / "out" / "_joinengine").rglob("*.parquet"))
    before = {file: file.stat() for file in visible(tmp_path / "out")}
    folders.add()
    again = writer.trigger(processingTime="0 s").start(str(tmp_path / "out"))
    again.processAllAvailable()
    assert len(visible(tmp_path / "out")) == 2
    again.stop()
    same(tmp_path / "out", pairs(folders, "id = order_id"))
    assert all(file.stat() == stat for file, stat in before.items())


def test_a_listener_stops_its_query_and_shows_what_is_held_back(spark, folders, tmp_path, caplog):
    joined = StreamJoin(*streams(spark, folders), on=equi("id", "order_id"), instances=3)
    writer = joined.writeStream.format("parquet").option("checkpointLocation", tmp_path / "c")
    writer = writer.option("compactEvery", 100).trigger(processingTime="0 s")
    query, seen = writer.start(str(tmp_path / "out")), []
    query.processAllAvailable()
    assert query.done[1] == 4

    def listener(progress):
        before = visible(tmp_path / "out")
        query.stop()
        seen.append((before, len(visible(tmp_path / "out")), query.isActive))

    query.add_listener(listener)
    for _ in range(2):
        folders.add()
    query.awaitTermination()
    assert seen == [([], 1, False)]  # in one file, by the listener's own stop; no batch follows
    assert query.exception() is None
    assert "a listener failed" not in caplog.text
    assert query.done[1] == 5
    again = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    again.awaitTermination()
    assert again.batches()[0].batch == query.batches()[-1].batch + 1
    same(tmp_path / "out", pairs(folders, "id = order_id"))


def test_a_restart_shows_what_is_held_back(writer, folders, tmp_path, monkeypatch):
    """The driver dies before the end; the next start first shows what was held back."""
    out = tmp_path / "out"
    monkeypatch.setattr(BatchRunner, "finish", lambda runner: None)
    monkeypatch.setattr(BatchRunner, "tick_due", lambda runner, now_s: None)
    run(writer(compactEvery=9).partitionBy("day"), out)
    assert not list(out.glob("day=*"))
    before = contents(tmp_path)
    with pytest.raises(CheckpointMismatch, match="holds back results of the batches 0 to 1"):
        writer().format("noop").start()
    assert contents(tmp_path) == before
    run(writer().partitionBy("day"), out)
    days = list(out.glob("day=*"))
    assert days
    assert all(len(list(day.glob("*.parquet"))) == 1 for day in days)
    sql = f"select * exclude (day), day from ({pairs(folders, 'id = order_id')})"
    found = Counter()
    for file in out.glob("day=*/*.parquet"):
        day = dt.date.fromisoformat(file.parent.name.removeprefix("day="))
        rows = multiset(pq.ParquetFile(file).read())
        found.update({(*row, day): count for row, count in rows.items()})
    assert found == oracle(sql)
