"""How often tasks find their run files where they run: `python -m benchmarks.caches`.

A join over an object store (moto, in memory, on loopback) on executors of one core each, through
each exchange, with and without locality in turns. A line for each run: of the batches from the
sixth on, the hit rate of the file caches by files and by bytes, and the median of a batch.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from joinengine import StreamJoin, parquet_stream, session
from joinengine.spark.locality import Locality
from joinengine.world.world import MACHINE
from tests.objects import environment, make_bucket, s3_server

#: Batches in which executors come and caches fill.
_FIRST = 5
_ROWS = 2000


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.caches", description=__doc__)
    parser.add_argument("--executors", type=int, default=4)
    parser.add_argument("--batches", type=int, default=22)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    with s3_server() as access, environment(access), tempfile.TemporaryDirectory() as disk:
        bucket = make_bucket(access)
        for side in ("left", "right"):
            _write(bucket, side, asked.batches)
        with _spark(asked.executors, access) as spark:
            for number in range(asked.rounds):
                for exchange in ("files", "shuffle"):
                    for near in (False, True):
                        name = f"{exchange}-{near}-{number}"
                        batches = _run(spark, bucket, f"{disk}/{name}", exchange, near=near)
                        print(f"{exchange:8} locality {near!s:5} {_words(batches)}", flush=True)


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


def _run(spark: Any, bucket: str, disk: str, exchange: str, *, near: bool) -> list[dict[str, Any]]:
    """The metrics of the batches of one query."""
    left, right = (
        parquet_stream(spark, f"{bucket}/in/{side}", rows_per_interval=_ROWS)
        for side in ("left", "right")
    )
    writer = StreamJoin(left, right, on="key", layout="hash", instances=8).writeStream
    writer = writer.format("noop").option("exchange", exchange).trigger(availableNow=True)
    state = f"{bucket}/{disk.rpartition('/')[2]}"
    writer = writer.option("checkpointLocation", disk).option("stateLocation", state)
    anywhere = patch.object(Locality, "locations", lambda *_: None)
    if not near:
        anywhere.start()
    try:
        query = writer.start()
        query.awaitTermination()
    finally:
        if not near:
            anywhere.stop()
    found: list[dict[str, Any]] = query.metrics().to_pylist()
    return found[_FIRST:]


def _words(batches: list[dict[str, Any]]) -> str:
    files, wanted, size, whole = (
        sum(one[name] for one in batches)
        for name in ("fetched_files", "run_files", "fetched_bytes", "run_file_bytes")
    )
    taken = median(one["elapsed_s"] for one in batches)
    return (
        f"hit rate {1 - files / wanted:.1%} of {wanted} files, {1 - size / whole:.1%} of "
        f"{whole / 1e6:.1f} MB; {taken:.2f} s a batch"
    )


if __name__ == "__main__":
    main()
