"""A query with a streaming DataFrame: the loop runs it, and Spark hands micro-batches over."""

from __future__ import annotations

import shutil
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import CheckpointMismatch, JoinEngineError, StreamJoin, active, equi, parquet_stream
from joinengine.model.errors import DamagedState
from tests.stream.cases import file_stream, pairs
from tests.stream.conftest import same
from tests.waiting import soon

pytestmark = pytest.mark.spark


@pytest.fixture(name="mixed")
def mixed_writer(spark, folders, tmp_path):
    """Makes writers of a join of orders, a stream of our own, and items, which Spark reads."""

    def make(**options):
        left = parquet_stream(spark, folders.orders, rows_per_interval=40)
        joined = StreamJoin(left, file_stream(spark, folders.items), on=equi("id", "order_id"))
        writer = joined.writeStream.format("parquet").options(**options)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    return make


def test_batches_of_our_own_do_not_wait_for_spark(mixed, folders, tmp_path):
    out = str(tmp_path / "out")
    query = mixed().start(out)
    query.processAllAvailable()
    told = len(query.query.recentProgress)
    before = query.done[1]
    folders.add_orders()
    soon(lambda: query.done[1] > before)
    assert query.batches()[-1].handed is None
    assert query.lastProgress.batchId == query.batches()[-1].batch
    micro_batches = [one.handed for one in query.batches() if one.handed is not None]
    assert micro_batches == list(range(4))
    assert len([one for one in query.query.recentProgress if one.numInputRows]) <= told
    assert query.id == str(query.query.id)
    query.stop()
    assert not query.query.isActive
    folders.add()
    again = mixed().trigger(availableNow=True).start(out)
    again.awaitTermination()
    assert [one.handed for one in again.batches() if one.handed is not None] == [4]
    assert again.id == query.id
    same(tmp_path / "out", pairs(folders, "id = order_id"))


@pytest.mark.slow
def test_progress_has_what_spark_says_of_a_micro_batch(mixed, tmp_path):
    query = mixed().trigger(availableNow=True).start(str(tmp_path / "out"))
    query.awaitTermination()
    records, found = query.batches(), query.recentProgress
    assert [one.batchId for one in found] == [one.batch for one in records]
    held = [
        (one, record)
        for one, record in zip(found, records, strict=True)
        if record.handed is not None
    ]
    assert held
    for one, record in held:
        assert [source.description[:10] for source in one.sources] == ["joinengine", "FileStream"]
        assert sum(source.numInputRows for source in one.sources) == record.input_rows
        assert one.durationMs["triggerExecution"] >= one.durationMs["addBatch"]
        assert record.trigger_s >= record.seconds["elapsed_s"]


@pytest.mark.slow
def test_a_stop_by_a_listener_and_one_in_the_middle_lose_nothing(mixed, folders, tmp_path):
    out = str(tmp_path / "out")
    first = mixed().start(out)
    first.add_listener(lambda _: first.stop())
    assert first.awaitTermination(60)
    assert first.exception() is None
    assert not first.query.isActive
    slow = mixed(workPerTuple="100 ms").start(out)  # batches of some seconds
    soon(lambda: slow.status["isTriggerActive"])
    time.sleep(0.3)
    began = time.monotonic()
    slow.stop()
    assert time.monotonic() - began < 30
    assert slow.exception() is None
    assert slow not in active()
    again = mixed().trigger(availableNow=True).start(out)
    again.awaitTermination()
    same(tmp_path / "out", pairs(folders, "id = order_id"))


def test_an_error_on_either_side_ends_both(mixed, folders, tmp_path):
    out = str(tmp_path / "out")
    query = mixed().start(out)
    query.processAllAvailable()
    pq.write_table(pa.table({"id": ["no number"]}), folders.orders / "bad.parquet")
    with pytest.raises(JoinEngineError, match="does not fit: column 'id' is string"):
        query.awaitTermination(60)
    assert not query.query.isActive
    (folders.orders / "bad.parquet").unlink()
    again = mixed().start(out)
    again.query.stop()  # the user ends Spark's part
    assert again.awaitTermination(60)
    assert again.exception() is None


def test_spark_s_part_of_the_checkpoint_cannot_be_taken_away(mixed, folders, tmp_path):
    out = str(tmp_path / "out")
    mixed().trigger(availableNow=True).start(out).awaitTermination()
    for folder in ("offsets", "commits", "sources"):
        for file in (tmp_path / "checkpoint" / folder).rglob("*"):
            if file.is_file():
                file.unlink()
    (tmp_path / "checkpoint" / "metadata").unlink()
    query = mixed().trigger(availableNow=True).start(out)
    with pytest.raises(CheckpointMismatch, match="does not follow micro-batch 3"):
        query.awaitTermination()


def test_a_log_of_spark_s_that_is_damaged_is_refused_by_name(mixed, tmp_path):
    """Spark itself says `assertion failed`, or the name of a Java class."""
    out, logs = str(tmp_path / "out"), tmp_path / "checkpoint"
    mixed().trigger(availableNow=True).start(out).awaitTermination()
    whole = tmp_path / "whole"
    shutil.copytree(logs, whole)
    damages = [
        ("metadata", lambda place: place.unlink()),
        ("metadata", _cut),
        ("offsets", shutil.rmtree),
        ("offsets/3", lambda place: place.write_bytes(place.read_bytes().replace(b"v1", b"v7"))),
        ("offsets/3", _cut),
        ("offsets/2", lambda place: place.write_bytes(b"")),
        ("commits/3", _made_a_folder),
        ("commits/3", _cut),
    ]
    for name, damage in damages:
        damage(logs / name)
        with pytest.raises(DamagedState, match=f"^{logs / name} is missing or damaged: Spark"):
            mixed().trigger(availableNow=True).start(out)
        shutil.rmtree(logs)
        shutil.copytree(whole, logs)
    mixed().trigger(availableNow=True).start(out).awaitTermination()


def _cut(place):
    """A power failure, or a copy that stopped: half of the bytes, and no CRC beside them."""
    place.write_bytes(place.read_bytes()[: place.stat().st_size // 2])
    place.with_name(f".{place.name}.crc").unlink(missing_ok=True)


def _made_a_folder(place):
    place.unlink()
    place.mkdir()


def test_two_threads_that_stop_wait_for_the_end(mixed, tmp_path):
    query = mixed().start(str(tmp_path / "out"))
    threads = [threading.Thread(target=query.stop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not query.isActive
    assert query.exception() is None
