"""The runs of the comparison: EQ5 on executors of one core each, with work that is emulated.

Every executor hosts one instance of each join. Instances of one task wait side by side, so a task
with several would do in one wait what a core does in several. The dimension tables come first, so
the batches that count bring only tuples of lineitem, each of which has one result.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from joinengine import JoinQuery, session
from joinengine.lab.queries import Options, find
from joinengine.lab.queries.eq5 import KEYS, TABLES
from joinengine.lab.queries.runs import Followers, Places, run
from joinengine.lab.tpch.arrival import TableOrder
from joinengine.lab.tpch.stream import RecordedStream
from joinengine.layouts import choose

#: Batches that are run and not counted: tables come, workers start, the first plan is made.
WARM = 1
#: Seconds within which executors have to register.
_START_S = 120.0
SPARK = "Spark"


def options(scale: float, zipf: float, interval_rows: int, executors: int) -> Options:
    """The stream and the instances of all runs on so many executors."""
    return Options(
        scale=scale,
        zipf=zipf,
        interval_rows=interval_rows,
        instances=executors,
        order=TableOrder.FIRST,
    )


@contextmanager
def cluster(executors: int) -> Iterator[Any]:
    """A session of Spark whose executors are processes of their own, of one core each."""
    spark = session(
        "workers",
        f"local-cluster[{executors},1,512]",
        spark__executor__memory="512m",
        spark__default__parallelism=str(executors),
        spark__sql__shuffle__partitions=str(executors),
    )
    try:
        _await_executors(spark, executors)
        yield spark
    finally:
        spark.stop()


def _await_executors(spark: Any, executors: int) -> None:
    end = time.monotonic() + _START_S
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < executors + 1:
        if time.monotonic() > end:
            raise RuntimeError(f"{executors} executors have not come within {_START_S:.0f} s")
        time.sleep(0.2)


def joined(spark: Any, settings: Options, layout: str, batches: int) -> dict[str, Any]:
    """The figures of a run of joinengine."""
    started = list[JoinQuery]()
    eq5 = find("eq5")
    asked = replace(settings, layout=choose(layout))
    followers = Followers(on_start=started.append)
    report = run(spark, eq5, asked, Places(), validate=True, followers=followers)
    if not report["valid"]:
        raise RuntimeError(f"{layout} on {settings.instances} executors: results are not DuckDB's")
    counted = slice(WARM, batches)
    sums = np.zeros(len(report["batches"]))
    most = np.zeros(len(report["batches"]))
    for join in report["joins"]:
        received = np.array(join["received_by_batch"], float)
        sums += received.sum(axis=1)
        most += received.max(axis=1)
    work = settings.asked("workPerTuple")
    results = np.array([batch["output_rows"] for batch in report["batches"]], float)
    whole = sums * work + results * settings.asked("workPerResult")
    return {
        "seconds": [batch["elapsed_s"] for batch in report["batches"]][counted],
        "work_s": whole[counted].tolist(),
        "busiest_s": (most * work)[counted].tolist() if work else None,
    }


def beside(spark: Any, settings: Options, batches: int) -> dict[str, Any]:
    """The figures of Spark's own join of the same files, batch by batch the same rows.

    Each task of the last join sleeps for its results, in a function that is in its own stage.
    """
    recorded = find("eq5").stream(settings).record()
    work_s = settings.asked("workPerResult")
    with tempfile.TemporaryDirectory(prefix="joinengine-workers-") as folder:
        sides = [_file_stream(spark, recorded, table, Path(folder)) for table in TABLES]
        frame = sides[0]
        for side, (left, right) in zip(sides[1:], KEYS, strict=True):
            frame = frame.join(side, frame[left] == side[right])
        frame = frame.select(KEYS[-1][1])

        def work(arrived: Any) -> Any:
            import time  # noqa: PLC0415

            for batch in arrived:
                time.sleep(batch.num_rows * work_s)
                yield batch

        query = (
            frame.mapInArrow(work, frame.schema)
            .writeStream.format("noop")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        progress = [batch for batch in query.recentProgress if batch["numInputRows"]]
    rows = [batch["numInputRows"] for batch in progress]
    if rows != _batch_rows(recorded):
        raise RuntimeError(f"Spark has read batches of {rows} rows, not {_batch_rows(recorded)}")
    counted = slice(WARM, batches)
    return {
        "seconds": [batch["durationMs"]["triggerExecution"] / 1e3 for batch in progress][counted],
        "work_s": [count * work_s for count in rows][counted],
        "busiest_s": None,
    }


def _intervals(recorded: RecordedStream, table: str) -> list[Path]:
    return sorted(Path(recorded.folder, table).glob("*.parquet"))


def _batch_rows(recorded: RecordedStream) -> list[int]:
    """The rows of each batch, by the files: their names are the numbers of the batches."""
    rows = dict[str, int]()
    for table in TABLES:
        for path in _intervals(recorded, table):
            rows[path.name] = rows.get(path.name, 0) + pq.read_metadata(str(path)).num_rows
    return [rows[name] for name in sorted(rows)]


def _file_stream(spark: Any, recorded: RecordedStream, table: str, folder: Path) -> Any:
    """A table as Spark reads it: a file for each batch, in the order of their times."""
    table_folder = folder / table
    table_folder.mkdir()
    for number, path in enumerate(_intervals(recorded, table)):
        copied = shutil.copy(path, table_folder)
        os.utime(copied, (1_700_000_000 + number, 1_700_000_000 + number))
    schema = spark.read.parquet(str(table_folder)).schema
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(table_folder))


def median_s(seconds: Sequence[float]) -> float:
    """The seconds of a batch."""
    return statistics.median(seconds)
