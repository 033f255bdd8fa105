"""Spark's own stream-stream join as a system of the comparison.

It runs in joinengine's session, so that settings favour no system. Spark refuses a stream join
without an equality. Its nearest form of a band join that finishes is one on buckets of the key,
with each order copied into the buckets where a partner may be. (With a constant key, all state
would belong to one key.)
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import functions as F

from benchmarks.peers.jobs import REACH, Batch, Job, Outcome
from benchmarks.peers.sessions import file_stream
from joinengine import session

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
#: Order keys to a bucket. A smaller one copies more orders, a larger one compares more pairs.
BUCKET = 8


class Sparks(NamedTuple):
    """Spark's join; `settings`: those of the session. Without settings, its state is in the JVM."""

    settings: Mapping[str, str]

    def run(self, job: Job) -> list[Outcome]:
        """Run it, query by query, in one session."""
        spark = sparks_session(job.partitions)
        for key, value in self.settings.items():
            spark.conf.set(key, value)
        return [_query(spark, job) for _ in range(job.queries)]


def sparks_session(partitions: int) -> Any:
    """A session with the memory that Spark's in-memory store needs; `partitions`: of its state."""
    return session(
        master="local[2]",
        spark__driver__memory="8g",
        spark__sql__shuffle__partitions=str(partitions),
    )


def _query(spark: Any, job: Job) -> Outcome:
    counted = _joined(spark, job).observe("results", F.count(F.lit(1)).alias("rows"))
    with tempfile.TemporaryDirectory(prefix="spark-bench-") as checkpoint:
        writer = counted.writeStream.format("noop").option("checkpointLocation", checkpoint)
        begin = time.time()
        query = writer.trigger(availableNow=True).start()
        started = time.time()
        query.awaitTermination()
        ended = time.time()
        progress = query.recentProgress
    triggers_s = [trigger["durationMs"]["triggerExecution"] / 1e3 for trigger in progress]
    first = datetime.fromisoformat(progress[0]["timestamp"]).timestamp() + triggers_s[0]
    return Outcome(
        start_s=started - begin,
        first_s=first - started,
        whole_s=ended - begin,
        batches=[
            Batch(trigger["numInputRows"], seconds)
            for trigger, seconds in zip(progress, triggers_s, strict=True)
        ],
        results=sum(trigger["observedMetrics"]["results"]["rows"] for trigger in progress),
        split={},
    )


def _joined(spark: Any, job: Job) -> Any:
    folder = Path(job.folder)
    orders = file_stream(spark, folder / "orders").withWatermark("o_ts", "0 seconds")
    lineitem = file_stream(spark, folder / "lineitem").withWatermark("l_ts", "0 seconds")
    upper = F.expr(f"o_ts + interval {job.upper_us / 1e6:.6f} seconds")
    near = (F.col("l_ts") >= F.col("o_ts")) & (F.col("l_ts") <= upper)
    on = F.col("o_orderkey") == F.col("l_orderkey")
    if job.is_band:
        ends = [F.floor((F.col("o_orderkey") + end) / BUCKET) for end in (-REACH, REACH)]
        orders = orders.withColumn("o_bucket", F.explode(F.array_distinct(F.array(*ends))))
        lineitem = lineitem.withColumn("l_bucket", F.floor(F.col("l_orderkey") / BUCKET))
        on = F.col("o_bucket") == F.col("l_bucket")
        on &= F.abs(F.col("l_orderkey") - F.col("o_orderkey")) <= REACH
    return orders.join(lineitem, on & near, job.how)
