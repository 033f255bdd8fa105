"""Session windows, beside Spark's and DuckDB's, by the clock.

    python -m benchmarks.sessions [--rows N] [--hot PART]

N clicks of 20,000 users, of which one has the part HOT: how many there are in each session of a
user, which ends after five minutes without one. Spark adds up as a stream with `session_window`
(its state in memory, and in RocksDB) and as a batch query; DuckDB by window functions over all
clicks. Printed are medians of seconds from `start()`, or of the query, and the number of sessions
(the streams leave those of the last minutes open).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import numpy as np
import pyarrow as pa

from benchmarks import by_clock
from joinengine import StreamAggregate, parquet_stream, session, session_windows

FILES, USERS, SPAN_S = 8, 20_000, 40_000
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def write(folder, rows, hot):
    """Clicks in the order of their times, in files."""
    rng = np.random.default_rng(1)
    users = np.where(rng.random(rows) < hot, 0, rng.integers(0, USERS, rows))
    # the hot user rests for ten minutes in each hour
    times = np.sort(rng.integers(0, SPAN_S, rows))
    times = np.where((users == 0) & (times % 3600 < 600), times - times % 3600, times)
    order = np.argsort(times, kind="stable")
    stamps = pa.array(times[order] * 1_000_000).cast(pa.timestamp("us", "UTC"))
    by_clock.in_files(pa.table({"user": users[order], "ts": stamps}), folder, FILES)


def ours(spark, folder, rows, layout):
    """Seconds, and sessions."""
    clicks = parquet_stream(spark, str(folder), rows_per_interval=rows // 10, order="name")
    return by_clock.ours(
        StreamAggregate(
            clicks,
            by="user",
            aggregates={"n": "count(*)"},
            window=session_windows("ts", gap="5 minutes", delay="1 minute"),
            layout=layout,
            instances=8,
        )
    )


def by_spark(spark, folder, *, rocksdb=False):
    """Seconds, and sessions, of Spark's streaming aggregation."""
    spark.conf.set(_PROVIDER, _ROCKSDB) if rocksdb else spark.conf.unset(_PROVIDER)
    counts = []
    frame = spark.readStream.schema(spark.read.parquet(str(folder)).schema)
    clicks = frame.option("maxFilesPerTrigger", 1).parquet(str(folder))
    counted = grouped(clicks.withWatermark("ts", "1 minute"))

    def count():
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = counted.writeStream.outputMode("append")
            writer = writer.option("checkpointLocation", checkpoint)
            writer = writer.foreachBatch(lambda batch, _: counts.append(batch.count()))
            writer.trigger(availableNow=True).start().awaitTermination()
        return sum(counts)

    return by_clock.timed(count)


def grouped(clicks):
    """The clicks of each session of a user, counted."""
    from pyspark.sql import functions  # noqa: PLC0415  # only where Spark's own is measured

    return clicks.groupBy("user", functions.session_window("ts", "5 minutes")).count()


def by_duckdb(folder):
    """Seconds, and sessions, on two threads."""
    query = f"""
        select count(*) from (select "user", session, count(*) n from (
            select "user", sum(begins) over (partition by "user" order by ts) as session from (
                select "user", ts, (coalesce(ts - lag(ts) over (partition by "user" order by ts)
                    > interval 5 minute, true))::int as begins from '{folder}/*.parquet'))
        group by all)
    """
    return by_clock.duckdb_s(query)


@click.command()
@click.option("--rows", default=1_000_000, help="Clicks.")
@click.option("--hot", default=0.3, help="The part of one user.")
def main(rows: int, hot: float) -> None:
    """Print the seconds of each."""
    spark = session(master="local[2]")
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "clicks")
        write(folder, rows, hot)
        ways = {
            "sessions, hash": lambda: ours(spark, folder, rows, "hash"),
            "sessions, auto": lambda: ours(spark, folder, rows, "auto"),
            "Spark, stream": lambda: by_spark(spark, folder),
            "Spark, stream, RocksDB": lambda: by_spark(spark, folder, rocksdb=True),
            "Spark, batch": lambda: by_clock.timed(
                lambda: grouped(spark.read.parquet(str(folder))).count()
            ),
            "DuckDB, window functions": lambda: by_duckdb(folder),
        }
        by_clock.beside(ways, rows)
    spark.stop()


if __name__ == "__main__":
    main()
