"""How often tasks find their run files where they run: `python -m benchmarks.caches`.

A join over an object store (moto, in memory, on loopback) on executors of one core each, through
each exchange, with and without locality in turns. A line for each run: of the batches from the
sixth on, the hit rate of the file caches by files and by bytes, and the median of a batch. With
`--kill` an executor is killed in the middle of each run; the line then has its longest batch, too.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import click
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.by_clock import started
from joinengine import StreamJoin, parquet_stream, session
from joinengine.spark.jobs.locality import Locality
from joinengine.world.world import MACHINE
from tests.objects import environment, make_bucket, s3_server

#: Batches in which executors start and caches fill.
_FIRST = 5
_ROWS = 2000
#: What an executor's process runs.
_EXECUTOR = "CoarseGrainedExecutorBackend"


@click.command()
@click.option("--executors", default=4, show_default=True)
@click.option("--batches", default=22, type=click.IntRange(_FIRST + 1), show_default=True)
@click.option("--rounds", default=2, show_default=True)
@click.option("--kill", "kills", is_flag=True, help="Kill an executor, in the middle.")
def main(executors: int, batches: int, rounds: int, kills: bool) -> None:
    """Print a line for each run."""
    kill = batches // 2 if kills else None
    with s3_server() as access, environment(access), tempfile.TemporaryDirectory() as disk:
        bucket = make_bucket(access)
        for side in ("left", "right"):
            _write(bucket, side, batches)
        with _spark(executors, access) as spark:
            for number in range(rounds):
                for exchange in ("files", "shuffle"):
                    for near in (False, True):
                        name = f"{exchange}-{near}-{number}"
                        place = f"{disk}/{name}"
                        ran = _run(spark, bucket, place, exchange, near=near, kill=kill)
                        print(f"{exchange:8} locality {near!s:5} {_words(ran)}", flush=True)


@contextmanager
def _spark(executors: int, access: dict[str, str]) -> Iterator[Any]:
    settings = {f"spark__executorEnv__{name}": value for name, value in access.items()}
    spark = session(
        master=f"local-cluster[{executors},1,512]",
        spark__executor__memory="512m",
        spark__cores__max=str(executors),
        spark__scheduler__minRegisteredResourcesRatio="1",
        **settings,
    )
    try:
        yield spark
    finally:
        spark.stop()


def _write(bucket: str, side: str, batches: int) -> None:
    rows = _ROWS * batches
    columns = {"key": [n * 7919 % 50021 for n in range(rows)], side: list(range(rows))}
    with MACHINE.storage(bucket).output(f"in/{side}/first.parquet") as sink:
        pq.write_table(pa.table(columns), sink, row_group_size=_ROWS)


def _run(
    spark: Any, bucket: str, disk: str, exchange: str, *, near: bool, kill: int | None
) -> list[dict[str, Any]]:
    """The metrics of one query's batches; `kill`: after how many an executor is killed."""
    left, right = (
        parquet_stream(spark, f"{bucket}/in/{side}", rows_per_interval=_ROWS)
        for side in ("left", "right")
    )
    joined = StreamJoin(left, right, on="key", layout="hash", instances=8)
    state = f"{bucket}/{disk.rpartition('/')[2]}"
    anywhere = patch.object(Locality, "locations", lambda *_: None)
    with nullcontext() if near else anywhere:
        query = started(joined, disk, exchange=exchange, stateLocation=state)
        while kill is not None and query.done[1] < kill:
            time.sleep(0.01)
        if kill is not None:
            os.kill(_executor(spark.sparkContext.applicationId), signal.SIGKILL)
        query.awaitTermination()
    batches: list[dict[str, Any]] = query.metrics().to_pylist()
    return batches[_FIRST:]


def _executor(application: str) -> int:
    """The process of an executor of an application of Spark."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if application in command and any(_EXECUTOR in argument for argument in command):
                return int(process.name)
    raise RuntimeError("there is no executor")


def _words(batches: list[dict[str, Any]]) -> str:
    files, wanted, size, whole = (
        sum(batch[name] for batch in batches)
        for name in ("fetched_files", "run_files", "fetched_bytes", "run_file_bytes")
    )
    seconds = [batch["elapsed_s"] for batch in batches]
    taken, most = median(seconds), max(seconds)
    return (
        f"hit rate {1 - files / wanted:.1%} of {wanted} files, {1 - size / whole:.1%} of "
        f"{whole / 1e6:.1f} MB; {taken:.2f} s a batch, longest {most:.2f} s"
    )


if __name__ == "__main__":
    main()
