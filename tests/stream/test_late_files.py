"""Files in another order than event time: rows are lost aloud, and kept if files are in order."""

from __future__ import annotations

import datetime as dt
import logging
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinengine import InvalidRequest, StreamJoin, equi, parquet_stream, within
from tests.stream.cases import run
from tests.stream.conftest import EPOCH, same

pytestmark = pytest.mark.spark

FILES, ROWS = 6, 60


@pytest.fixture
def shuffled(tmp_path):
    """Two folders whose files were copied in an order that is not that of event time."""
    for side in ("clicks", "purchases"):
        rng = np.random.default_rng(len(side))
        (tmp_path / side).mkdir()
        for number in range(FILES):
            keys = pa.array(rng.integers(0, 20, ROWS), mask=rng.random(ROWS) < 0.05)
            seconds = 10 * number + rng.random(ROWS) * 10
            times = [EPOCH + dt.timedelta(seconds=float(s)) for s in seconds]
            path = tmp_path / side / f"{number}.parquet"
            pq.write_table(pa.table({f"{side}_key": keys, f"{side}_at": times}), path)
            modified = 1000 + (5 * number + 4) % FILES  # 4, 3, 2, 1, 0, 5
            os.utime(path, (modified, modified))
    return tmp_path


def joined(spark, folder, order="modified", how="inner"):
    left, right = (
        parquet_stream(spark, folder / side, rows_per_interval=ROWS, order=order)
        for side in ("clicks", "purchases")
    )
    return StreamJoin(
        *(left, right),
        on=equi("clicks_key", "purchases_key"),
        within=within("clicks_at", "purchases_at", lower="0 s", upper="3 s", delay="1 s"),
        how=how,
        instances=3,
    )


def expected(folder):
    left, right = (f"'{folder}/{side}/*.parquet'" for side in ("clicks", "purchases"))
    return (
        f"select * from {left} join {right} on clicks_key = purchases_key and purchases_at between "
        f"clicks_at and clicks_at + interval 3 seconds"
    )


def warned(caplog, what):
    return [text for text in caplog.messages if what in text]


def test_late_files_are_warned_of_once_and_summed_up(spark, shuffled, caplog):
    query = run(joined(spark, shuffled), shuffled)
    late = warned(caplog, "later than the delay allows")
    rows = sum(record.joins[0].refused.late for record in query.batches())
    assert rows > 2 * FILES * ROWS / 4
    for side in ("clicks", "purchases"):
        first, total = warned(caplog, f"{shuffled / side}) arrived later")
        assert first.startswith("joinengine: batch ")
        assert "parquet_stream(.., order='time') or --file-order time" in first
        assert total.startswith("joinengine: in total, ")
        assert f" of {FILES * ROWS:,} rows (" in total
    assert len(late) == 4
    query.awaitTermination()
    assert warned(caplog, "later than the delay allows") == late


@pytest.mark.parametrize("order", ["time", "name"])
def test_files_in_order_lose_nothing(order, spark, shuffled, caplog):
    query = run(joined(spark, shuffled, order), shuffled)
    assert sum(record.joins[0].refused.late for record in query.batches()) == 0
    same(shuffled / "out", expected(shuffled))
    assert not warned(caplog, "later than")
    without = warned(caplog, "have no key or no event time, so they match nothing")
    assert len(without) == 4  # of each side when it is first seen, and in all
    assert "check these columns in the source" in without[0]


def test_few_refused_rows_are_not_worth_a_warning(spark, folders, tmp_path, caplog):
    left, right = (
        parquet_stream(spark, folder).where("id >= 0" if folder == folders.orders else "true")
        for folder in (folders.orders, folders.items)
    )
    with caplog.at_level(logging.WARNING, "joinengine"):
        run(StreamJoin(left, right, on=equi("id", "order_id")), tmp_path)
    assert not [text for text in warned(caplog, "rows (") if str(folders.orders) in text]


def test_an_order_that_cannot_be_is_refused(spark, shuffled):
    def started(left, **more):
        right = parquet_stream(spark, shuffled / "purchases")
        writer = StreamJoin(left, right, on=equi("clicks_key", "purchases_key"), **more).writeStream
        writer.format("noop").option("checkpointLocation", shuffled / "checkpoint").start()

    stream = parquet_stream(spark, shuffled / "clicks", order="time")
    with pytest.raises(InvalidRequest, match="order='time' needs the column of event time"):
        started(stream)
    window = within("clicks_at", "purchases_at", lower="0 s", upper="3 s", delay="1 s")
    moved = stream.withColumn("clicks_at", "clicks_at + interval 1 hour")
    with pytest.raises(InvalidRequest, match="times of 'clicks_at' from the footers of files"):
        started(moved, within=window)
    with pytest.raises(InvalidRequest, match="order: 'size' is unknown"):
        parquet_stream(spark, shuffled / "clicks", order="size")
    for order in ("time", "name"):
        with pytest.raises(
            InvalidRequest, match=rf"order='{order}' needs the list of files that a"
        ):
            parquet_stream(spark, shuffled / "clicks", order=order).to_df()
    assert not (shuffled / "checkpoint").exists()
