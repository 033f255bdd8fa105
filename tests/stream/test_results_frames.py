"""Results as a streaming DataFrame: each once, through restarts, until Spark has committed them."""

from __future__ import annotations

import errno
import shutil
import tempfile
import threading
from multiprocessing.connection import Listener

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import InvalidRequest, StreamJoin, parquet_stream
from joinengine.spark.query import results_frame
from tests.waiting import soon

pytestmark = pytest.mark.spark


def add(folder, file, keys):
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"k": keys, folder.name: [10 * k for k in keys]}), folder / file)


@pytest.fixture
def joined(spark, tmp_path):
    add(tmp_path / "a", "0.parquet", range(20))
    add(tmp_path / "b", "0.parquet", range(0, 40, 2))
    sides = (parquet_stream(spark, tmp_path / name, rows_per_interval=5) for name in "ab")
    return StreamJoin(*sides, on="k", instances=2)


def written(frame, tmp_path, name="out"):
    """A query of Spark's that writes the frame to a folder."""
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / name))
    return writer.option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))


def run(frame, tmp_path, name="out"):
    query = written(frame, tmp_path, name).trigger(availableNow=True).start()
    query.awaitTermination()


def rows(spark, tmp_path, name="out"):
    found = spark.read.parquet(str(tmp_path / name))
    return sorted(tuple(row) for row in found.collect())


def wanted(keys):
    return [(k, 10 * k, 10 * k) for k in sorted(keys)]


def offered(tmp_path):
    return sorted(path.name for path in (tmp_path / "state/joinengine/offered").glob("*.parquet"))


def test_any_step_of_spark_may_follow_also_the_transform_of_the_join(
    spark, joined, tmp_path, monkeypatch
):
    """And its reader comes in once files may be opened again."""

    def no_file_left(listener):
        monkeypatch.undo()
        failed.append(listener)
        raise OSError(errno.EMFILE, "Too many open files")

    failed = []
    results_frame._door.cache_clear()
    monkeypatch.setattr(Listener, "accept", no_file_left)
    changed = joined.transform(lambda frame: frame.where("k > 4"))
    frame = changed.to_df(str(tmp_path / "state"))
    assert frame.isStreaming
    run(frame.selectExpr("a + b as sum").dropDuplicates(), tmp_path)
    assert rows(spark, tmp_path) == [(20 * k,) for k in range(6, 20, 2)]
    assert failed


def test_results_wait_until_spark_has_committed_them(spark, joined, tmp_path):
    """A batch of Spark's that fails is run again with the same rows."""
    seen, broken = [], threading.Event()

    def take(frame, batch):
        seen.append(sorted(row.k for row in frame.collect()))
        if not broken.is_set():
            broken.set()
            raise ValueError("the sink is broken")

    for _ in (1, 2):
        frame = joined.to_df(str(tmp_path / "state"))
        writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "spark")).start()
        try:
            query.awaitTermination()
        except Exception as error:
            assert "the sink is broken" in str(error)
            assert offered(tmp_path)
    assert seen == [list(range(0, 20, 2))] * 2
    add(tmp_path / "a", "1.parquet", [22, 24])
    frame = joined.to_df(str(tmp_path / "state"))
    writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "spark")).start().awaitTermination()
    assert seen[2:] == [[22, 24]]
    # What the last batch has brought goes when the next one is known.
    assert 0 < len(offered(tmp_path)) <= 4


def test_new_data_are_followed_and_the_query_ends_with_its_reader(spark, joined, tmp_path):
    query = written(joined.to_df(str(tmp_path / "state")), tmp_path).start()
    try:
        soon(lambda: len(list((tmp_path / "out").glob("*.parquet"))) > 0, 60)
        query.processAllAvailable()
        add(tmp_path / "a", "1.parquet", [20, 22])
        soon(lambda: rows(spark, tmp_path)[-1:] == wanted([22]), 60)
    finally:
        query.stop()
    # The engine's query has let its checkpoint go, so another may have it.
    run(joined.to_df(str(tmp_path / "state")), tmp_path)
    assert rows(spark, tmp_path) == wanted([*range(0, 20, 2), 20, 22])


@pytest.mark.slow
def test_one_query_reads_a_frame(spark, joined, tmp_path):
    frame = joined.to_df(str(tmp_path / "state"))
    first = written(frame, tmp_path).start()
    try:
        first.processAllAvailable()
        second = written(frame, tmp_path, "other").start()
        with pytest.raises(Exception, match="another query reads this DataFrame already"):
            second.awaitTermination()
    finally:
        first.stop()


@pytest.mark.slow
def test_results_that_another_query_has_fetched_are_missed(spark, joined, tmp_path):
    for _ in (1, 2):
        run(joined.to_df(str(tmp_path / "state")), tmp_path)
        add(tmp_path / "a", "1.parquet", [22])
    with pytest.raises(Exception, match="were fetched by another query"):
        run(joined.to_df(str(tmp_path / "state")), tmp_path, "other")


def test_each_result_is_there_once_and_those_of_another_checkpoint_are_refused(
    spark, joined, tmp_path
):
    """Their batches have the same numbers, and Spark would have left out the first ones."""

    def is_refused():
        with pytest.raises(Exception, match="not hold the results of which Spark has read"):
            run(joined.to_df(str(tmp_path / "state")), tmp_path)

    run(joined.to_df(str(tmp_path / "state")), tmp_path)
    assert rows(spark, tmp_path) == wanted(range(0, 20, 2))
    kept = (tmp_path / "state").rename(tmp_path / "kept")
    add(tmp_path / "a", "1.parquet", [22])
    is_refused()  # nothing is there
    run(joined.to_df(str(tmp_path / "state")), tmp_path, "other")
    is_refused()  # what a query of its own has left
    shutil.rmtree(tmp_path / "state")
    kept.rename(tmp_path / "state")
    run(joined.to_df(str(tmp_path / "state")), tmp_path)
    assert rows(spark, tmp_path) == wanted([*range(0, 20, 2), 22])


def test_what_ends_the_engine_ends_the_reader(spark, tmp_path):
    for name in "ab":
        add(tmp_path / name, "0.parquet", [1])
    sides = (parquet_stream(spark, tmp_path / name, settle="0 s") for name in "ab")
    joined = StreamJoin(*sides, on="k", instances=2)
    (tmp_path / "b" / "1.parquet").write_bytes(b"no Parquet at all")
    with pytest.raises(Exception, match=r"1\.parquet"):
        run(joined.to_df(str(tmp_path / "state")), tmp_path)


def test_a_frame_costs_neither_a_thread_nor_a_folder_of_its_own(joined, tmp_path, monkeypatch):
    def waiting():
        return [thread for thread in threading.enumerate() if thread.name == "joinengine-results"]

    joined.to_df(str(tmp_path / "state"))
    before = waiting()
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: pytest.fail("another folder"))
    joined.to_df(str(tmp_path / "state"))
    assert waiting() == before


def test_options_are_checked_at_once(joined, tmp_path):
    with pytest.raises(InvalidRequest, match="to_df: option 'compactEvery' is only valid with"):
        joined.to_df(str(tmp_path / "state"), compactEvery=3)
    with pytest.raises(InvalidRequest, match="moves"):
        joined.to_df(str(tmp_path / "state"), moves="never")
