"""The alternatives to joinengine, in a process of their own: Spark's join, in four ways.

    python -m benchmarks.demo.peers spark|salted|filtered|broadcast FOLDER FILES

`salted`: the hot product is divided by hand. `filtered`: its rows are left out. `broadcast`: the
purchases are a static table, of which each task has a copy.

Prints one JSON line: seconds by the clock from the call of `start()`, and the results, of the first
FILES files of each side. The same query over the first file goes before it, uncounted: a JVM that
has just started takes about twice as long. Spark has as many threads as joinengine, and drops the
results.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.by_clock import ended_s
from benchmarks.demo.stream import HOT, PRICES, WINDOW_S
from joinengine import session

#: Parts of the hot product, as a user would write it by hand; its purchases go to all of them.
SALTS = 8


WAYS = ("spark", "salted", "filtered", "broadcast")


def spark_join(folder: Path, files: int, way: str) -> dict[str, Any]:
    """Spark's join of both streams, in one of WAYS."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    spark = session(spark__sql__shuffle__partitions="8")
    views, purchases = (_stream(spark, folder / name, files) for name in ("views", "purchases"))
    near = f.expr(
        f"v_product = p_product and p_time >= v_time "
        f"and p_time <= v_time + interval {WINDOW_S} seconds and {PRICES}"
    )
    if way == "filtered":
        views, purchases = (
            side.where(f.col(f"{letter}_product") != HOT)
            for side, letter in ((views, "v"), (purchases, "p"))
        )
    if way == "broadcast":
        paths = [str(path) for path in sorted((folder / "purchases").glob("*.parquet"))[:files]]
        purchases = f.broadcast(spark.read.parquet(*paths))
    if way == "salted":
        salts = f.array(*[f.lit(number) for number in range(SALTS)])
        drawn = (f.rand(3) * SALTS).cast("int")
        one = f.array(f.lit(0))
        views = views.withColumn("v_salt", f.when(f.col("v_product") == HOT, drawn).otherwise(0))
        all_salts = f.explode(f.when(f.col("p_product") == HOT, salts).otherwise(one))
        purchases = purchases.withColumn("p_salt", all_salts)
        near = near & (f.col("v_salt") == f.col("p_salt"))
    counted = views.join(purchases, near).observe("results", f.count(f.lit(1)).alias("rows"))
    query, seconds = ended_s(counted)
    metrics = [progress["observedMetrics"] for progress in query.recentProgress]
    results = sum(one["results"]["rows"] for one in metrics if one)
    return {"seconds": seconds, "results": results}


def _stream(spark: Any, folder: Path, count: int) -> Any:
    """The first files of a folder as a stream of one file a batch."""
    files = sorted(folder.glob("*.parquet"))[:count]
    part = Path(tempfile.mkdtemp()) / folder.name
    part.mkdir()
    for file in files:
        (part / file.name).symlink_to(file.resolve())
    reader = spark.readStream.schema(spark.read.parquet(str(part)).schema)
    reader = reader.option("maxFilesPerTrigger", 1)
    return reader.parquet(str(part)).withWatermark(f"{folder.name[0]}_time", "1 second")


def main() -> None:
    """Run one of them, and print what it took."""
    name, folder, files = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    spark_join(folder, 1, name)
    figures = spark_join(folder, files, name)
    print(json.dumps(figures), flush=True)
    os._exit(0)  # ending the JVM properly takes seconds


if __name__ == "__main__":
    main()
