"""Times several ways to one result by the clock: each once to warm up, and then in turn."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

REPEATS = 3
#: Seconds, and how many results there were.
Run = tuple[float, int]


def in_files(table: pa.Table, folder: Path, files: int, **options: Any) -> None:
    """Write a table into a new folder, in files of as many rows."""
    folder.mkdir(parents=True)
    step = -(-table.num_rows // files)
    for number in range(files):
        path = folder / f"{number}.parquet"
        pq.write_table(table.slice(number * step, step), path, **options)


def started(query: Any, checkpoint: Path | str, **options: Any) -> Any:
    """A query, running over all available input; its results are dropped."""
    writer = query.writeStream.format("noop").option("checkpointLocation", checkpoint)
    return writer.options(**options).trigger(availableNow=True).start()


def ended(query: Any, checkpoint: Path | str, **options: Any) -> Any:
    """The same at its end."""
    running = started(query, checkpoint, **options)
    running.awaitTermination()
    return running


def ended_s(query: Any) -> tuple[Any, float]:
    """A query of joinengine or of Spark at its end, and the seconds since its `start()`."""
    with tempfile.TemporaryDirectory() as checkpoint:
        start = time.perf_counter()
        return ended(query, checkpoint), time.perf_counter() - start


def ours(query: Any) -> Run:
    """A query of joinengine over all available input, from `start()` to its end."""
    running, spent = ended_s(query)
    return spent, sum(running.metrics().column("output_rows").to_pylist())


def duckdb_s(query: str) -> Run:
    """SQL that counts its results, in DuckDB on two threads."""
    connection = duckdb.connect(config={"threads": 2})
    return timed(lambda: connection.sql(query).fetchall()[0][0])


def timed(count: Callable[[], int]) -> Run:
    """Any other way, which counts its results."""
    start = time.perf_counter()
    results = count()
    return time.perf_counter() - start, results


def beside(ways: Mapping[str, Callable[[], Run]], rows: int, *, about: str = "") -> None:
    """Print of each way the median of seconds, rows per second of all streams, and results."""
    by_way: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(1 + REPEATS):
        for name, run in ways.items():
            by_way[name].append(run())
    for name, runs in by_way.items():
        spent = median(seconds for seconds, _ in runs[1:])
        rate = f"{rows / spent:14,.0f} rows/s"
        print(f"{about}{name:28}{spent:8.2f} s{rate}{runs[-1][1]:12,}", flush=True)
