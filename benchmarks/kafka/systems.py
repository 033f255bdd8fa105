"""One system that joins clicks and purchases, in a process of its own.

    python -m benchmarks.kafka.systems SYSTEM SERVERS PARTITIONS FOLDER

Prints one line of JSON: seconds from the start of the query until all is read, and results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.by_clock import ended_s, ours
from benchmarks.kafka.messages import COLUMNS, SIDES, WINDOW_S
from benchmarks.kafka.topics import messages
from benchmarks.keeping import ROOT

#: Messages of a side that a batch reads; as many rows where files are read.
BATCH_ROWS = {"clicks": 250_000, "purchases": 50_000}


def topic_of(side: str, partitions: int) -> str:
    """The topic of a side that has so many partitions."""
    return f"{side}-{partitions}"


def consumed(servers: str, partitions: int, folder: Path) -> dict[str, float]:
    """The floor: the client alone, which decodes nothing."""
    begin = time.perf_counter()
    count = sum(1 for side in SIDES for _ in messages(servers, topic_of(side, partitions)))
    return {"seconds": time.perf_counter() - begin, "results": 0, "rows": count}


def from_topics(servers: str, partitions: int, folder: Path) -> dict[str, float]:
    """joinengine, which reads the topics itself."""
    from joinengine import kafka_stream, session  # noqa: PLC0415

    spark = session()
    return _joined(
        kafka_stream(
            spark,
            servers,
            topic_of(side, partitions),
            schema=COLUMNS[side],
            max_rows=BATCH_ROWS[side],
        )
        for side in SIDES
    )


def files(servers: str, partitions: int, folder: Path) -> dict[str, float]:
    """Joinengine over the same rows in Parquet files."""
    from joinengine import parquet_stream, session  # noqa: PLC0415

    spark = session()
    return _joined(
        parquet_stream(spark, folder / side, rows_per_interval=BATCH_ROWS[side]) for side in SIDES
    )


def frames(servers: str, partitions: int, folder: Path) -> dict[str, float]:
    """Joinengine over Spark's Kafka source."""
    spark = _with_connector()
    return _joined(_frame(spark, servers, side, partitions) for side in SIDES)


def spark(servers: str, partitions: int, folder: Path) -> dict[str, float]:
    """Spark's own join over its own source."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    session = _with_connector()
    left, right = (_frame(session, servers, side, partitions) for side in SIDES)
    near = "user_id = buyer_id and bought_at >= clicked_at and bought_at <= clicked_at"
    joined = left.join(right, F.expr(f"{near} + interval {WINDOW_S} seconds"))
    joined = joined.observe("results", F.count(F.lit(1)).alias("rows"))
    query, seconds = ended_s(joined)
    rows = sum(progress["observedMetrics"]["results"]["rows"] for progress in query.recentProgress)
    return {"seconds": seconds, "results": rows}


def _joined(sides: Any) -> dict[str, float]:
    from joinengine import StreamJoin, equi, within  # noqa: PLC0415

    window = within("clicked_at", "bought_at", lower="0 s", upper=f"{WINDOW_S} s", delay="1 s")
    seconds, rows = ours(StreamJoin(*sides, on=equi("user_id", "buyer_id"), within=window))
    return {"seconds": seconds, "results": rows}


def _with_connector() -> Any:
    """A session with Spark's Kafka source, set as joinengine sets its own."""
    from joinengine import session  # noqa: PLC0415

    tool = ROOT / "tools" / "ensure-jars"
    done = subprocess.run([tool, "spark-kafka"], capture_output=True, text=True, check=True)
    jars = ",".join(str(jar) for jar in Path(done.stdout.strip()).glob("*.jar"))
    return session(spark__jars=jars, spark__sql__shuffle__partitions="8")


def _frame(spark: Any, servers: str, side: str, partitions: int) -> Any:
    from pyspark.sql import functions as F  # noqa: PLC0415

    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic_of(side, partitions))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH_ROWS[side])
    )
    parsed = F.from_json(F.col("value").cast("string"), COLUMNS[side]).alias("row")
    time_column = COLUMNS[side].split(", ")[1].split()[0]
    return reader.load().select(parsed).select("row.*").withWatermark(time_column, "1 second")


SYSTEMS: dict[str, Callable[[str, int, Path], dict[str, float]]] = {
    "client alone": consumed,
    "joinengine": from_topics,
    "joinengine, Parquet": files,
    "joinengine, Spark's Kafka source": frames,
    "Spark": spark,
}

if __name__ == "__main__":
    name, servers, partitions, folder = sys.argv[1:]
    print(json.dumps(SYSTEMS[name](servers, int(partitions), Path(folder))), flush=True)
    os._exit(0)  # the session need not be taken apart
