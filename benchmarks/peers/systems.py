"""The systems that are compared: each runs the job once, in a process of its own.

    python -m benchmarks.peers.systems equi|band|outer NAME FOLDER WINDOW_PART

prints one JSON line: input rows, results, and seconds of each counted trigger. All read the same
files, one file per side and micro-batch, and hand their results to a sink that drops them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from joinengine.tpch.stream import SPAN_US

#: Triggers that are run and not counted.
WARM_BATCHES = 3
INSTANCES = 8
#: State partitions of Spark's own join: of 2, 4, 8, 16 and 32 on 2 cores, 8 was its fastest.
SPARK_PARTITIONS = "8"


def joinengine_own(folder: Path, part: float) -> dict[str, Any]:
    """Joinengine, from its own source."""
    spark, sides = _own_sides(folder)
    return _joinengine(spark, sides, part)


def _own_sides(folder: Path) -> tuple[Any, list[Any]]:
    from joinengine import session  # noqa: PLC0415
    from joinengine.spark.inputs import recorded_stream  # noqa: PLC0415

    spark = session(master="local[2]")
    sides = [
        recorded_stream(
            spark, folder / f"{name}.json", pq.read_schema(folder / name / "00000.parquet")
        )
        for name in ("orders", "lineitem")
    ]
    return spark, sides


def joinengine_files(folder: Path, part: float) -> dict[str, Any]:
    """Joinengine, from Spark's Parquet file source."""
    from joinengine import session  # noqa: PLC0415

    spark = session(master="local[2]")
    return _joinengine(
        spark, [_file_stream(spark, folder / n) for n in ("orders", "lineitem")], part
    )


def spark_memory(folder: Path, part: float) -> dict[str, Any]:
    """Spark's stream-stream join, state in the JVM (HDFS-backed store)."""
    return _spark(folder, part, {})


def spark_rocksdb_2(folder: Path, part: float) -> dict[str, Any]:
    """Spark's stream-stream join, RocksDB, state format 2."""
    return _spark(folder, part, {"spark.sql.streaming.join.stateFormatVersion": "2"} | _ROCKSDB)


def spark_rocksdb_4(folder: Path, part: float) -> dict[str, Any]:
    """Spark's stream-stream join, RocksDB, state format 4."""
    return _spark(folder, part, {"spark.sql.streaming.join.stateFormatVersion": "4"} | _ROCKSDB)


def duckdb_batch(folder: Path, part: float) -> dict[str, Any]:
    """DuckDB: the join as one batch query over the same files, results in Arrow. The limit."""
    return _duckdb(folder, part, "o_orderkey = l_orderkey")


def _duckdb(folder: Path, part: float, on: str, how: str = "inner") -> dict[str, Any]:
    upper = int(part * SPAN_US)
    sql = (
        f"select * from '{folder}/orders/*.parquet' {how} join '{folder}/lineitem/*.parquet' "
        f"on {on} and epoch_us(l_ts) - epoch_us(o_ts) between 0 and {upper}"
    )
    with duckdb.connect(":memory:", config={"threads": 2}) as db:
        rows = sum(json.loads((folder / "batches.json").read_text()))
        db.sql(sql).to_arrow_table()
        start = time.perf_counter()
        results = db.sql(sql).to_arrow_table().num_rows
        elapsed = time.perf_counter() - start
    return {"rows": [rows], "seconds": [elapsed], "results": results, "split": {}}


def band_joinengine(folder: Path, part: float) -> dict[str, Any]:
    """The band join of joinengine, from its own source."""
    from joinengine import band  # noqa: PLC0415

    spark, sides = _own_sides(folder)
    on = band("o_orderkey", "l_orderkey", lower=-REACH, upper=REACH)
    return _joinengine(spark, sides, part, on)


def band_spark_memory(folder: Path, part: float) -> dict[str, Any]:
    """Spark's nearest form of the band join, state in the JVM."""
    return _spark(folder, part, {}, bucketed=True)


def band_spark_rocksdb(folder: Path, part: float) -> dict[str, Any]:
    """Spark's nearest form of the band join, RocksDB, state format 4."""
    version = {"spark.sql.streaming.join.stateFormatVersion": "4"}
    return _spark(folder, part, version | _ROCKSDB, bucketed=True)


def band_duckdb(folder: Path, part: float) -> dict[str, Any]:
    """DuckDB's band join as one batch query. The limit."""
    # Two bounds, which its range join uses; under abs() it would look at every pair within time.
    near = f"l_orderkey >= o_orderkey - {REACH} and l_orderkey <= o_orderkey + {REACH}"
    return _duckdb(folder, part, near)


def outer_joinengine(folder: Path, part: float) -> dict[str, Any]:
    """The full outer join of joinengine, from its own source."""
    spark, sides = _own_sides(folder)
    return _joinengine(spark, sides, part / 2, how="full")


def inner_joinengine(folder: Path, part: float) -> dict[str, Any]:
    """The inner join of joinengine with the same window."""
    spark, sides = _own_sides(folder)
    return _joinengine(spark, sides, part / 2)


def outer_spark_memory(folder: Path, part: float) -> dict[str, Any]:
    """Spark's full outer join, state in the JVM."""
    return _spark(folder, part / 2, {}, how="full")


def outer_duckdb(folder: Path, part: float) -> dict[str, Any]:
    """DuckDB's full outer join as one batch query. The limit."""
    return _duckdb(folder, part / 2, "o_orderkey = l_orderkey", how="full")


SYSTEMS: dict[str, Callable[[Path, float], dict[str, Any]]] = {
    "joinengine": joinengine_own,
    "joinengine, Parquet source": joinengine_files,
    "Spark, in memory": spark_memory,
    "Spark, RocksDB 2": spark_rocksdb_2,
    "Spark, RocksDB 4": spark_rocksdb_4,
    "DuckDB, one batch": duckdb_batch,
}
#: The band join, |l_orderkey - o_orderkey| <= REACH within the interval. Spark refuses a stream
#: join without an equality; its nearest form that ends is one on buckets of the key, each order
#: copied into the buckets where a partner may be. (On a constant key all state is one key's.)
BANDS: dict[str, Callable[[Path, float], dict[str, Any]]] = {
    "joinengine": band_joinengine,
    "Spark, in memory": band_spark_memory,
    "Spark, RocksDB 4": band_spark_rocksdb,
    "DuckDB, one batch": band_duckdb,
}
REACH = 1
#: Order keys to a bucket. A smaller one copies more orders, a larger one compares more pairs.
BUCKET = 8
#: The full outer join, of half the window: half of the line items match nothing.
OUTER: dict[str, Callable[[Path, float], dict[str, Any]]] = {
    "joinengine": outer_joinengine,
    "joinengine, inner": inner_joinengine,
    "Spark, in memory": outer_spark_memory,
    "DuckDB, one batch": outer_duckdb,
}
JOBS = {"equi": SYSTEMS, "band": BANDS, "outer": OUTER}

_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}


def _joinengine(
    spark: Any, sides: list[Any], part: float, on: Any = None, how: str = "inner"
) -> dict[str, Any]:
    from joinengine import StreamJoin, equi, within  # noqa: PLC0415

    window = within("o_ts", "l_ts", lower="0 s", upper=f"{part * SPAN_US:.0f} us", delay="0 s")
    joined = StreamJoin(
        *sides,
        on=on or equi("o_orderkey", "l_orderkey"),
        within=window,
        how=how,
        layout="hash",
        instances=INSTANCES,
    )
    with tempfile.TemporaryDirectory(prefix="joinengine-bench-") as checkpoint:
        query = (
            joined.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        batches = query.batches()
    counted = [b for b in batches[WARM_BATCHES:] if b.input_rows]
    return {
        "rows": [b.input_rows for b in counted],
        "seconds": [b.trigger_s for b in counted],
        "results": sum(b.output_rows for b in batches),
        "split": _split(counted),
    }


def _split(batches: list[Any]) -> dict[str, float]:
    """Where the time of the counted batches went, as parts of their triggers.

    Tasks run on two cores, so their work is counted half. The rest of the route and join jobs is
    Spark's scheduling, and the wait of the core that is done first.
    """
    total = sum(b.trigger_s for b in batches)
    work = {
        part: sum(b.work_s[part] for b in batches) / 2
        for part in sorted({part for b in batches for part in b.work_s})
    }
    jobs = sum(b.seconds["route_s"] + b.seconds["join_s"] for b in batches)
    inside = sum(b.seconds["elapsed_s"] for b in batches)
    parts = work | {
        "jobs, beside work": jobs - sum(work.values()),
        "plan": sum(b.seconds["plan_s"] for b in batches),
        "commit": sum(b.seconds["commit_s"] for b in batches),
        "sink and clean-up": sum(b.seconds["sink_s"] + b.seconds["clean_s"] for b in batches),
        "Spark's logs and planning": total - inside,
    }
    return {name: spent / total for name, spent in parts.items()}


def _file_stream(spark: Any, folder: Path) -> Any:
    schema = spark.read.parquet(str(folder)).schema
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def _spark(
    folder: Path,
    part: float,
    settings: dict[str, str],
    *,
    bucketed: bool = False,
    how: str = "inner",
) -> dict[str, Any]:
    from pyspark.sql import functions as F  # noqa: PLC0415

    from joinengine import session  # noqa: PLC0415

    # The same session as joinengine's, so that settings favour no system.
    spark = session(
        master="local[2]",
        spark__driver__memory="8g",
        spark__sql__shuffle__partitions=SPARK_PARTITIONS,
    )
    for key, value in settings.items():
        spark.conf.set(key, value)
    orders = _file_stream(spark, folder / "orders").withWatermark("o_ts", "0 seconds")
    lineitem = _file_stream(spark, folder / "lineitem").withWatermark("l_ts", "0 seconds")
    upper = F.expr(f"o_ts + interval {part * SPAN_US / 1e6:.6f} seconds")
    near = (F.col("l_ts") >= F.col("o_ts")) & (F.col("l_ts") <= upper)
    on = F.col("o_orderkey") == F.col("l_orderkey")
    if bucketed:
        ends = [F.floor((F.col("o_orderkey") + end) / BUCKET) for end in (-REACH, REACH)]
        orders = orders.withColumn("o_bucket", F.explode(F.array_distinct(F.array(*ends))))
        lineitem = lineitem.withColumn("l_bucket", F.floor(F.col("l_orderkey") / BUCKET))
        on = F.col("o_bucket") == F.col("l_bucket")
        on &= F.abs(F.col("l_orderkey") - F.col("o_orderkey")) <= REACH
    joined = orders.join(lineitem, on & near, how)
    counted = joined.observe("results", F.count(F.lit(1)).alias("rows"))
    with tempfile.TemporaryDirectory(prefix="spark-bench-") as checkpoint:
        query = (
            counted.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        progress = query.recentProgress
    batches = [p for p in progress[WARM_BATCHES:] if p["numInputRows"]]
    return {
        "rows": [p["numInputRows"] for p in batches],
        "seconds": [p["durationMs"]["triggerExecution"] / 1e3 for p in batches],
        "results": sum(p["observedMetrics"]["results"]["rows"] for p in progress),
        "split": {},
    }


def main() -> None:
    """Run one system once."""
    job, name, folder, part = sys.argv[1:]
    os.environ.setdefault("PYSPARK_UDS_MODE", "true")
    print("\n" + json.dumps(JOBS[job][name](Path(folder), float(part))))


if __name__ == "__main__":
    main()
