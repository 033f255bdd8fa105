"""Measures the cost of bringing tuples from task to task: `python -m benchmarks.exchanges`.

First the engine, through files and through Spark's shuffle in turns, with few and with many rows a
batch: a join of two streams, and a chain of two joins. Then ways to carry out a chain through
shuffles, with bytes in place of tuples (docs/decisions/0016).
"""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
import pyarrow as pa
from pyspark import RDD, StorageLevel
from pyspark.serializers import NoOpSerializer
from rich.console import Console
from rich.table import Table

from benchmarks.by_clock import ended, in_files
from joinengine import StreamJoin, parquet_stream, session

_SIDES = ("first", "second", "third")
#: Batches that are run and not counted.
_WARM = 3
_TASKS = 2
console = Console(soft_wrap=True, width=120)


@click.command()
@click.option("--rows", default="100,500000", show_default=True, help="Of a batch, all streams.")
# The last batch is not counted either.
@click.option("--batches", default=9, type=click.IntRange(_WARM + 2), show_default=True)
@click.option("--rounds", default=5, show_default=True, help="Of each system, in turns.")
@click.option("--mb", default="0.1,1,16", show_default=True, help="Of a task, in a chain of bytes.")
def main(rows: str, batches: int, rounds: int, mb: str) -> None:
    """Run, and print two tables."""
    spark = session(master=f"local[{_TASKS}]")
    table = Table(
        "rows", "joins", "exchange", "s a batch", "route_s", "join_s", "x files", box=None
    )
    for n_rows in map(int, rows.split(",")):
        for line in _engine(spark, n_rows, batches, rounds):
            table.add_row(*line)
    console.print(table)
    table = Table("MB a task", *_CHAINS, box=None, title="ms of a chain of two joins, of bytes")
    for size in map(float, mb.split(",")):
        table.add_row(
            f"{size:g}", *(f"{1e3 * seconds:.0f}" for seconds in _chains(spark, size, rounds))
        )
    console.print(table)
    spark.stop()


# The engine


def _engine(spark: Any, n_rows: int, batches: int, rounds: int) -> Iterator[Sequence[str]]:
    """A line for each number of joins and exchange."""
    with tempfile.TemporaryDirectory(prefix="joinengine-bench-") as folder:
        for side in _SIDES:
            _write(Path(folder, side), n_rows, batches)
        for joins in (1, 2):
            each = n_rows // (joins + 1)
            found: dict[str, list[list[float]]] = {"files": [], "shuffle": []}
            for number in range(rounds):
                for exchange, runs in found.items():
                    place = Path(folder, f"{joins}-{exchange}-{number}")
                    runs.append(_run(spark, Path(folder), place, joins, each, exchange))
            medians = {
                name: [median(column) for column in zip(*runs, strict=True)]
                for name, runs in found.items()
            }
            ratios = [s[0] / f[0] for f, s in zip(found["files"], found["shuffle"], strict=True)]
            for name, seconds in medians.items():
                ratio = f"{median(ratios):.2f}" if name == "shuffle" else ""
                figures = [f"{one:.3f}" for one in seconds]
                yield f"{each * (joins + 1):,}", str(joins), name, *figures, ratio


def _write(folder: Path, n_rows: int, batches: int) -> None:
    """Write a long stream with unique keys, so that joins do not change the size of a batch."""
    rows = n_rows // 2 * batches
    keys = [n * 7919 % 1_000_003 + 1_000_003 * (n // 1_000_003) for n in range(rows)]
    columns = {"key": keys, folder.name: list(range(rows))}
    in_files(pa.table(columns), folder, 1, row_group_size=max(1, n_rows // 6))


def _run(
    spark: Any, folder: Path, place: Path, joins: int, each: int, exchange: str
) -> list[float]:
    """Median seconds of a batch, of its routing and of its joins."""
    first, *others = (
        parquet_stream(spark, folder / side, rows_per_interval=each) for side in _SIDES[: joins + 1]
    )
    joined: Any = first
    for other in others:
        joined = StreamJoin(joined, other, on="key", layout="hash", instances=8)
    query = ended(joined, place, exchange=exchange)
    counted = [b for b in query.batches() if b.input_rows][_WARM:-1]  # the last has fewer rows
    parts = [(b.trigger_s, b.seconds["route_s"], b.seconds["join_s"]) for b in counted]
    return [median(column) for column in zip(*parts, strict=True)]


# Chains of bytes


def _chains(spark: Any, mb: float, rounds: int) -> list[float]:
    """Median seconds of each way."""
    chain = _Chain(spark.sparkContext, round(mb * (1 << 20)))
    found: list[list[float]] = [[] for _ in _CHAINS]
    for number in range(2 * rounds + 3):
        for taken, way in zip(found, _CHAINS.values(), strict=True):
            start = time.perf_counter()
            way(chain)
            if number >= 3:
                taken.append(time.perf_counter() - start)
    return [median(taken) for taken in found]


class _Chain:
    """Route tasks, tasks of a join, and tasks of a second one, which bring bytes to each other.

    Partition 0 of a shuffle has a report of each of its tasks, as in
    joinengine.spark.jobs.shuffle_jobs.
    """

    def __init__(self, context: Any, size: int) -> None:
        self._context, self._jvm = context, context._jvm

        def send(packets: Iterable[bytes]) -> Iterator[bytes]:
            for _ in packets:
                pass
            block = b"\x5a" * (size // _TASKS)
            for task in range(_TASKS):
                yield struct.pack("!q", 1 + task)
                yield block
            yield struct.pack("!q", 0)
            yield b"\x11" * 2000

        self._send = send
        self._first = context.parallelize(range(_TASKS), _TASKS)

    def jobs(self) -> None:
        """A job for the routing and for each join; the driver sees the reports of each."""
        routed = self._shuffled(self._first.mapPartitions(self._send))
        self._read(routed, [0]).collect()
        joined = self._shuffled(self._tasks(routed).mapPartitions(self._send))
        self._read(joined, [0]).collect()
        self._tasks(joined).mapPartitions(_length).collect()

    def persisted(self) -> None:
        """The same; what tasks of the first join send is persisted before it is shuffled."""
        routed = self._shuffled(self._first.mapPartitions(self._send))
        self._read(routed, [0]).collect()
        sent = self._tasks(routed).mapPartitions(self._send)
        sent._bypass_serializer = True  # type: ignore[attr-defined]
        lines = sent._jrdd.rdd().persist(
            self._context._getJavaStorageLevel(StorageLevel.MEMORY_AND_DISK)
        )
        joined = self._shuffled_lines(lines)
        self._read(joined, [0]).collect()
        self._tasks(joined).mapPartitions(_length).collect()
        lines.unpersist(False)

    def one_job(self) -> None:
        """Stages of one job; the driver sees no report before the last task is done."""
        routed = self._shuffled(self._first.mapPartitions(self._send))
        joined = self._shuffled(self._tasks(routed).mapPartitions(self._send))
        self._tasks(joined).mapPartitions(_length).collect()

    def _tasks(self, shuffle: Any) -> RDD[bytes]:
        return self._read(shuffle, list(range(1, 1 + _TASKS)))

    def _shuffled(self, lines: RDD[bytes]) -> Any:
        lines._bypass_serializer = True  # type: ignore[attr-defined]
        return self._shuffled_lines(lines._jrdd.rdd())

    def _shuffled_lines(self, lines: Any) -> Any:
        partitioner = self._jvm.PythonPartitioner(1 + _TASKS, 0)
        return self._jvm.PairwiseRDD(lines).asJavaPairRDD().partitionBy(partitioner)

    def _read(self, shuffle: Any, partitions: list[int]) -> RDD[bytes]:
        values = self._jvm.PythonRDD.valueOfPair(shuffle).rdd()
        wanted = self._jvm.PythonUtils.toSeq(partitions).toSet()
        pruned = self._jvm.org.apache.spark.rdd.PartitionPruningRDD.create(values, wanted)
        return RDD(pruned.toJavaRDD(), self._context, NoOpSerializer())


_CHAINS: dict[str, Callable[[_Chain], None]] = {
    "a job for each": _Chain.jobs,
    "persisted": _Chain.persisted,
    "one job": _Chain.one_job,
}


def _length(packets: Iterable[bytes]) -> Iterator[int]:
    yield sum(map(len, packets))


if __name__ == "__main__":
    main()
