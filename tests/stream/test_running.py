"""A running query tells how it runs: in words, in Spark's own reports, and when it is stopped."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time

import pytest

from joinengine import StreamJoin, equi, parquet_stream, within
from joinengine.driver.batch import BatchRunner
from joinengine.layouts import Qmmp
from joinengine.model.errors import InvalidRequest

pytestmark = pytest.mark.spark


@pytest.fixture
def joined(spark, folders):
    left = parquet_stream(spark, folders.orders, rows_per_interval=40)
    right = parquet_stream(spark, folders.items, rows_per_interval=120)
    window = within("o_ts", "i_ts", lower="-5 s", upper="20 s", delay="10 s")
    return StreamJoin(left, right, on=equi("id", "order_id"), within=window, instances=4)


def start(joined, tmp_path, **trigger):
    writer = joined.writeStream.format("noop").trigger(**(trigger or {"availableNow": True}))
    return writer.option("checkpointLocation", tmp_path / "checkpoint").start()


def test_a_listener_does_not_wait_for_its_own_query(joined, tmp_path):
    said = []

    def waits(progress):
        for wait in (query.processAllAvailable, query.awaitTermination):
            with pytest.raises(InvalidRequest, match="from within a batch of this query") as error:
                wait()
            said.append(str(error.value).partition(":")[0])

    query = start(joined, tmp_path)
    query.add_listener(waits)
    query.awaitTermination(60)
    assert said[:2] == ["processAllAvailable", "awaitTermination"]


def test_a_listener_neither_ends_its_query_by_accident_nor_makes_it_listen_for_ever(
    joined, folders, tmp_path, caplog
):
    def adds(progress):
        added.append(progress.batchId)
        if len(added) < 9:
            query.add_listener(adds)

    query, added = start(joined, tmp_path, processingTime="100 ms"), []
    query.processAllAvailable()
    query.add_listener(lambda progress: sys.exit())
    query.add_listener(adds)
    folders.add()
    query.processAllAvailable()
    assert added.count(4) == 1
    assert "joinengine: a listener failed at batch 4" in caplog.messages
    query.stop()


def test_a_query_tells_how_it_runs(joined, tmp_path):
    query = start(joined, tmp_path)
    heard = []
    query.add_listener(heard.append)
    query.add_listener(lambda progress: 1 / 0)
    with pytest.raises(InvalidRequest, match=r"add_listener: None is not a function; give a func"):
        query.add_listener(None)
    query.awaitTermination()
    rows = query.metrics().to_pylist()
    assert query.done == (sum(row["input_rows"] for row in rows), 4)

    told = query.recentProgress
    assert [one.batchId for one in told] == [0, 1, 2, 3]
    assert query.lastProgress == told[-1]
    for one, row, record in zip(told, rows, query.batches(), strict=True):
        assert one.numInputRows == row["input_rows"] == one.sources[0].numInputRows
        assert one.sink.numOutputRows == row["output_rows"]
        (state,) = one.stateOperators
        assert state.operatorName == "joinengine join 0"
        assert state.numRowsTotal == row["state_rows"] > 0
        assert state.memoryUsedBytes == row["state_bytes"] > 0
        assert state.numRowsUpdated == sum(record.joins[0].work.stored)
        assert one["observedMetrics"]["joinengine"]["null_rows"] == row["null_rows"] > 0
        assert json.loads(one.json)["processedRowsPerSecond"] > 0
    assert told[-1].eventTime["max"] > told[-1].eventTime["watermark"] > "2024-01-01T00:00:10"
    assert told[2].inputRowsPerSecond > 0

    # A listener may come after the first batches.
    assert [one.batchId for one in heard] == list(range(4))[-len(heard) :]
    for one in heard:
        same = told[one.batchId]
        for field in ("runId", "numInputRows", "eventTime", "stateOperators"):
            assert one[field] == same[field]
        assert one.durationMs["triggerExecution"] > 0

    lines = query.progress().splitlines()
    assert len(lines) == 5
    words = r"batch 3: 160 rows in .* results, state [\d,]+ rows, [\d.]+ kB, .* watermark 2024-"
    assert re.match(words, lines[3])
    assert "4 batches, 640 rows read" in lines[4]
    plan = query.explain()
    assert repr(plan) == plan
    assert "layout auto on 4 instances" in plan
    forecast = re.findall(
        r"forecast: about ([\d,]+) rows, [\d.]+ kB \([\d,.]+ copies of rows per", plan
    )
    held = query.batches()[-1].joins[0].sides
    for said, side in zip(forecast, held, strict=True):
        assert int(said) == pytest.approx(side.held_rows, rel=0.35)


def test_explain_tells_the_present_layout_and_what_waits(joined, folders, tmp_path):
    query = start(joined, tmp_path, processingTime="100 milliseconds")
    try:
        query.processAllAvailable()
        assert "running: 4 batches and 640 rows" in repr(query)
        query.switch_layout(Qmmp())
        query.resize(6)
        told = query.explain().splitlines()
        assert "layout auto on 4 instances" in told[1]
        assert told[-1] == "requested: layout qmmp on 6 instances; takes effect with the next batch"
        assert sum("requested" in line for line in told) == 1
        for refused in (2.5, "4", True, None):
            with pytest.raises(InvalidRequest, match=r"resize: instances: .* not a whole number"):
                query.resize(refused)
        with pytest.raises(
            InvalidRequest, match=r"switch_layout: instances: '4' .* not a whole num"
        ):
            query.switch_layout("hash", instances="4")
        with pytest.raises(InvalidRequest, match=r"layout bi needs .* found 1"):
            query.switch_layout("bi", instances=1)
        with pytest.raises(InvalidRequest, match=r"layout .* needs from .* instances, found 0"):
            query.resize(0)
        assert query.explain().splitlines() == told
        folders.add()
        query.processAllAvailable()
        assert "layout qmmp on 6 instances" in query.explain()
        assert "requested" not in query.explain()
    finally:
        query.stop()
    assert re.search("ended: [56] batches", repr(query))  # a look may find one of two new files
    assert "layout qmmp on 6>" in repr(query)


def test_a_run_that_ends_says_why_rows_still_wait(spark, folders, tmp_path, caplog):
    items = parquet_stream(spark, folders.items).where("order_id = -1")
    window = within("o_ts", "i_ts", lower="0 s", upper="5 s", delay="1 s", idle_after="1 s")
    orders = parquet_stream(spark, folders.orders)
    on = equi("id", "order_id")
    joined = StreamJoin(orders, items, on=on, within=window, how="left", instances=2)
    query = start(joined, tmp_path)
    query.awaitTermination()
    (said,) = [one.message for one in caplog.records if "still waiting" in one.message]
    assert "rows of operator 0 are still waiting: its right side (folder" in said
    assert "would wait 1 s for this side" in said
    assert not query.metrics()["output_rows"].to_pylist()[0]


def test_a_run_that_ends_names_what_it_did_not_reach(joined, tmp_path, caplog):
    writer = joined.writeStream.format("noop").trigger(availableNow=True)
    writer = writer.options(checkpointLocation=tmp_path / "checkpoint", recovery="store")
    query = writer.fail(99, 3).relayout(4, "hash").start()
    query.awaitTermination()
    query.awaitTermination()
    (said,) = [one.message for one in caplog.records if "not reached" in one.message]
    assert said == (
        "joinengine: not reached: the loss of instance 3 before batch 99; this run had 4 batches, "
        "0 to 3"
    )


def test_a_stop_in_the_middle_of_a_batch_is_no_failure(joined, tmp_path, capfd, monkeypatch):
    """It is cut short, or done, if it is almost."""
    began, go_on = threading.Event(), threading.Event()
    run = BatchRunner._run

    def held(*told):
        began.set()
        go_on.wait(60)
        run(*told)

    monkeypatch.setattr(BatchRunner, "_run", held)
    query = start(joined, tmp_path, processingTime="1 hour")
    assert began.wait(60)
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    while query.isActive and not query._watch.stopping:
        time.sleep(0.01)
    go_on.set()
    stopping.join(120)
    assert not query.isActive
    assert query.exception() is None
    query.awaitTermination()
    assert "StackOverflowError" not in capfd.readouterr().err
    again = start(joined, tmp_path)
    again.awaitTermination()
    assert query.done[0] + again.done[0] == 640


def test_workers_have_what_tasks_import_before_they_start(spark):
    def looked(_):
        yield sys.modules["__main__"].__spec__.name, "joinengine.spark.jobs.tasks" in sys.modules

    found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(looked).collect()
    assert found == [("joinengine.spark.session.daemon", True)] * 2


def test_a_job_that_goes_on_says_how_its_state_has_grown(writer, folders, caplog):
    """A join without a window that is started again and again; a single run needs no warning."""

    def said():
        caplog.clear()
        with caplog.at_level(logging.WARNING, "joinengine"):
            writer().format("noop").trigger(availableNow=True).start().awaitTermination()
        return [text for text in caplog.messages if "has no window" in text]

    assert said() == []
    folders.add()
    (grown,) = said()
    assert "its state grows with every start: in this run from " in grown
    assert said() == []
