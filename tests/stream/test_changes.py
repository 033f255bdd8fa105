"""A change data feed and a stream with numbers are joined; what means nothing is kept aside."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from joinengine import StreamJoin, equi, parquet_stream

pytestmark = pytest.mark.spark

FEED = ["insert", "insert", "update_preimage", "update_postimage", "delete", "upsert", None]


def add(folder, **columns):
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{len(list(folder.iterdir()))}.parquet")


@pytest.mark.parametrize("is_frame", [False, True])
def test_words_and_numbers_of_changes(spark, tmp_path, each_exchange, is_frame):
    left, right = tmp_path / "left", tmp_path / "right"
    versions = pa.array(range(7), pa.int64())
    add(
        left,
        k=[1, 2, 1, 1, 2, 3, 3],
        v=list("abacbdd"),
        _change_type=FEED,
        _commit_version=versions,
    )
    add(right, rk=[1, 2, 3], w=[7, 8, 9], n=pa.array([2, 1, 0], pa.int16()))
    frame = spark.readStream.schema(spark.read.parquet(str(left)).schema).parquet(str(left))
    joined = StreamJoin(
        frame if is_frame else parquet_stream(spark, str(left)),
        parquet_stream(spark, str(right)),
        on=equi("k", "rk"),
        changes=("_change_type", "n"),
        select=["k", "v", "w"],
        instances=3,
    )
    writer = joined.writeStream.format("parquet").option("sideOutput", str(tmp_path / "aside"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    def net():
        query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
        query.awaitTermination()
        found = Counter()
        for row in ds.dataset(tmp_path / "out").to_table().to_pylist():
            found[row["k"], row["v"], row["w"]] += row["_change"]
        return {row: n for row, n in found.items() if n}, query.metrics()

    found, metrics = net()
    assert found == {(1, "c", 7): 2}
    assert sum(metrics["unknown_change_rows"].to_pylist()) == 3
    assert sum(metrics["null_rows"].to_pylist()) == 0
    kept = [ds.dataset(tmp_path / "aside" / f"join0-{s}").to_table() for s in ("left", "right")]
    reasons = [[one["reason"] for one in table.to_pylist()] for table in kept]
    assert [sorted(one) for one in reasons] == [["change", "change"], ["change"]]
    add(right, rk=[1], w=[7], n=pa.array([-1], pa.int16()))
    assert net()[0] == {(1, "c", 7): 1}
