"""What only one exchange has to show; what both share, other tests try over both."""

from __future__ import annotations

import os
import time
from pathlib import Path

import duckdb
import pytest

from joinengine import InvalidRequest, JoinEngineError, StreamJoin, equi
from joinengine.exchange.exchange import ExchangeKind
from joinengine.layouts import Ftlb
from joinengine.spark.jobs.shuffle_jobs import ShuffleJobs
from joinengine.spark.query import starting
from tests.stream.cases import file_stream, pairs, streams

ON = equi("id", "order_id")
#: The rows of an interval of each side.
TWO_BATCHES = 80, 240


@pytest.fixture
def seen(monkeypatch):
    """(operator, batch, tasks that its jobs have run) of each run of an operator's tasks."""
    found = []

    class Counting(ShuffleJobs):
        def run(self, operator, tasks):
            context = self._context
            group, tracker = context.getLocalProperty("spark.jobGroup.id"), context.statusTracker()
            context._jsc.sc().listenerBus().waitUntilEmpty()  # else jobs before this seem later
            before = set(tracker.getJobIdsForGroup(group))
            reports = super().run(operator, tasks)
            context._jsc.sc().listenerBus().waitUntilEmpty()
            jobs = set(tracker.getJobIdsForGroup(group)) - before
            stages = {stage for job in jobs for stage in tracker.getJobInfo(job).stageIds}
            infos = [tracker.getStageInfo(stage) for stage in stages]  # None: it was skipped
            ran = sum(info.numCompletedTasks for info in infos if info is not None)
            found.append((operator.index, tasks[0].header.batch, ran))
            return reports

    jobs = {**starting._JOBS, ExchangeKind.SHUFFLE: Counting}
    monkeypatch.setattr(starting, "_JOBS", jobs)
    return found


def shuffled(joined, tmp_path, **options):
    writer = joined.writeStream.format("parquet").option("exchange", "shuffle")
    writer = writer.option("checkpointLocation", tmp_path / "checkpoint").trigger(availableNow=True)
    return writer.options(**options)


def test_a_loss_of_state_routes_nothing_again(spark, folders, tmp_path, seen):
    """Of the second attempt's two stages one brings what came to the lost instance to all tasks."""
    joined = StreamJoin(*streams(spark, folders), on=ON, layout=Ftlb(imbalance=9.0), instances=4)
    shuffled(joined, tmp_path).fail(2, 1).start(tmp_path / "out").awaitTermination()
    assert seen == [(0, 0, 2), (0, 1, 2), (0, 2, 2), (0, 2, 4), (0, 3, 2)]
    here, wanted = f"'{tmp_path / 'out'}/*.parquet'", pairs(folders, "id = order_id")
    assert duckdb.sql(f"(from {here}) except all ({wanted})").fetchall() == []
    assert duckdb.sql(f"({wanted}) except all (from {here})").fetchall() == []


def workers(spark):
    """The processes that carry out tasks."""
    context = spark.sparkContext
    numbers = context.parallelize(range(8), 8).map(lambda _: (os.getpid(), time.sleep(0.05))[0])
    return set(numbers.collect())


@pytest.mark.parametrize("exchange", ["files", "shuffle"])
def test_tasks_use_the_workers_that_are_there(spark, folders, tmp_path, exchange):
    """On a busy machine a query may end them: tasks that connect too late are cancelled."""
    joined = StreamJoin(*streams(spark, folders, TWO_BATCHES), on=ON, instances=4)
    for attempt in range(3):
        writer = shuffled(joined, tmp_path / f"{attempt}", exchange=exchange)
        before = workers(spark)
        writer.start(tmp_path / f"{attempt}" / "out").awaitTermination()
        if workers(spark) & before == before:
            return
    raise AssertionError("three queries ended the workers that were there")


def test_a_chain_runs_each_task_once_and_leaves_no_shuffle(spark, folders, tmp_path, seen):
    left, right = streams(spark, folders, TWO_BATCHES)
    chain = StreamJoin(
        StreamJoin(left, right, on=ON, instances=4),
        right,
        on=equi("price", "amount"),
        suffixes=("_1", "_2"),
        instances=4,
    )
    query = shuffled(chain, tmp_path).start(tmp_path / "out")
    query.awaitTermination()
    # Of the first join also the task that brings its reports.
    assert seen == [(join, batch, 3 - join) for batch in range(2) for join in range(2)]
    exchange = tmp_path / "checkpoint" / "joinengine" / "exchange"
    assert not exchange.exists() or not list(Path(exchange).iterdir())


def test_an_input_whose_rows_may_come_to_another_task_is_refused(spark, folders, tmp_path):
    name = "spark.sql.execution.sortBeforeRepartition"
    orders, items = (file_stream(spark, one) for one in (folders.orders, folders.items))
    # Rows of the first come in any order; the second deals them out in that order.
    dealt = (
        orders.repartition(5, "id")
        .mapInArrow(lambda batches: batches, orders.schema)
        .repartition(3)
    )
    joined = StreamJoin(dealt, items, on=ON)
    spark.conf.set(name, "false")
    try:
        query = shuffled(joined, tmp_path).start(tmp_path / "out")
        with pytest.raises(JoinEngineError, match="a repartition precedes an input"):
            query.awaitTermination()
    finally:
        spark.conf.unset(name)


def test_an_unknown_exchange_is_refused(spark, folders, tmp_path):
    joined = StreamJoin(*streams(spark, folders), on=ON)
    with pytest.raises(InvalidRequest, match=r"exchange.*'carrier'.*files.*shuffle"):
        shuffled(joined, tmp_path, exchange="carrier").start(tmp_path / "out")
    assert not (tmp_path / "checkpoint").exists()
